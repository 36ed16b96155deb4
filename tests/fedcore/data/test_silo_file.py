"""Opening a silo's file: exact values, labels as users write them, and errors that quote no cell."""

import pickle
import subprocess
import sys
import traceback
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from fedcore.data import columns
from fedcore.data.silo_file import CODES, SiloSource, count_records, open_records
from fedcore.errors import SiloError

SECRET = "SECRET-4711"


def source(path, classes=(0, 1), features=("age", "dose"), **changes):
    plain = {"bias": False, "feature_bound": 1e300, "divide_by": 1.0, "version": "v1"}
    kind = path.suffix[1:]
    return SiloSource("north", str(path), kind, tuple(features), "y", classes, **{**plain, **changes})


@pytest.fixture
def csv_file(tmp_path):
    def write(text, encoding="utf-8"):
        path = tmp_path / "north.csv"
        path.write_bytes(text.encode(encoding) if isinstance(text, str) else text)
        return path

    return write


@pytest.fixture
def parquet_file(tmp_path):
    def write(**columns):
        path = tmp_path / "north.parquet"
        pa.parquet.write_table(pa.table(columns), path)
        return path

    return write


def refused(source, read=open_records):
    """The SiloError of reading, after a search of its whole content for the secret and for row numbers."""
    with pytest.raises(SiloError) as caught:
        read(source)
    error = caught.value
    assert error.code in CODES and error.silo == "north"
    assert error.__cause__ is None and error.__context__ is None
    frames = traceback.TracebackException.from_exception(error, capture_locals=True)
    inner = [f for f in frames.stack if "/fedcore/data/" in f.filename and "/tests/" not in f.filename]
    texts = [str(error), repr(error), repr(error.args), "".join(traceback.format_exception(error))]
    texts += [str(value) for frame in inner for value in (frame.locals or {}).values()]
    texts += [str(pickle.loads(pickle.dumps(error)))]
    for text in texts:
        assert "4711" not in text and "SECRET" not in text and "row #" not in text.lower()
    assert source.path in error.sentence
    return error


def test_parquet_round_trip_is_exact(parquet_file):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((100, 2)) * 10.0 ** rng.integers(-300, 290, (100, 2))
    y = rng.integers(0, 2, 100)
    records = open_records(source(parquet_file(y=y, dose=X[:, 1], other=["x"] * 100, age=X[:, 0])))
    assert records.X.tobytes() == X.tobytes()
    assert records.y.tolist() == (2.0 * y - 1).tolist()


def test_csv_round_trip_is_exact(csv_file):
    X = np.random.default_rng(1).standard_normal((50, 2))
    lines = [f"{a!r},{i % 2},{b!r}" for i, (a, b) in enumerate(X.tolist())]
    records = open_records(source(csv_file("age,y,dose\n" + "\n".join(lines))))
    assert records.X.tobytes() == X.tobytes()
    assert records.y.tolist() == [-1.0, 1.0] * 25


def test_map_is_applied(csv_file):
    path = csv_file("age,dose,y\n6,8,0\n0,0,1\n")
    records = open_records(source(path, bias=True, feature_bound=1.0, divide_by=2.0))
    np.testing.assert_allclose(records.X, [np.array([3, 4, 1]) / np.sqrt(26), [0, 0, 1]], rtol=1e-14)


def test_csv_numbers_that_change_their_look_after_the_first_block(csv_file):
    rows = 400_000  # 23 MB: more than one block of 16 MB
    filler = "x" * 50
    text = "age,dose,y,note\n" + f"1,2,0,{filler}\n" * rows + f'1.5,2e0,1,"a\nb{filler}"\n' * 2
    path = csv_file(text)
    records = open_records(source(path))
    assert records.n == rows + 2 == count_records(source(path))
    assert records.X[-1].tolist() == [1.5, 2.0] and records.X[0].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffage,dose,y\r\n1,2,0\r\n3,4,1\r\n",  # a byte order mark, Windows line ends
        '"age","dose","y"\n" 1 ",2,0\n\n3,4.0,1.0',  # quotes, blanks, an empty line, no last line end
        "y,extra,dose,age\n0,abc,2,1\n1,,4,3\n",
    ],
)
def test_csv_dialects(csv_file, text):
    path = csv_file(text)
    records = open_records(source(path))
    assert records.X.tolist() == [[1.0, 2.0], [3.0, 4.0]] and records.y.tolist() == [-1.0, 1.0]
    assert count_records(source(path)) == 2


@pytest.mark.parametrize(
    ("cells", "classes"),
    [
        (pa.array([0, 1]), (0, 1)),
        (pa.array([0, 1], pa.uint8()), ("0", "1")),
        (pa.array([0.0, 1.0]), (0, 1)),
        (pa.array([0.0, 1.0], pa.float16()), ("0.0", "1")),
        (pa.array([False, True]), (0, 1)),
        (pa.array([False, True]), ("false", "True")),
        (pa.array(["False", "true"]), (0, 1)),
        (pa.array(["0", "1"]), (0, 1)),
        (pa.array(["0", " 1.0"]), (0, 1)),
        (pa.array(["no", "yes"]), ("no", "yes")),
        (pa.array(["no", "yes"]).dictionary_encode(), ("no", "yes")),
        (pa.array(["no", "yes"], pa.large_string()), ("no", "yes")),
        (pa.array([-1, 1]), (-1, 1)),
        (pa.array(["01", "1"]), ("01", "1")),  # texts come before numbers
        (pa.array(["NA", "EU"]), ("NA", "EU")),  # a class, not a missing value
    ],
)
def test_classes_as_users_write_them(parquet_file, cells, classes):
    path = parquet_file(age=[1.0, 2.0], dose=[1, 2], y=cells)
    assert open_records(source(path, classes)).y.tolist() == [-1.0, 1.0]
    assert open_records(source(path, classes[::-1])).y.tolist() == [1.0, -1.0]


def test_other_numeric_columns(parquet_file):
    path = parquet_file(
        age=pa.array([1, 2**60 + 1]), dose=pa.array([True, False]), y=pa.array([Decimal("1.5"), Decimal(2)])
    )
    records = open_records(source(path, None))
    assert records.X.tolist() == [[1.0, 1.0], [float(2**60), 0.0]] and records.y.tolist() == [1.5, 2.0]


def test_names_with_dots_and_folders_with_equal_signs(tmp_path):
    folder = tmp_path / "age=3"
    folder.mkdir()
    pa.parquet.write_table(pa.table({"a.b": [1.0, 2.0], "a": [3, 4], "y": [0, 1]}), folder / "f.parquet")
    records = open_records(source(folder / "f.parquet", features=("a.b", "a")))
    assert records.X.tolist() == [[1.0, 3.0], [2.0, 4.0]]


def test_a_source_travels(parquet_file):
    sent = source(parquet_file(age=[1, 2], dose=[1, 2], y=[0, 1]))
    assert pickle.loads(pickle.dumps(sent)) == sent


GOOD = "1,2,0\n3,4,1\n"
CSV_FAULTS = [
    ("age,dose,y\n" + GOOD + f"{SECRET},4,1\n", "not-numeric", "feature column(s) 'age' that are not numeric"),
    ("age,dose,y\n" + GOOD + "4711,,1\n", "missing-value", "'dose' that hold missing or non-finite values; fix or"),
    ("age,dose,y\n" + GOOD + "4711,NaN,1\n", "missing-value", "by a public rule"),
    ("age,dose,y\n" + GOOD + "-inf,4711,1\n", "missing-value", "'age' that hold"),
    ("age,dose,y\n" + GOOD + "1e999,4711,1\n", "missing-value", "'age' that hold"),
    ("age,dose,y\n" + GOOD + f"4,4,{SECRET}\n", "unknown-label", "other than its two classes 0 and 1"),
    ("age,dose,y\n" + GOOD + "4,4,4711\n", "unknown-label", "label column 'y'"),
    ("age,dose,y\n" + GOOD + "4711,4,\n", "missing-label", "label column 'y' that holds missing values"),
    ("age,y\n1,0\n4711,1\n", "missing-column", "has no column 'dose'; it has 'age', 'y'"),
    ("age,y,y,dose\n1,0,0,1\n4711,1,1,1\n", "repeated-column", "has column 'y' more than once"),
    ("age;dose;y\n4711;2;0\n1;2;0\n", "missing-column", "which must be a comma-separated header"),
    (f"{SECRET},4711,0\n1,2,0\n", "missing-column", "none of the columns 'age', 'dose', 'y' in its first line"),
    ("age,4711.5,y\n1,2,0\n3,4,1\n", "missing-column", "has no column 'dose'; it has 'age', 'y'"),
    ("age,dose,y\n" + GOOD + f"{SECRET},4\n", "unreadable-file", "must be comma-separated UTF-8 text"),
    ("age,dose,y\n" + GOOD + f"{SECRET},4,1,7\n", "unreadable-file", "another number of cells"),
    ("age,dose,y\n4711,2,0\n", "too-few-records", "has 1 record(s); a silo needs at least 2"),
    ("age,dose,y\n", "too-few-records", "has 0 record(s)"),
    ("", "missing-column", "in its first line"),
    (b"age,dose,y\n1,2,\xff4711\n3,4,1\n", "unreadable-file", "UTF-8"),
    (b"\xff\xfe4711\x00\n", "unreadable-file", "UTF-8"),
    ("age,dose,y\n" + GOOD + '"4711,2,1\n3,4,1\n', "unreadable-file", "damaged"),  # a quote left open
]


@pytest.mark.parametrize(("text", "code", "words"), CSV_FAULTS, ids=range(len(CSV_FAULTS)))
def test_bad_csv(csv_file, text, code, words):
    error = refused(source(csv_file(text)))
    assert error.code == code and words in error.sentence


TWO = {"age": [1.0, 2.0], "dose": [1.0, 2.0], "y": [0, 1]}
PARQUET_FAULTS = [
    ({"age": [SECRET, "1"]}, "not-numeric", "'age'"),
    ({"age": [[4711.0], [1.0]], "dose": ["4711x", "1"]}, "not-numeric", "'age', 'dose'"),
    ({"age": [{"z": 4711}, {"z": 1}]}, "not-numeric", "'age'"),
    ({"age": pa.array([4711, 1], pa.timestamp("s"))}, "not-numeric", "'age'"),
    ({"dose": [4711.0, None]}, "missing-value", "'dose'"),
    ({"dose": [4711.0, np.nan], "age": [1, None]}, "missing-value", "'age', 'dose'"),
    ({"dose": pa.nulls(2)}, "missing-value", "'dose'"),
    ({"y": [SECRET, "0"]}, "unknown-label", "classes 0 and 1"),
    ({"y": [4711, 0]}, "unknown-label", "classes 0 and 1"),
    ({"y": [4711.0, np.nan]}, "missing-label", "'y'"),
    ({"y": pa.array([4711, None])}, "missing-label", "'y'"),
    ({"y": pa.nulls(2)}, "missing-label", "'y'"),
    ({"y": pa.array([4711, 1], pa.timestamp("s"))}, "unknown-label", "'y'"),
    ({"y": [[4711], [1]]}, "unknown-label", "'y'"),
    ({"y": [{"z": 4711}, {"z": 1}]}, "unknown-label", "'y'"),
]


@pytest.mark.parametrize(("changes", "code", "words"), PARQUET_FAULTS, ids=range(len(PARQUET_FAULTS)))
def test_bad_parquet(parquet_file, changes, code, words):
    error = refused(source(parquet_file(**{**TWO, **changes})))
    assert error.code == code and words in error.sentence


def test_missing_parquet_column_for_both_readers(parquet_file):
    path = parquet_file(age=[1.0, 4711.0], y=[0, 1])
    for read in (open_records, count_records):
        error = refused(source(path), read)
        assert error.code == "missing-column" and "has no column 'dose'; it has 'age', 'y'" in error.sentence


def test_classes_that_cannot_be_told_apart(parquet_file):
    error = refused(source(parquet_file(**TWO), classes=(1, "1")))
    assert error.code == "unknown-label"


@pytest.mark.parametrize("cells", [["a", SECRET], [4711.0, np.nan], [4711.0, np.inf], [4711, None]], ids=range(4))
def test_bad_real_label(parquet_file, cells):
    error = refused(source(parquet_file(**{**TWO, "y": cells}), classes=None))
    assert error.code == ("not-numeric" if cells[0] == "a" else "missing-label") and "'y'" in error.sentence


@pytest.mark.parametrize("read", [open_records, count_records])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_files_that_are_not_there_or_not_whole(tmp_path, read, suffix):
    missing = refused(source(tmp_path / f"none.{suffix}"), read)
    assert missing.code == "missing-file" and "does not exist" in missing.sentence
    folder = tmp_path / f"folder.{suffix}"
    folder.mkdir()
    assert refused(source(folder), read).code == "unreadable-file"


@pytest.mark.parametrize("read", [open_records, count_records])
def test_damaged_parquet(parquet_file, read):
    path = parquet_file(**{**TWO, "note": [SECRET, SECRET]})
    whole = path.read_bytes()
    for damaged in (b"", SECRET.encode() * 9, whole[: len(whole) // 2], whole[: len(whole) // 2] + whole[-40:]):
        path.write_bytes(damaged)
        error = refused(source(path), read)
        assert error.code == "unreadable-file" and "Parquet" in error.sentence


def test_damaged_pages(parquet_file):
    path = parquet_file(age=np.arange(4711.0, 5711.0), dose=np.arange(1000.0), y=[0, 1] * 500)
    whole = bytearray(path.read_bytes())
    whole[4:60] = b"\xff" * 56
    path.write_bytes(whole)
    assert refused(source(path)).code in ("unreadable-file", "internal")


def test_an_unforeseen_failure_tells_its_type_only(parquet_file, monkeypatch):
    def fail(*_):
        raise RuntimeError(SECRET)

    monkeypatch.setattr("fedcore.data.silo_file.prepare_records", fail)
    error = refused(source(parquet_file(**TWO)))
    assert error.code == "internal" and "RuntimeError" in error.sentence


def test_long_headers_are_cut(csv_file):
    header = ",".join(f"c{i}" for i in range(500))
    error = refused(source(csv_file(f"{header},y\n" + "1," * 500 + "0\n")))
    assert "and 481 more" in error.sentence and len(error.sentence) < 600


def test_a_parquet_file_is_read_on_no_thread_of_its_own(tmp_path):
    """A thread that still holds the file when the interpreter ends aborts the process (Arrow issue 34314)."""
    path = tmp_path / "north.parquet"
    pa.parquet.write_table(pa.table({"age": [1.0, 2.0], "dose": [3.0, 4.0], "y": [0, 1]}), path)
    script = (
        "import os\n"
        "from fedcore.data.columns import count_rows, read_columns\n"
        "threads = len(os.listdir('/proc/self/task'))\n"
        f"assert count_rows({str(path)!r}, 'parquet', ['y']) == 2\n"
        f"assert read_columns({str(path)!r}, 'parquet', ['age', 'y']).num_rows == 2\n"
        "raise SystemExit(len(os.listdir('/proc/self/task')) - threads)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_no_thread_of_pyarrow_holds_a_python_file(tmp_path, monkeypatch):
    """It reads ahead of its CSV parser in a thread; one that needs the interpreter as it ends aborts the process."""
    path, handed = tmp_path / "a.csv", []
    path.write_text("a,b\n1,2\n3,4\n")
    for name in ("read_csv", "open_csv"):
        real = getattr(pa.csv, name)
        monkeypatch.setattr(pa.csv, name, lambda file, real=real, **k: handed.append(file) or real(file, **k))
    assert columns.count_rows(str(path), "csv", ["a"]) == 2
    assert columns.read_columns(str(path), "csv", ["b"]).column("b").to_pylist() == ["2", "4"]
    assert [type(file) for file in handed] == [pa.OSFile, pa.OSFile] and all(file.closed for file in handed)
