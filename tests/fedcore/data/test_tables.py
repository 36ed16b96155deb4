"""Public tables split at random: small files of each shape, every record in one place, public constants, bad files."""

from __future__ import annotations

import csv
import gzip
import io
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sklearn import datasets

from fedcore.configfile.reading import validated
from fedcore.data.dataset import facts, prepare
from fedcore.data.schema import feature_names, longest
from fedcore.data.silo_file import open_records
from fedcore.data.sources.tables.catalogue import TABLES
from fedcore.data.sources.tables.split import TablesData, check_table, fingerprint, silo_sizes, tables
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import make_plan
from fedcore.models.model_config import ModelConfig

Row = list[object]

CALIFORNIA = [
    "longitude",
    "latitude",
    "housing_median_age",
    "total_rooms",
    "total_bedrooms",
    "population",
    "households",
    "median_income",
    "median_house_value",
    "ocean_proximity",
]
TURBINE = ["AT", "AP", "AH", "AFDP", "GTEP", "TIT", "TAT", "TEY", "CDP", "CO", "NOX"]
JOINED = [
    "Ambient temperature",
    "Ambient pressure",
    "Ambient humidity",
    "Air filter difference pressure",
    "Gas turbine exhaust pressure",
    "Turbine inlet temperature",
    "Turbine after temperature",
    "Compressor discharge pressure",
    "Turbine energy yield",
    "Carbon monoxide",
    "Nitrogen oxides",
]
SQUARED = validated(ModelConfig, {"loss": {"name": "squared"}, "clip": 1}, "test")
SOFTMAX = validated(ModelConfig, {"loss": {"name": "softmax"}}, "test")


def district(k: int) -> Row:
    """A made-up record, different from all others; the functions below make others."""
    rooms = "" if k == 3 else 400 + k
    return [
        -120 + k / 100,
        34 + k % 7,
        10 + k % 40,
        2000 + 7 * k,
        rooms,
        1000 + k,
        450 + k % 90,
        2.5 + k % 5,
        90000 + 1000 * k,
        "NEAR BAY",
    ]


def hour(k: int) -> Row:
    return [
        15 + k / 50,
        1010 + k % 9,
        70 + k % 20,
        4.1,
        25 + k % 4,
        1080.5,
        548.25,
        130 + k % 30,
        11 + k % 3 / 2,
        0.5 + k / 40,
        60 + k % 20,
    ]


def post(k: int) -> Row:
    return [*((k * place) % 7 for place in range(1, 281)), float(k)]


def patch(k: int) -> Row:
    areas = [int(place == k % 4) for place in range(4)]
    soils = [int(place == k % 40) for place in range(40)]
    return [2500 + k, 100, 12, 250, -20, 1500 + k, 220, 230, 140, 1900, *areas, *soils, 1 + k % 7]


def connection(k: int) -> Row:
    start = [k, ["tcp", "udp", "icmp"][k % 3], ["http", "private", "ecr_i"][k % 3], ["SF", "S0", "REJ"][k % 3], 200 * k]
    return [
        *start,
        0,
        *[0] * 5,
        k % 2,
        *[0] * 10,
        5 + k,
        4,
        *[0.25] * 7,
        255,
        k,
        *[0.5] * 8,
        ["normal.", "smurf.", "spy."][k % 3],
    ]


def write(path: Path, rows: list[Row], header: list[str] | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    csv.writer(text).writerows([*([header] if header else []), *rows])
    data = text.getvalue().encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def made(folder: Path, table: str, n: int) -> str:
    """A folder with n records of a table, in the table's published files."""
    if table == "california":
        write(folder / "housing.csv.gz", [district(k) for k in range(n)], CALIFORNIA)
    elif table == "gas-turbine":
        write(folder / "gas-turbine.csv", [hour(k) for k in range(n)], JOINED)
    elif table == "blog-feedback":
        ends = [0, n // 2, 3 * n // 4, n]
        names = ["blogData_train.csv", "blogData_test-2012.02.01.00_00.csv", "blogData_test-2012.02.02.00_00.csv.gz"]
        for name, first, last in zip(names, ends, ends[1:], strict=False):
            write(folder / name, [post(k) for k in range(first, last)])
    elif table == "covertype":
        write(folder / "covtype.data.gz", [patch(k) for k in range(n)])
    else:
        write(folder / "kddcup.data_10_percent.gz", [connection(k) for k in range(n)])
    return str(folder)


def by_hand(table: str, row: Row) -> list[float]:
    """A record's features as numbers, with the label last."""
    if table == "california":
        return [math.nan if cell == "" else float(cell) for cell in row[:9]]
    if table == "gas-turbine":
        return [float(cell) for cell in row[:10]]
    if table == "covertype":
        return [*map(float, row[:-1]), float(row[-1]) - 1]
    if table == "kdd99":
        texts, classes = TABLES["kdd99"].texts, TABLES["kdd99"].classes
        named = {1: "protocol_type", 2: "service", 3: "flag"}
        numbers = [float(texts[named[k]].index(cell) if k in named else cell) for k, cell in enumerate(row[:-1])]
        return [*numbers, float(classes.index(row[-1]))]
    return [float(cell) for cell in row]


ROWS: dict[str, Callable[[int], Row]] = {
    "california": district,
    "gas-turbine": hour,
    "blog-feedback": post,
    "covertype": patch,
    "kdd99": connection,
}


@pytest.mark.parametrize("table", ROWS)
def test_every_record_of_a_file_is_in_one_place_or_one_of_the_few_that_do_not_divide(table, tmp_path):
    data = TablesData(table=table, folder=made(tmp_path, table, 53), silos=5)
    # ceil(0.2 x 53) = 11 are test records; of 42 each silo has 8.
    assert silo_sizes(data) == {f"silo-00{k}": 8 for k in range(5)}
    generated = tables(data, 7)
    assert {len(held.labels) for held in generated.silos.values()} == {8} and len(generated.test.labels) == 11
    parts = [*generated.silos.values(), generated.test]
    found = [tuple(row) for part in parts for row in np.column_stack([part.features, part.labels]).tolist()]
    wanted = [tuple(by_hand(table, ROWS[table](k))) for k in range(53)]

    def whole(rows: list[tuple[float, ...]]) -> set[tuple[str, ...]]:
        return {tuple(map(str, row)) for row in rows}

    assert len(found) == 51 == len(whole(found)) and whole(found) <= whole(wanted)
    assert generated.features == tuple(column.name for column in TABLES[table].schema)


def test_who_has_what_is_drawn_by_the_seed(tmp_path):
    data = TablesData(table="gas-turbine", folder=made(tmp_path, "gas-turbine", 60), silos=3)
    first, again, other = (tables(data, seed) for seed in (1, 1, 2))
    for name in first.silos:
        np.testing.assert_array_equal(first.silos[name].features, again.silos[name].features)
        assert not np.array_equal(first.silos[name].labels, other.silos[name].labels)
    np.testing.assert_array_equal(first.test.labels, again.test.labels)
    assert set(first.test.labels) != set(other.test.labels)


def test_sizes_are_those_of_the_paper():
    sizes = {20_640: 1651, 36_733: 2938, 60_021: 4801, 581_012: 46_480}
    for records, each in sizes.items():
        assert (records - math.ceil(0.2 * records)) // 10 == each
    # Of 442: 89 and 353; of 569: 114 and 455; of 1,797: 360 and 1,437.
    for table, each in {"diabetes": 35, "breast-cancer": 45, "digits": 143}.items():
        assert set(silo_sizes(TablesData(table=table)).values()) == {each}
        held = tables(TablesData(table=table), 0)
        assert {len(one.labels) for one in held.silos.values()} == {each}


@pytest.mark.parametrize("table", ROWS)
def test_features_and_label_follow_from_a_record_and_public_constants_alone(table, tmp_path):
    model = SQUARED if TABLES[table].label_range else SOFTMAX
    schema = TABLES[table].schema
    model = model.model_copy(update={"feature_bound": math.hypot(longest(schema), 1.0)})
    held: dict[str, list[np.ndarray]] = {}
    for n in (40, 80):
        data = TablesData(table=table, folder=made(tmp_path / str(n), table, n), silos=2)
        ready = prepare(data, model, 0, tmp_path / "silos")
        assert (ready.facts, ready.dim) == facts(data, model, 0)
        assert ready.dim == len(feature_names(schema)) + 1
        opened = [*(open_records(source) for source in ready.sources), ready.test]
        held[str(n)] = [np.concatenate([r.X for r in opened]), np.concatenate([r.y for r in opened])]
        assert np.isfinite(held[str(n)][0]).all()
    # With the longest record's norm as bound features keep their size; twice the records change none of them.
    few, many = (np.column_stack(held[n]) for n in ("40", "80"))
    for record in few:
        assert np.abs(many - record).max(axis=1).min() < 1e-12


def test_what_becomes_of_cells_by_hand(tmp_path):
    rows = [district(k) for k in range(12)]
    rows[4][3], rows[5][8] = 90_000, 700_000  # rooms beyond 10 scales, a value beyond the census's code
    write(tmp_path / "in" / "housing.csv", rows, CALIFORNIA)
    bound = math.hypot(longest(TABLES["california"].schema), 1.0)
    model = SQUARED.model_copy(update={"feature_bound": bound})
    data = TablesData(table="california", folder=str(tmp_path / "in"), silos=1, test_fraction=0.1)
    ready = prepare(data, model, 0, tmp_path / "silos")
    assert ready.test is not None and ready.test.n == 2
    held = [open_records(ready.sources[0]), ready.test]
    found = {round(float(record[2] * 12.5 + 29)): record for one in held for record in one.X}
    third = found[10 + 3]  # its bedrooms are missing
    expected = [(-119.97 + 119.5) / 2, (37 - 35.5) / 2, -16 / 12.5, -579 / 2200, 0, -397 / 1100, -47 / 380, 0.75, 1]
    np.testing.assert_allclose(third, expected, rtol=0, atol=1e-9)
    assert found[14][3] == pytest.approx(10, abs=1e-9)
    labels = np.concatenate([one.y for one in held])
    assert 0.17 < labels.min() < 0.19 and labels.max() == (1.0 if held[0].y.max() == 1.0 else 700_000 / 500_001)
    kdd = TABLES["kdd99"].schema
    by_name = {column.name: column for column in kdd}
    assert by_name["src_bytes"].unit(np.array([0.0, 150.0, 3019.0])) == pytest.approx(
        [-math.log(151) / math.log(20), 0, 1]
    )
    assert by_name["num_root"].unit(np.array([0.0, 1.0, 3.0])).tolist() == [0, 1, 2]
    assert sum(len(column.names) for column in kdd if column.categories) == 3 + 70 + 11
    assert len(TABLES["kdd99"].classes) == 23 and len(TABLES["blog-feedback"].schema) == 280


def test_a_table_may_come_in_other_files(tmp_path):
    write(tmp_path / "torgo" / "cal_housing.data", [district(k)[:9] for k in range(20) if k != 3])
    assert silo_sizes(TablesData(table="california", folder=str(tmp_path / "torgo"), silos=3)) == {
        "silo-000": 5,
        "silo-001": 5,
        "silo-002": 5,
    }
    for year, first in (("2011", 0), ("2012", 10)):
        write(tmp_path / "uci" / f"gt_{year}.csv", [hour(k) for k in range(first, first + 10)], TURBINE)
    joined = TablesData(table="gas-turbine", folder=made(tmp_path / "joined", "gas-turbine", 20), silos=2)
    yearly = joined.model_copy(update={"folder": str(tmp_path / "uci")})
    one, other = tables(joined, 0), tables(yearly, 0)
    for name in one.silos:
        np.testing.assert_array_equal(one.silos[name].features, other.silos[name].features)


def test_plain_and_gzipped_files_in_any_folder_are_the_same_data(tmp_path):
    rows = [connection(k) for k in range(30)]
    write(tmp_path / "a" / "kddcup.data_10_percent", rows)
    write(tmp_path / "b" / "kddcup.data_10_percent.gz", rows)
    write(tmp_path / "c" / "kddcup.data_10_percent", [*rows[:-1], connection(31)])
    names = [
        prepare(TablesData(table="kdd99", folder=str(tmp_path / k), silos=2), SOFTMAX, 0, tmp_path / "silos").name
        for k in "abc"
    ]
    assert names[0] == names[1] != names[2]
    assert fingerprint(TablesData(table="kdd99", folder=str(tmp_path / "a"))) == fingerprint(
        TablesData(table="kdd99", folder=str(tmp_path / "b"))
    )


def test_a_file_that_changes_in_its_place_is_read_anew(tmp_path):
    data = TablesData(table="gas-turbine", folder=made(tmp_path, "gas-turbine", 20), silos=2)
    assert silo_sizes(data)["silo-000"] == 8
    made(tmp_path, "gas-turbine", 40)
    assert silo_sizes(data)["silo-000"] == 16


def put(rows: list[Row], row: int, column: int, value: object) -> list[Row]:
    rows[row][column] = value
    return rows


@pytest.mark.parametrize(
    ("table", "change", "sentence"),
    [
        ("gas-turbine", lambda rows: put(rows, 3, 2, ""), r"turbine\.csv: column 'AH' of record 4 is missing; it must"),
        ("gas-turbine", lambda rows: put(rows, 0, 9, "much"), "column 'CO' of record 1 is 'much'; it must be a num"),
        ("gas-turbine", lambda rows: put(rows, 1, 0, "inf"), "column 'AT' of record 2 is '?inf'?; it must be a n"),
        ("gas-turbine", lambda rows: put(rows, 5, 5, "NaN"), "column 'TIT' of record 6 is missing"),
        ("gas-turbine", lambda rows: [*rows[:4], rows[4][:-1], *rows[5:]], "record 5 has 10 cells; it must have 11$"),
        ("california", lambda rows: put(rows, 6, 4, "many"), "'total_bedrooms' of record 7 is 'many'; it must"),
        ("california", lambda rows: put(rows, 6, 4, "inf"), "'total_bedrooms' of record 7 is '?inf'?; it mu"),
        ("california", lambda rows: put(rows, 6, 8, ""), "'median_house_value' of record 7 is missing"),
        ("kdd99", lambda rows: put(rows, 2, 2, "telepathy"), "'service' of record 3 is 'telepathy'; it must be one of"),
        ("kdd99", lambda rows: put(rows, 2, 41, "odd."), r"'type' of record 3 is 'odd\.'; it .*, normal\. and 11 m"),
        ("kdd99", lambda rows: put(rows, 8, 4, "x"), r"percent\.gz: column 'src_bytes' of record 9 is 'x'"),
        ("kdd99", lambda rows: [rows[0][:-1], *rows[1:]], "record 1 has 41 cells; it must have 42, without a header"),
        ("kdd99", lambda rows: [*rows[:2], [*rows[2], 1], *rows[3:]], "record 3 has 43 cells; it must have 42$"),
        ("covertype", lambda rows: put(rows, 4, 54, 8), "'cover_type' of record 5 is '8'; it must be one of 1, 2, 3"),
        ("covertype", lambda rows: put(rows, 4, 0, "high"), "'elevation' of record 5 is 'high'"),
    ],
)
def test_cells_and_lines_that_do_not_fit_are_refused_with_a_sentence(table, change, sentence, tmp_path):
    headers = {"gas-turbine": JOINED, "california": CALIFORNIA}
    name = Path(made(tmp_path / "in", table, 1)).iterdir().__next__().name
    write(tmp_path / "in" / name, change([ROWS[table](k) for k in range(20)]), headers.get(table))
    data = TablesData(table=table, folder=str(tmp_path / "in"), silos=3)
    with pytest.raises(InputError, match=sentence) as refused:
        prepare(data, SQUARED if TABLES[table].label_range else SOFTMAX, 0, tmp_path / "silos")
    assert "\n" not in str(refused.value) and refused.value.__cause__ is None
    assert not list((tmp_path / "silos").glob("tables*"))


def test_a_bad_cell_of_a_pooled_file_is_told_by_its_own_file(tmp_path):
    folder = made(tmp_path, "blog-feedback", 40)
    path = tmp_path / "blogData_test-2012.02.01.00_00.csv"
    write(path, put([post(k) for k in range(4)], 2, 61, "long"))
    with pytest.raises(InputError, match=rf"file {path}: column 'x062' of record 3 is 'long'; it must be a number$"):
        tables(TablesData(table="blog-feedback", folder=folder, silos=2), 0)


def test_files_that_are_missing_or_damaged_are_refused_with_a_sentence(tmp_path):
    wanted = {
        "california": r"needs housing\.csv; or cal_housing\.data in ",
        "gas-turbine": r"needs gas-turbine\.csv; or gt_20\*\.csv in ",
        "blog-feedback": r"needs blogData_train\.csv and blogData_test\*\.csv in ",
        "covertype": r"needs covtype\.data in ",
        "kdd99": r"needs kddcup\.data_10_percent in .*, each plain or with \.gz at its end; nothing is downloaded",
    }
    for table, sentence in wanted.items():
        with pytest.raises(InputError, match=sentence):
            check_table(table, str(tmp_path / "none"))
    write(tmp_path / "blogData_train.csv", [post(0)])  # and no file of the test
    with pytest.raises(InputError, match="needs blogData_train"):
        check_table("blog-feedback", str(tmp_path))
    path = tmp_path / "covtype.data.gz"
    for data, message in (
        (b"1,2,3", r"covtype\.data\.gz: is damaged or not gzipped"),
        (gzip.compress(b"1,2\n" * 9999)[:-12], "is damaged or not gzipped"),
        (gzip.compress(b""), "has no records"),
    ):
        path.write_bytes(data)
        with pytest.raises(InputError, match=message):
            check_table("covertype", str(tmp_path))
    path.unlink()
    path.mkdir()
    with pytest.raises(InputError, match="needs covtype"):
        check_table("covertype", str(tmp_path))


def test_a_file_that_is_no_text_is_refused_with_a_sentence(tmp_path):
    cells = b",".join([b"\xff\x00"] * 55)
    for content, message in (
        (b"\x00\xff\xfe\n" * 30, "record 1 has 1 cells; it must have 55"),
        (b"\n".join([cells] * 30), r"covtype\.data: is damaged or not CSV; it must be comma-separated UTF-8 text$"),
    ):
        (tmp_path / "covtype.data").write_bytes(content)
        with pytest.raises(InputError, match=message) as refused:
            tables(TablesData(table="covertype", folder=str(tmp_path), silos=2), 0)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("header", [TURBINE[:-1], None, [*TURBINE[:8], "CO", "CDP", "NOX"]])
def test_another_header_is_refused(header, tmp_path):
    write(tmp_path / "gas-turbine.csv", [hour(k) for k in range(20)], header)
    with pytest.raises(InputError, match=r"its first line must be AT,AP,.*; or Ambient temperature,.*; it has 1[01] "):
        tables(TablesData(table="gas-turbine", folder=str(tmp_path), silos=2), 0)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"table": "california"}, r"data\.folder is missing: table california needs the folder that has housing\.csv"),
        ({"table": "blog-feedback"}, r"the folder that has blogData_train\.csv and blogData_test\*\.csv"),
        ({"folder": "x"}, r"data\.folder has no meaning with data\.table = diabetes"),
        ({"test_fraction": 0.002}, r"data\.test_fraction = 0\.002 sets aside 1 of 442 records, but two at least"),
        ({"silos": 200}, r"data\.silos = 200: 442 records, .* sets aside 89, leave 1 to each silo"),
        ({"test_fraction": 0.99}, r"data\.test_fraction = 0\.99 sets aside 438, leave 0 to each silo"),
    ],
)
def test_keys_that_do_not_fit_are_refused_with_a_sentence(changes, sentence):
    base = {
        "model": {"loss": {"name": "squared"}, "clip": 1},
        "privacy": {"epsilon": 1},
        "algorithm": {"name": "mbsgd"},
    }
    with pytest.raises(InputError, match=sentence):
        make_plan(validated(ExperimentConfig, {**base, "data": {"source": "tables", **changes}}, "test"))


@pytest.mark.parametrize(
    ("table", "loss", "sentence"),
    [
        ("diabetes", "logistic", r"the label is a number: choose model\.loss\.name = absolute, huber, "),
        ("digits", "logistic", r"the label has 10: choose model\.loss\.name = softmax, or another data\.table"),
    ],
)
def test_a_loss_that_does_not_fit_the_label_is_refused(table, loss, sentence):
    values = {
        "data": {"source": "tables", "table": table},
        "model": {"loss": {"name": loss}},
        "privacy": {"epsilon": 1},
        "algorithm": {"name": "mbsgd"},
    }
    with pytest.raises(InputError, match=sentence):
        validated(ExperimentConfig, values, "test")


def test_two_classes_are_signs_or_numbers_as_the_loss_takes_them(tmp_path):
    data = TablesData(table="breast-cancer", silos=4)
    signs = prepare(data, ModelConfig(), 3, tmp_path)
    numbers = prepare(data, SOFTMAX, 3, tmp_path)
    assert signs.test is not None and numbers.test is not None
    np.testing.assert_array_equal(signs.test.y, 2 * numbers.test.y - 1)
    held = np.concatenate([open_records(source).y for source in numbers.sources])
    # 212 of 569 are malignant, which is class 1; scikit-learn has it the other way round.
    left = 569 - len(held) - numbers.test.n
    assert 0 <= left < 4 and 212 - left <= held.sum() + numbers.test.y.sum() <= 212
    assert (datasets.load_breast_cancer().target == 0).sum() == 212
