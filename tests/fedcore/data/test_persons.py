"""Persons of a file: owners of rows, counts of persons, and refusals."""

from __future__ import annotations

import math
from datetime import date
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.data.cells import Refusal, is_same
from fedcore.data.dataset import facts, prepare, records_of
from fedcore.data.file_sources import file_sources
from fedcore.data.inspection import inspected
from fedcore.data.persons import beyond, of_persons, persons_of
from fedcore.data.records import Records
from fedcore.data.silo_file import open_records
from fedcore.data.tabular import FilesData
from fedcore.data.texts.spellings import likeness
from fedcore.errors import InputError, SiloError
from fedcore.models.model_config import ModelConfig

MODEL = ModelConfig()


def data(folder, *names, **more) -> FilesData:
    values = {
        "source": "files",
        "silos": [{"name": name, "path": str(folder / f"{name}.csv")} for name in names],
        "features": {"age": {"range": [0, 100]}},
        "label": "ill",
        "person": "patient",
        **more,
    }
    return FilesData.model_validate(values)


def write(folder, name, rows, header="patient,age,ill"):
    (folder / f"{name}.csv").write_text("\n".join([header, *rows]) + "\n")


VISITS = ["b,10,0", "a,20,1", "b,30,0", "c,40,1", "b,50,1", " a ,60,0"]
"""Persons a, b, c with 2, 3 and 1 rows."""


def column(*cells):
    return pa.chunked_array([pa.array(list(cells))])


def test_one_value_is_one_person_as_for_all_cells():
    """1, 1.0, "1", 01 and true are one value; texts are compared without spaces around them and capitals; 1e0 is a
    text, as 12e45678 is."""
    persons = persons_of(column("1", "1.0", " 1", "true", "01", "x", "x ", "X", "1e0", "-1"), "p")
    assert persons.tolist() == [1, 1, 1, 1, 1, 3, 3, 3, 2, 0]
    assert persons_of(column(7, 5, 7), "p").tolist() == [1, 0, 1]
    assert persons_of(column(7.0, 5.0, 7.0), "p").tolist() == [1, 0, 1]
    assert persons_of(column(Decimal("7.5"), Decimal("-1"), Decimal("7.50")), "p").tolist() == [1, 0, 1]
    assert persons_of(column(date(2020, 1, 2), date(2019, 5, 5)), "p").tolist() == [1, 0]
    assert persons_of(column(b"b", b"a", b"b"), "p").tolist() == [1, 0, 1]
    assert persons_of(column("b", "10", "a", "9"), "p").tolist() == [3, 1, 2, 0]
    assert persons_of(column("a", "b", "a").dictionary_encode(), "p").tolist() == [0, 1, 0]
    large = 2**63
    assert persons_of(column(str(large), str(large + 1), str(large)), "p").tolist() == [0, 1, 0]
    assert persons_of(pa.chunked_array([pa.array(["a"]), pa.array(["b", "a"])]), "p").tolist() == [0, 1, 0]


@given(st.text(max_size=4) | st.sampled_from(["1", "1.0", "01", "true", "1e0", "x"]) | st.integers() | st.booleans())
def test_cells_that_are_one_value_without_a_doubt_are_one_person(cell):
    for other in ("1", 1, 1.0, "x", cell, str(cell)):
        if likeness(cell) is not None and is_same(cell, other):
            assert likeness(cell) == likeness(other)


@pytest.mark.parametrize("cells", [("a", ""), ("a", "NA"), ("a", None), (1.0, math.nan), ("a", " ")])
def test_a_row_of_nobody_is_refused_and_quotes_nothing(cells):
    with pytest.raises(Refusal) as caught:
        persons_of(column(*cells), "patient")
    assert caught.value.code == "missing-person" and "'patient'" in caught.value.sentence
    with pytest.raises(Refusal, match="missing-person"):
        persons_of(column(["a"], ["b"]), "patient")


@given(st.lists(st.integers(0, 6), min_size=1, max_size=40), st.integers(1, 6))
def test_places_and_weights_are_those_of_a_dictionary_of_persons(ids, places):
    rows = Records(np.arange(1.0, 2 * len(ids) + 1).reshape(-1, 2), np.arange(1.0, len(ids) + 1))
    made = of_persons(rows, persons_of(column(*ids), "p"), places, "p")
    people: dict[int, list[int]] = {who: [] for who in sorted(set(ids))}
    for row, who in enumerate(ids):
        people[who].append(row)
    assert made.n == len(people) and made.X.shape == (places * len(people), 2) and made.person == "p"
    more = [len(mine) - places for mine in people.values() if len(mine) > places]
    assert beyond(persons_of(column(*ids), "p"), places) == (len(more), sum(more))
    for number, mine in enumerate(people.values()):
        at, kept = slice(number * places, (number + 1) * places), mine[:places]
        np.testing.assert_array_equal(made.X[at][: len(kept)], rows.X[kept])
        np.testing.assert_array_equal(made.y[at][: len(kept)], rows.y[kept])
        assert not made.X[at][len(kept) :].any() and not made.y[at][len(kept) :].any()
        if places == 1:
            assert made.weights is None
            continue
        weights = made.weights[at]
        assert not weights[len(kept) :].any()
        assert math.fsum(weights) <= 1 and weights[: len(kept)] == pytest.approx(1 / len(kept), rel=1e-15)


def test_a_file_is_opened_by_persons_and_its_size_is_theirs(tmp_path):
    write(tmp_path, "north", VISITS)
    asked = data(tmp_path, "north", person_rows=2)
    found, dim = facts(asked, MODEL, 0)
    assert [(silo.name, silo.n) for silo in found] == [("north", 3)] and dim == 2
    (source,) = file_sources(asked, MODEL)
    records = open_records(source)
    assert (records.n, records.places, records.X.shape) == (3, 2, (6, 2))
    # age in 0 to 100 maps to -1 to 1, the bias beside it, all divided by the longest record's norm, the root of 2.
    np.testing.assert_allclose(records.X[:, 0] * math.sqrt(2), [-0.6, 0.2, -0.8, -0.4, -0.2, 0.0], atol=1e-15)
    np.testing.assert_allclose(records.X[:, 1] * math.sqrt(2), [1, 1, 1, 1, 1, 0], atol=1e-15)
    assert records.y.tolist() == [1, -1, -1, -1, 1, 0] and records.weights.tolist() == [0.5, 0.5, 0.5, 0.5, 1, 0]
    prepared = prepare(asked, MODEL, 0, tmp_path / "silos")
    assert prepared.facts == found and prepared.sources[0].person == "patient"


def test_where_the_rows_of_a_person_stand_in_the_file_moves_nobody(tmp_path):
    """Neighbours replace all rows of one id, also by another number of rows at other places of the file."""
    opened = []
    for mine in (["a,20,1", "a,60,0"], ["a,99,0"], ["a,1,1", "a,2,1", "a,3,0", "a,4,1"]):
        for place in range(4):
            others = ["b,10,0", "c,40,1", "b,30,0"]
            write(tmp_path, "north", [*others[:place], *mine, *others[place:]])
            (source,) = file_sources(data(tmp_path, "north", person_rows=3), MODEL)
            opened.append(open_records(source))
    for records in opened:
        assert records.X[3:].tobytes() == opened[0].X[3:].tobytes()
        assert records.y[3:].tobytes() == opened[0].y[3:].tobytes()
        assert records.weights[3:].tobytes() == opened[0].weights[3:].tobytes()


def test_parquet_and_named_columns_count_the_same_persons(tmp_path):
    table = pa.table({"patient": [3, 1, 3, 2], "age": [0.1, 0.2, 0.3, 0.4], "ill": [0, 1, 1, 0]})
    pa.parquet.write_table(table, tmp_path / "north.parquet")
    asked = FilesData.model_validate(
        {
            "silos": [{"name": "north", "path": str(tmp_path / "north.parquet")}],
            "features": ["age"],
            "label": "ill",
            "person": "patient",
        }
    )
    (found,), _ = facts(asked, MODEL, 0)
    (source,) = file_sources(asked, MODEL)
    assert found.n == open_records(source).n == 3
    assert inspected(source).persons == 3 and inspected(source).rows == 4


@pytest.mark.parametrize(
    ("rows", "header", "code"),
    [
        ([*VISITS, ",70,1"], "patient,age,ill", "missing-person"),
        (["a,1,0", "a,2,1"], "patient,age,ill", "too-few-records"),
        (["1,0", "2,1"], "age,ill", "missing-column"),
        (["a,b,1,0"], "patient,patient,age,ill", "repeated-column"),
    ],
)
@pytest.mark.parametrize("features", [{"age": {"range": [0, 100]}}, ["age"]])
def test_what_cannot_be_counted_is_refused_by_a_code_wherever_it_is_opened(tmp_path, rows, header, code, features):
    write(tmp_path, "north", rows, header)
    asked = data(tmp_path, "north", features=features)
    (source,) = file_sources(asked, MODEL)
    with pytest.raises(SiloError) as caught:
        open_records(source)
    # The folder's own name may hold a 70.
    assert caught.value.code == code and "70" not in caught.value.sentence.replace(str(tmp_path), "")
    for act in (lambda: facts(asked, MODEL, 0), lambda: prepare(asked, MODEL, 0, tmp_path / "silos")):
        with pytest.raises(InputError) as refused:
            act()
        assert caught.value.sentence in str(refused.value)
    assert not (tmp_path / "silos").exists()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"person": "age"}, "data.person 'age' is also one of data.features; a column has one role"),
        ({"person": "ill"}, "data.person 'ill' is also data.label; a column has one role"),
        ({"person": None, "person_rows": 3}, "data.person_rows has no meaning without data.person"),
        ({"person_rows": 0}, "greater than or equal to 1"),
        ({"person_rows": 1001}, "less than or equal to 1000"),
        ({"person": ""}, "at least 1 character"),
        ({"person": "a\nb"}, "holds the control character"),
    ],
)
def test_a_column_has_one_role(tmp_path, more, words):
    with pytest.raises(ValueError, match=words):
        data(tmp_path, "north", **more)


def test_public_files_need_no_column_of_persons(tmp_path):
    write(tmp_path, "north", VISITS)
    write(tmp_path, "public", [f"{age},{age % 2}" for age in range(20, 60)], "age,ill")
    public = str(tmp_path / "public.csv")
    made = prepare(data(tmp_path, "north", test=public, scaling={"path": public}), MODEL, 0, tmp_path / "silos")
    assert made.test is not None and made.test.n == 40 and made.test.weights is None


def test_check_tells_the_operator_how_many_persons_have_more_rows(tmp_path):
    write(tmp_path, "north", VISITS)
    (source,) = file_sources(data(tmp_path, "north", person_rows=2), MODEL)
    found = inspected(source)
    assert (found.rows, found.persons, found.faults) == (6, 3, [])
    (note,) = found.notes
    assert note == (
        "column 'patient': 1 of 3 persons have more rows than data.person_rows = 2; their first 2 count, "
        "and 1 of 6 rows do not"
    )


@pytest.mark.parametrize("features", [{"age": {"range": [0, 100]}}, ["age"]])
def test_check_counts_rows_of_nobody_beside_other_faults(tmp_path, features):
    write(tmp_path, "north", [*VISITS, ",70,1", "NA,71,0", "d,old,1"])
    (source,) = file_sources(data(tmp_path, "north", features=features), MODEL)
    found = inspected(source)
    assert any("column 'patient': 2 of 9 cells are missing" in fault for fault in found.faults)
    assert found.persons is None and len(found.faults) == (2 if source.schema else 1)


def test_records_of_files_by_two_units_are_two_accounts(tmp_path):
    both = [data(tmp_path, "north"), data(tmp_path, "north", person=None)]
    assert len({records_of(each) for each in both}) == 2
    assert records_of(both[1]) == "files"
