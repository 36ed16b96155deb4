"""A schema's map: against a reading of each cell by itself, and the worst that one record can do."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.configfile.reading import validated
from fedcore.data.dataset import prepare
from fedcore.data.inspection import inspected
from fedcore.data.schema import Column, feature_names, features, longest
from fedcore.data.silo_file import SiloSource, open_records
from fedcore.data.tabular import FilesData
from fedcore.errors import InputError
from fedcore.losses import Logistic, Squared
from fedcore.models import Linear, SoftmaxRegression
from fedcore.models.model_config import ModelConfig

SCHEMA = (
    Column(name="age", range=(20, 80)),
    Column(name="dose", range=(0.1, 1000), log=True, missing=("?", 0)),
    Column(name="pulse", centre=70, scale=15, limit=2, missing=(), fill=100),
    Column(name="kind", categories=("a", 2, "c d"), missing=(-9,)),
    Column(name="sex", categories=(0, 1), other=False),
    Column(name="ratio", centre=2, scale=10, log=True),
)
CELLS = st.one_of(
    st.sampled_from(["", " ", "NA", "?", "a", "2", "2.0", " c d ", "-9", "true", "0", "1e400", "nan", "-inf", 'x"y']),
    st.floats(-2000, 2000).map(repr),
    st.integers(-(10**400), 10**400).map(str),
)


def number(cell):
    """The finite number that a person reads in the cell; None if there is none."""
    text = cell.strip().lower()
    if text in ("true", "false"):
        return float(text == "true")
    if "inf" in text or "nan" in text or "_" in text:
        return None
    try:
        value = float(text)
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None


def by_hand(row):
    """Features of one record, from the schema's description in the docs."""
    age, dose, pulse, kind, sex, ratio = row
    out = []
    v = number(age)
    out.append(0.0 if v is None else (min(max(v, 20.0), 80.0) - 50.0) / 30.0)
    v = number(dose)
    gone = v is None or v == 0
    out += [0.0 if gone else (math.log10(min(max(v, 0.1), 1000.0)) - 1.0) / 2.0, float(gone)]
    v = number(pulse)
    out += [min(max(((100.0 if v is None else v) - 70.0) / 15.0, -2.0), 2.0), float(v is None)]
    text, v = kind.strip(), number(kind)
    blank = text in ("", "NA", "nan")
    which = 0 if text == "a" else 1 if v == 2 else 2 if text == "c d" else 4 if v == -9 or blank else 3
    out += [float(which == k) for k in range(5)]
    v = number(sex)
    out += [float(v == 0), float(v == 1)]
    v = number(ratio)
    out.append(0.0 if v is None else min(max((math.log10(v) if v > 0 else -400) - math.log10(2), -3.0), 3.0))
    return out


def table(rows):
    return pa.table({column.name: [row[j] for row in rows] for j, column in enumerate(SCHEMA)})


@given(st.lists(st.tuples(*[CELLS] * len(SCHEMA)), min_size=1, max_size=5))
def test_features_are_those_of_each_cell_read_by_itself(rows):
    made = features(table(rows), SCHEMA)
    np.testing.assert_allclose(made, [by_hand(row) for row in rows], atol=1e-12)
    assert len(feature_names(SCHEMA)) == made.shape[1] == 13
    assert (np.linalg.norm(made, axis=1) <= longest(SCHEMA) * (1 + 1e-12)).all()


def test_the_longest_record_is_as_long_as_the_schema_says():
    # pulse: filled with (100 - 70) / 15 = 2 beside an indicator of 1: 5 is more than 2^2; ratio: 3 scales.
    row = [("80", "1000", "", "a", "1", "1e300")]
    assert longest(SCHEMA) == pytest.approx(math.sqrt(1 + 1 + 5 + 1 + 1 + 9), rel=1e-15)
    assert np.linalg.norm(features(table(row), SCHEMA)) == pytest.approx(longest(SCHEMA), rel=1e-12)


@pytest.mark.parametrize(
    ("cells", "type"),
    [
        ([1.0, 2.5, None, math.nan, math.inf], pa.float32()),
        ([1, 2, None, 5, 0], pa.int16()),
        ([True, False, None], pa.bool_()),
        (["1", "2.5", None, "nan", "x"], pa.dictionary(pa.int8(), pa.string())),
        ([[1.0], [2.0]], pa.list_(pa.float64())),
        ([b"1", b"x"], pa.binary()),
    ],
)
def test_columns_of_any_type_are_read(cells, type):
    column = pa.chunked_array([pa.array(cells, type)])
    as_number = Column(name="x", range=(0, 4), missing=())
    texts = ["" if cell is None or isinstance(cell, list | bytes) else str(cell) for cell in cells]
    expected = [number(text) for text in texts]
    made = as_number.features(column)
    assert made[:, 1].tolist() == [float(value is None) for value in expected]
    np.testing.assert_allclose(made[:, 0], [0 if value is None else min(value, 4) / 2 - 1 for value in expected])
    assert Column(name="x", categories=(1, "x")).features(column).sum(axis=1).tolist() == [1.0] * len(cells)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"range": [80, 20]}, r"data.features.age: range \[80, 20\] must be .*swapped: write \[20, 80\]"),
        ({"range": [3, 3]}, r"range \[3, 3\] must be \[smallest, largest\]$"),
        ({"range": [-1e308, 1e308]}, "too wide"),
        ({"range": [0, 5], "log": True}, "must start above 0"),
        ({"range": [0, 5], "fill": 6}, "fill 6 must be in the range"),
        ({"range": [0, 5], "limit": 2}, "limit goes with centre and scale"),
        ({"centre": 5}, "needs both"),
        ({"centre": 0, "scale": 2, "log": True}, "centre must be above 0"),
        ({"centre": 5, "scale": 0}, "data.features.age.scale = 0"),
        ({"categories": []}, "data.features.age.categories"),
        ({"categories": [1, 2, "1.0"]}, r"categories has '1.0' twice"),
        ({"categories": ["a", "b", "a"]}, "categories has 'a' twice"),
        ({"categories": [1, 2], "missing": ["2"]}, "'2' is a category and a code for missing"),
        ({"categories": [1, 2], "log": True}, "log and fill go with numbers"),
        ({"range": [0, 5], "categories": [1, 2]}, "needs one of range"),
        ({"range": [0, 5], "missing": [9, 9.0]}, "missing has 9.0 twice"),
        ({"range": [0, 5], "other": False}, "other goes with categories"),
        ({"rnge": [0, 5]}, "data.features.age.rnge is not a known key; did you mean range"),
        ({}, "needs one of range"),
    ],
)
def test_a_schema_that_makes_no_sense_is_refused_by_the_columns_name(message, words):
    data = {"silos": [{"name": "n", "path": "n.csv"}], "label": "y"}
    for written in ({"sex": {"range": [0, 1]}, "age": message}, [{"name": "age", **message}]):
        with pytest.raises(InputError, match=words.replace("data.features", "features")):
            validated(FilesData, {**data, "features": written}, "test")


def test_a_column_has_one_role_and_one_name():
    data = {"silos": [{"name": "n", "path": "n.csv"}], "features": {"age": {"range": [0, 1]}}}
    with pytest.raises(InputError, match=r"'age' is also one of data\.features; a column has one role"):
        validated(FilesData, {**data, "label": "age"}, "test")
    with pytest.raises(InputError, match="'age' twice"):
        validated(FilesData, {**data, "features": [{"name": "age", "range": [0, 1]}] * 2, "label": "y"}, "test")
    with pytest.raises(InputError, match="divide_by has no meaning with a schema"):
        validated(FilesData, {**data, "label": "y", "divide_by": 2}, "test")
    with pytest.raises(InputError, match="label_range is for a real-valued label"):
        validated(FilesData, {**data, "label": "y", "label_range": [0, 2]}, "test")
    with pytest.raises(InputError, match=r"label_range \[2, 0\] must be"):
        validated(FilesData, {**data, "label": "y", "classes": None, "label_range": [2, 0]}, "test")
    made = validated(FilesData, {**data, "label": "y"}, "test")
    assert FilesData.model_validate_json(made.model_dump_json()) == made


def source(path, **changes):
    values = {
        "name": "north",
        "path": str(path),
        "format": "parquet",
        "features": tuple(c.name for c in SCHEMA),
        "label": "y",
        "classes": (0, 1),
        "bias": True,
        "feature_bound": 1.0,
        "divide_by": 1.0,
        "version": "v",
        "schema": SCHEMA,
    }
    return SiloSource(**{**values, **changes})


def write(path, rows, labels):
    columns = {column.name: [row[j] for row in rows] for j, column in enumerate(SCHEMA)}
    pa.parquet.write_table(pa.table({**columns, "y": labels}), path)


ROWS = st.tuples(st.tuples(*[CELLS] * len(SCHEMA)), st.sampled_from(["0", "1", "", "spam"]))


@pytest.mark.parametrize("normalise", ["record", "features"])
@given(st.lists(ROWS, min_size=3, max_size=3), ROWS)
def test_the_worst_neighbour_moves_a_sum_by_twice_the_clip(tmp_path_factory, normalise, rows, other):
    """To replace one record changes its own row only, for all values, and a clipped sum by at most 2 C."""
    path = tmp_path_factory.mktemp("schema") / "a.parquet"
    opened = []
    for these in (rows, [*rows[:2], other]):
        write(path, [row for row, _ in these], [label for _, label in these])
        opened.append(open_records(source(path, normalise=normalise)))
    a, b = opened
    assert a.X[:2].tobytes() == b.X[:2].tobytes() and a.y[:2].tobytes() == b.y[:2].tobytes()
    assert np.isfinite(b.X).all() and (np.linalg.norm(b.X, axis=1) <= b.bound).all()
    if other[1] in ("", "spam"):
        assert not b.X[2].any() and b.y[2] == 0
    for model in (Linear(Logistic()), Linear(Squared()), SoftmaxRegression(2)):
        w = np.full(model.weights(a.dim), 3.0)
        clip = 0.4
        sums = [model.clipped_gradient_sum(w, r.X, r.y, model.bounds(r.X, r.y, clip)) for r in opened]
        assert np.linalg.norm(sums[0] - sums[1]) <= 2 * clip * (1 + 1e-9)


def test_all_rows_are_scaled_by_one_constant(tmp_path):
    rows = [("80", "?", "85", "a", "1", "20"), ("50", "10", "70", "zz", "7", "2")]
    write(tmp_path / "a.parquet", rows, ["0", "1"])
    records = open_records(source(tmp_path / "a.parquet", feature_bound=3.0))
    expected = np.array([[*by_hand(row), 1.0] for row in rows]) * 3.0 / math.sqrt(1 + 1 + 5 + 1 + 1 + 9 + 1)
    np.testing.assert_allclose(records.X, expected, atol=1e-12)
    assert records.y.tolist() == [-1.0, 1.0] and records.bound == 3.0


def test_real_labels_are_mapped_from_their_range(tmp_path):
    rows = [("50",) * 6] * 4
    write(tmp_path / "a.parquet", rows, ["10", "35", "1e9", "spam"])
    of = source(tmp_path / "a.parquet", classes=None, label_range=(10.0, 60.0))
    records = open_records(of)
    assert records.y.tolist() == [-1.0, 0.0, 1.0, 0.0]
    assert not records.X[3].any() and records.X[:3].any(axis=1).all()


def test_what_does_not_fit_is_told_at_the_silo_only(tmp_path):
    rows = [("50", "10", "70", "a", "1", "2"), ("SECRET", "SECRET", "", "SECRET", "SECRET", "")]
    write(tmp_path / "north.parquet", rows, ["0", "SECRET"])
    found = inspected(source(tmp_path / "north.parquet"))
    text = "\n".join(found.faults)
    for words in (
        "column 'age': 1 of 2 cells are no numbers (for instance 'SECRET')",
        "column 'dose': 1 of 2",
        "column 'sex': 1 of 2 cells are none of its categories (for instance 'SECRET')",
        "column 'ratio': 1 of 2 cells are missing; write missing: []",
        "label 'y': 1 of 2 cells do not fit",
    ):
        assert words in text
    assert "pulse" not in text and "kind" not in text
    assert "column 'kind': 1 of 2 cells are none of its categories (for instance 'SECRET'), and count as other" in (
        "\n".join(found.notes)
    )
    silos = ({"name": "north", "path": str(tmp_path / "north.parquet")},)
    data = FilesData(silos=silos, features=SCHEMA, label="y")
    with pytest.raises(InputError) as caught:
        prepare(data, ModelConfig(), 0, tmp_path / "root")
    assert str(caught.value) == (
        f"1 of 1 silos cannot be used: silo north: file {tmp_path}/north.parquet holds what does not fit the schema; "
        "`fedcore check` with this config, where the file is, shows it"
    )
    # Public test data are no secret, so the message has the full reason.
    write(tmp_path / "good.parquet", rows[:1] * 2, ["0", "1"])
    silos = ({"name": "north", "path": str(tmp_path / "good.parquet")},)
    with pytest.raises(InputError, match=r"(?s)data.test: file .* does not fit:.*'age': 1 of 2 cells .*SECRET"):
        data = FilesData(silos=silos, features=SCHEMA, label="y", test=str(tmp_path / "north.parquet"))
        prepare(data, ModelConfig(), 0, tmp_path / "root")


def test_values_outside_of_a_range_are_told_to_the_operator_and_refused_by_nobody(tmp_path):
    rows = [("150", "10", "700", "a", "1", "2"), ("50", "10", "70", "a", "1", "2")]
    write(tmp_path / "north.parquet", rows, ["0", "1"])
    found = inspected(source(tmp_path / "north.parquet"))
    assert found.faults == []
    assert found.notes == [
        "column 'age': 1 of 2 values lie outside of range [20, 80]",
        "column 'pulse': 1 of 2 values lie outside of 2 scales around the centre",
    ]


def test_missing_values_may_go_without_a_feature_that_says_so():
    column = Column(name="a", range=(0, 10), missing=(99,), fill=2.5, indicator=False)
    assert column.names == ("a",) and column.bound == 1.0 and not column.marked
    found = column.features(pa.chunked_array([[0.0, 99.0, None, 10.0]]))
    assert found.tolist() == [[-1.0], [-0.5], [-0.5], [1.0]]
    for wrong in ({"range": (0, 10)}, {"categories": ("x",), "missing": ()}):
        with pytest.raises(ValueError, match="indicator goes with numbers that have missing"):
            Column(name="a", indicator=False, **wrong)


def test_counts_of_which_many_are_0_have_logarithms_too():
    column = Column(name="a", centre=9, scale=10, limit=2, log=True, plus=1)
    found = column.unit(np.array([-5.0, 0.0, 9.0, 99.0, 1e9, np.nan]))
    np.testing.assert_allclose(found, [-2.0, -1.0, 0.0, 1.0, 2.0, np.nan], rtol=1e-12)
    assert Column(name="a", centre=0, scale=2, log=True, plus=1).unit(np.array([1.0])).tolist() == [1.0]
    assert column.model_dump(mode="json")["plus"] == 1.0
    for wrong in ({"range": (1, 10), "log": True}, {"centre": 0, "scale": 2}, {"categories": ("x",)}):
        with pytest.raises(ValueError, match="plus goes with log: true, centre and scale only"):
            Column(name="a", plus=1, **wrong)
    with pytest.raises(ValueError, match=r"centre \+ plus must be above 0"):
        Column(name="a", centre=-2, scale=2, log=True, plus=1)
