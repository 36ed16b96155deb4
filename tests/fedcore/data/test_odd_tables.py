"""Odd tables of users and the findings of `check`: faults, doubts, which fail a table too, and notes."""

from __future__ import annotations

import gzip
import os
import unicodedata
from datetime import date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet
import pytest

from fedcore.data.checks.rows_of_text import rows_of_text
from fedcore.data.dataset import facts
from fedcore.data.inspection import inspected
from fedcore.data.schema import Column
from fedcore.data.silo_file import SiloSource, count_records, open_records
from fedcore.data.tabular import FilesData
from fedcore.errors import InputError, SiloError
from fedcore.models.model_config import ModelConfig

AGE = Column(name="age", range=(20, 90))
N = 24


def source(path, *schema, classes=(0, 1), **changes):
    described = schema or (AGE,)
    return SiloSource(
        name="north",
        path=str(path),
        format="csv" if str(path).endswith(".csv") else "parquet",
        features=tuple(column.name for column in described),
        label="ill",
        classes=classes,
        bias=True,
        feature_bound=1.0,
        divide_by=1.0,
        version="v",
        schema=described,
        **changes,
    )


@pytest.fixture
def text(tmp_path):
    def write(rows, header="age,ill", encoding="utf-8", end="\n"):
        path = tmp_path / "n.csv"
        path.write_bytes("".join(line + end for line in (header, *rows)).encode(encoding))
        return path

    return write


@pytest.fixture
def parquet(tmp_path):
    def write(cells, type=None, name="kind"):
        table = {"age": [30 + k for k in range(N)], name: pa.array([cells[k % len(cells)] for k in range(N)], type)}
        path = tmp_path / "n.parquet"
        pa.parquet.write_table(pa.table({**table, "ill": [k % 2 for k in range(N)]}), path)
        return path

    return write


ROWS = [f"{30 + k},{k % 2}" for k in range(N)]


def kind(*values, **more):
    return Column(name="kind", categories=values, **more)


NOWHERE = [
    # Cells, their type, the categories that none of them is, how they may be meant, and a cell that is a category.
    (["Male", "Female"], None, ("male", "female"), "'Male' for 'male' (other capitals)", "male"),
    ([unicodedata.normalize("NFD", each) for each in "éü"], None, ("é", "ü"), "another Unicode form", "é"),
    (["2019", "2020"], None, ("Jan", "Feb"), None, "Feb"),
    (["01", "02"], None, (1, 2), "'01' for 1 (another spelling of a number)", "1"),
    (["12e4", "13e4"], None, (120000, 130000), "another spelling of a number", "120000"),
    (["male\0\0", "female\0"], None, ("male", "female"), "invisible characters", "male"),
    ([0.1, 0.2], pa.float32(), (0.1, 0.5), None, 0.5),
    ([Decimal(2**53), Decimal(2**53 + 2)], pa.decimal128(20, 0), (2**53 + 1, 7), None, Decimal(7)),
]


@pytest.mark.parametrize(("cells", "type", "values", "near", "fitting"), NOWHERE)
def test_a_column_that_fits_no_cell_is_no_file_that_fits(parquet, cells, type, values, near, fitting):
    path = parquet(cells, type)
    found = inspected(source(path, AGE, kind(*values)))
    assert found.faults == [] and len(found.doubts) == 1
    assert found.doubts[0].startswith("column 'kind': not one of its cells is one of its categories")
    assert (near is not None) == any(near in note for note in found.notes if near is not None)
    assert open_records(source(path, AGE, kind(*values))).n == N  # no outcome of a run depends on it
    # One cell that fits is a table that was meant, with a note of the others.
    also = inspected(source(parquet([*cells, fitting], type), AGE, kind(*values)))
    assert also.doubts == [] and any("are none of its categories" in note for note in also.notes)


TYPES = [
    ([b"male", b"female"], pa.binary(), "bytes are no text"),
    ([b"male"], pa.large_binary(), "bytes are no text"),
    ([b"male"], pa.binary(4), "bytes are no text"),
    ([date(2020, 1, 1)], None, "no date or time"),
    ([datetime(2020, 1, 1)], pa.timestamp("ms", "Europe/Berlin"), "no date or time"),
    ([timedelta(days=1)], pa.duration("s"), "no date or time"),
    ([["male"]], None, "no list or structure"),
    ([{"a": "male"}], None, "no list or structure"),
    ([1, 2], None, "none of its values is such a number"),
    ([0.5], None, "none of its values is such a number"),
    ([Decimal("1.5")], None, "none of its values is such a number"),
    ([True, False], None, "none of its values is such a number"),
]


@pytest.mark.parametrize(("cells", "type", "words"), TYPES)
def test_a_type_in_which_no_cell_can_fit_is_refused_before_a_record_is_read(parquet, cells, type, words, monkeypatch):
    of = source(parquet(cells, type), AGE, kind("male", "female"))
    assert any(words in fault and "'kind'" in fault for fault in inspected(of).faults)
    monkeypatch.setattr("fedcore.data.columns.read_columns", lambda *_: pytest.fail("a plan reads no record"))
    with pytest.raises(SiloError, match=words) as caught:
        count_records(of)
    assert caught.value.code == "contents"


def test_a_date_is_no_number_and_a_plan_says_so(parquet, tmp_path):
    path = parquet([datetime(1970, 1, 2)], pa.timestamp("us", "UTC"))
    values = {"silos": [{"name": "north", "path": str(path)}], "label": "ill"}
    for features in ({"age": {"range": [0, 90]}, "kind": {"range": [0, 1]}}, ["age", "kind"]):
        with pytest.raises(InputError, match=r"column 'kind': its type in the file is timestamp\[us, tz=UTC\]"):
            facts(FilesData.model_validate({**values, "features": features}), ModelConfig(), 0)
    of_label = FilesData.model_validate({**values, "features": ["age"], "label": "kind"})
    with pytest.raises(InputError, match=r"column 'kind'.*one of its values"):
        facts(of_label, ModelConfig(), 0)


@pytest.mark.parametrize(
    ("values", "type", "categories"),
    [
        ([1, 2], None, (1, "x")),
        ([True], None, ("true", "x")),
        ([1.5], None, ("1.5",)),
        (["x"], None, (7, "x")),
        ([None], pa.null(), ("x",)),
        (["x"], pa.dictionary(pa.int8(), pa.string()), ("x",)),
    ],
)
def test_a_type_in_which_a_cell_may_fit_is_taken(parquet, values, type, categories):
    assert count_records(source(parquet(values, type), AGE, kind(*categories))) == N


def test_a_number_in_another_unit_is_no_file_that_fits(text):
    found = inspected(source(text([f"{12 * (30 + k)},{k % 2}" for k in range(N)])))
    assert found.faults == [] and "none of its 24 values lies within range [20, 90]" in found.doubts[0]
    some = inspected(source(text(["600,0", *ROWS])))
    assert some.doubts == [] and some.notes == ["column 'age': 1 of 25 values lie outside of range [20, 90]"]
    real = inspected(source(text(ROWS), classes=None, label_range=(10.0, 20.0)))
    assert real.doubts == ["label 'ill': none of 24 cells lies within data.label_range [10, 20]"]


def test_a_quote_that_is_not_closed_is_told_with_the_lines_it_takes(text):
    """Rows 40 to 70 of 120 become one cell of an unused column."""
    rows = [f"{30 + k % 40},{k % 2},note {k}" for k in range(120)]
    rows[40], rows[70] = '40,0,"note 40', '70,0,note" 70'
    found = inspected(source(text(rows, "age,ill,note")))
    assert found.rows == 90 and found.faults == []
    assert found.doubts[0].startswith("30 lines of the file are inside of cells and look like rows")
    assert any("1 cell(s) have line breaks, up to 30 in one (column(s) 'note')" in note for note in found.notes)
    # In the middle of a row, over two lines only.
    rows = [f"{30 + k % 40},note {k},{k % 2}" for k in range(120)]
    rows[40], rows[41] = '40,"note, 40,1', '41,note" 41,0'
    assert rows_of_text(str(text(rows, "age,note,ill"))).swallowed == 0, "one comma more is a text's"
    rows[40] = '40,"note 40,1'
    assert rows_of_text(str(text(rows, "age,note,ill"))).swallowed == 1


def test_texts_of_several_lines_are_a_note(text):
    rows = [f'{30 + k},{k % 2},"said, so\n{k}, and on, and on\nthen no more"' for k in range(N)]
    found = inspected(source(text(rows, "age,ill,note")))
    assert found.rows == N and found.faults == found.doubts == []
    assert found.notes == [
        "24 cell(s) have line breaks, up to 2 in one (column(s) 'note'): each is text in quotes that goes on in the "
        "next line"
    ]


def test_rows_that_repeat_the_header_are_told(text):
    path = text(ROWS, encoding="utf-8-sig")
    path.write_bytes(path.read_bytes() * 3)
    found = inspected(source(path))
    assert found.rows == 3 * N + 2 and found.doubts == [
        "2 row(s) repeat the header: several files are one behind the other; take these rows out"
    ]


def test_rows_of_nothing_and_characters_that_nobody_sees_are_notes(text):
    rows = [f"{row},a" for row in ROWS] + [",,", " , ,"]
    found = inspected(source(text(rows, "age,ill,note"), Column(name="age", range=(20, 90), missing=())))
    assert "2 row(s) have empty cells only, and count as records" in found.notes
    found = inspected(source(text([f"{row},a\0b" for row in ROWS], "age,ill,note")))
    assert found.notes == ["24 cell(s) have null or other control characters (column(s) 'note')"]
    latin = text([f"{row},é" for row in ROWS], "age,ill,note", encoding="latin-1")
    found = inspected(source(latin))
    assert found.faults == [] and "column(s) 'note' are in another encoding than UTF-8" in found.notes[0]
    whole = inspected(source(text([f",{k % 2}" for k in range(N)]), Column(name="age", range=(20, 90), missing=())))
    assert whole.notes == ["column 'age': all of its 24 cells are missing"]


NUMERALS = [
    ('"{},5"', "24 seem numbers with a decimal comma; write a point"),
    ('"1,0{}"', "24 seem numbers with a comma, of decimals or of thousands"),
    ('"1,0{},000.5"', "24 seem numbers with separators of thousands"),
    ("1\u202f0{}", "24 seem numbers with separators of thousands"),
    ("{}%", "24 seem percentages"),
    ("{} %", "24 seem percentages"),
    ("€{}", "24 seem sums of money"),
    ("{} $", "24 seem sums of money"),
    ("{} years", "24 seem numbers with a unit"),
    ("{}kg", "24 seem numbers with a unit"),
    ("<{}", "24 seem bounds and no values"),
    ("≥ {}", "24 seem bounds and no values"),
    ("({})", "24 seem negative numbers in brackets"),
    ("{}-", "24 seem negative numbers in brackets"),
    ("1_0{}", "24 seem numbers with an integer's underscores"),
    ("0x{}", "24 seem hexadecimal numbers"),
    ("{}-40", "24 seem fractions or ranges"),
    ("{}/40", "24 seem fractions or ranges"),
    ("2020-01-{}", "24 seem dates or times"),
    ("1.1.20{}", "24 seem dates or times"),
    ("{}:00", "24 seem dates"),
    ("\N{MINUS SIGN}{}", "24 seem numbers in other digits, or with invisible characters"),
    ("yes", "24 seem answers; write 1 and 0"),
    ("unknown", "24 seem codes for a missing value"),
    ("?", "24 seem codes for a missing value"),
    ("{}e999", "24 seem numbers beyond what a float holds"),
    ("-inf", "24 seem infinite"),
]


@pytest.mark.parametrize(("form", "words"), NUMERALS)
def test_texts_among_numbers_are_named_as_what_they_are(text, form, words):
    found = inspected(source(text([f"{form.format(30 + k)},{k % 2}" for k in range(N)])))
    assert len(found.faults) == 1 and words in found.faults[0] and "24 of 24 cells are no numbers" in found.faults[0]


def test_true_among_numbers_counts_as_one_with_a_note(text):
    found = inspected(source(text(["true,1", "FALSE,0", *ROWS])))
    assert "column 'age': 2 of 26 cells are true or false, and count as 1 and 0" in found.notes
    alone = inspected(source(text([f"true,{k % 2}" for k in range(N)]), Column(name="age", range=(0, 1))))
    assert alone.notes == []


def test_codes_for_missing_values_in_doubt_are_values_with_a_note(text):
    rows = [f"0777,{k % 2}" for k in range(4)]
    column = Column(name="age", range=(0, 1000), missing=("777",))
    found = inspected(source(text([*rows, *ROWS]), column))
    assert any("4 cells are no code for missing, and may be meant as one: '0777' for '777'" in n for n in found.notes)
    features = column.features(pa.chunked_array([["0777", "777", "777.0"]]))
    assert features[:, 1].tolist() == [0, 1, 1]
    # A code that is a number is one in a column of numbers however it is spelled.
    number = Column(name="age", range=(0, 1000), missing=(777,))
    assert number.features(pa.chunked_array([["0777", "777", "7.77e+02", "776"]]))[:, 1].tolist() == [1, 1, 1, 0]
    # In a column of categories 0777 is another text.
    of_kind = kind("a", missing=(777,))
    assert of_kind.features(pa.chunked_array([["0777", "777", "a"]])).tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0]]


def test_labels_in_doubt_are_no_class_and_the_operator_hears_which_they_may_be(text):
    found = inspected(source(text([f"30,0{k % 2}" for k in range(N)])))
    assert "label 'ill': 24 of 24 cells do not fit" in found.faults[0]
    assert "'00' for 0 (another spelling of a number)" in found.notes[0]
    found = inspected(source(text([f"30,{('No', 'Yes')[k % 2]}" for k in range(N)]), classes=("no", "yes")))
    assert "'No' for 'no' (other capitals)" in found.notes[0]


@pytest.mark.parametrize("key", ["categories", "missing"])
@pytest.mark.parametrize("value", [9007199254740993.0, -1e300])
def test_a_float_that_may_be_another_number_is_no_value_of_a_column(key, value):
    more = {"categories": (value, 7)} if key == "categories" else {"range": (0, 1), "missing": (value,)}
    with pytest.raises(ValueError, match=f"{key} has .*write it as a whole number, or as a text in quotes"):
        Column(name="x", **more)
    assert Column(name="x", categories=(2**53 + 1, 2**53, "9007199254740994.0", 0.5)).names[0] == f"x={2**53 + 1}"


FOREIGN = [
    (lambda whole: whole.decode().encode("utf-16"), "is text in UTF-16"),
    (lambda whole: whole.decode().encode("utf-16-be"), "UTF-16 or UTF-32, without its mark"),
    (lambda whole: whole.decode().encode("utf-32"), "is text in UTF-32"),
    (lambda whole: whole.replace(b"31,", b"3\xe9,"), "another encoding than UTF-8, Latin-1 or Windows-1252"),
    (gzip.compress, "is compressed (gzip)"),
    (lambda _: b"PK\x03\x04" + bytes(range(200)), "is a ZIP archive, as spreadsheets (.xlsx) are"),
    (lambda _: b"\xd0\xcf\x11\xe0" + bytes(range(200)), "is a spreadsheet (.xls)"),
    (lambda whole: whole.replace(b",", b";"), "separated by semicolons"),
    (lambda whole: whole.replace(b",", b"\t"), "separated by tabs"),
    (lambda whole: whole.replace(b",", b"|"), "separated by bars"),
    (lambda whole: b"sep=;\n" + whole.replace(b",", b";"), "what its first line says (sep=..)"),
    (lambda whole: b"".join(b'"%s"\n' % line for line in whole.split(b"\n")[:-1]), "as each line as a whole is in q"),
    (lambda whole: whole.replace(b"\n", b",\n").replace(b"ill,", b"ill"), "its lines end in a comma"),
    (lambda whole: whole.replace(b"31,", b"3,1,"), "texts or decimals with commas need quotes"),
    (lambda whole: whole.replace(b"31,", b'"31,'), "a quote is opened in it and never closed"),
]


@pytest.mark.parametrize(("spoil", "words"), FOREIGN, ids=[words for _, words in FOREIGN])
def test_a_file_that_is_no_csv_is_named_as_what_it_is(text, spoil, words):
    path = text(ROWS)
    path.write_bytes(spoil(path.read_bytes()))
    (fault,) = inspected(source(path)).faults
    assert words in fault and "30," not in fault
    with pytest.raises(SiloError) as caught:
        open_records(source(path))
    assert words in caught.value.sentence


def test_a_parquet_file_and_a_text_of_each_other_s_name_are_named(parquet, text):
    os.rename(parquet(["a"]), path := text(ROWS))
    assert "is a Parquet file, whose name must end in .parquet" in inspected(source(path)).faults[0]
    other = path.with_suffix(".parquet")
    other.write_text("age,ill\n30,1\n")
    assert "is text; it must be a whole Parquet file" in inspected(source(other)).faults[0]


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_line_ends_of_every_system_are_read(text, end):
    path = text(ROWS, end=end, encoding="utf-8-sig")
    found = inspected(source(path))
    assert (found.rows, found.faults, found.doubts, found.notes) == (N, [], [], [])
    assert count_records(source(path)) == N


def test_a_column_named_in_another_unicode_form_is_told_as_that(text):
    path = text(ROWS, unicodedata.normalize("NFD", "âge") + ",ill")
    (fault,) = inspected(source(path, Column(name="âge", range=(20, 90)))).faults
    assert "has no column 'âge', except with other capitals or blanks, or in another Unicode form" in fault


def test_check_counts_merged_persons_and_rows_that_do_not_count(text):
    rows = [f"{who},{30 + k},{k % 2}" for k, who in enumerate(["007", "7", "7.0", "x", "X", "12e4", "13e4"] * 3)]
    found = inspected(source(text(rows, "who,age,ill"), person="who", person_rows=4))
    assert found.persons == 4 and found.faults == found.doubts == []
    assert "column 'who': 5 spellings are 2 persons, since each may name one" in found.notes[0]
    assert "column 'who': 2 ids look like numbers in exponent form (12e45678)" in found.notes[1]
    assert found.notes[2].endswith("their first 4 count, and 7 of 21 rows do not")
