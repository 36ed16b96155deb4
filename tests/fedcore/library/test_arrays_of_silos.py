"""Arrays and tables that NumPy would take in silence: other orders of columns, masks, dates, texts, missing values."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse

import fedcore
from fedcore.errors import InputError
from fedcore.library.silos import data_section

METHOD = {"name": "mbsgd", "rounds": 3, "step": 0.5}
X = np.random.default_rng(4).standard_normal((30, 2))
Y = (X[:, 0] > X[:, 1]).astype(int)
TABLE = pd.DataFrame(X, columns=["age", "dose"])


def trained(north, south, test=None, **keys):
    """`north` is copied: a silo does not hold the very array of another one."""
    first = (north[0].copy(), north[1])
    keys = {"privacy": {"trust": "none"}, "algorithm": METHOD} | keys
    return fedcore.train({"north": first, "south": south}, test=test, **keys)


def test_columns_in_another_order_are_the_same_columns():
    same = trained((TABLE, Y), (TABLE, Y), (TABLE.copy(), Y))
    other = trained((TABLE, Y), (TABLE[["dose", "age"]], Y), (TABLE[["dose", "age"]], Y))
    np.testing.assert_allclose(other.weights, same.weights, rtol=1e-12)
    assert same.test_error == other.test_error
    np.testing.assert_allclose(trained((X, Y), (X, Y), (X.copy(), Y)).weights, same.weights, rtol=1e-12)
    assert same.feature_names_in_.tolist() == ["age", "dose"]


ITSELF: list[object] = [1.0]
ITSELF.append(ITSELF)
ALONE: list[object] = []
ALONE.append(ALONE)
WITHIN = np.empty((30, 2), dtype=object)
WITHIN[:] = 1.0
WITHIN[3, 1] = WITHIN
DATES = np.full(30, np.datetime64("2024-02-29"))
SOME = np.where(np.arange(30) == 7, None, 1)
REFUSED = {
    "a column less": ((TABLE[["age"]], Y), "silo south: column 'dose' of the first silo is not there"),
    "a column more": ((TABLE.assign(sex=1), Y), "silo south: column 'sex' is not one of the first silo"),
    "a column of texts more": (
        (TABLE.assign(town="Bonn"), Y),
        "silo south: column 'town' is not one of the first silo; drop it first",
    ),
    "columns more": (
        (TABLE.assign(town="Bonn", day=DATES), Y),
        "silo south: columns 'town', 'day' are not of the first silo; drop",
    ),
    "no names": ((X, Y), "silo south: columns have names at some silos and not at others"),
    "a name twice": ((pd.DataFrame(X, columns=["age", "age"]), Y), "silo south: column 'age' is there twice"),
    "one name twice": ((pd.DataFrame(X, columns=[1, "1"]), Y), "silo south: column '1' is there twice"),
    "another index": ((TABLE, pd.Series(Y, index=range(1, 31))), "silo south: features and labels have other indexes"),
    "dates": ((TABLE.assign(dose=DATES), Y), "silo south: column 'dose': values are dates"),
    "dates of a zone": (
        (TABLE.assign(dose=pd.Timestamp("2024-02-29", tz="UTC")), Y),
        "silo south: column 'dose': values are dates",
    ),
    "objects of dates": (
        (TABLE.assign(dose=datetime.date(2024, 2, 29)), Y),
        "silo south: column 'dose': values are dates",
    ),
    "durations": ((TABLE.assign(dose=DATES - DATES[0]), Y), "silo south: column 'dose': values are durations"),
    "periods": ((TABLE.assign(dose=pd.Period("2024-02")), Y), "silo south: column 'dose': values are not an array"),
    "texts of numbers": ((TABLE.astype(str), Y), "silo south: column 'age': values are texts"),
    "categories": (
        (TABLE.assign(age=pd.Categorical(Y.astype(str))), Y),
        "silo south: column 'age': values are texts; make",
    ),
    "categories of dates": ((TABLE.assign(age=pd.Categorical(DATES)), Y), "silo south: column 'age': values are dates"),
    "a dictionary of texts": (
        (pa.table({"age": pa.array(Y.astype(str)).dictionary_encode(), "dose": X[:, 1]}), Y),
        "silo south: column 'age': values are texts",
    ),
    "missing categories": (
        (TABLE.assign(age=pd.Categorical(np.where(Y == 1, 3.5, np.nan))), Y),
        "silo south: features have missing or infinite values in column 'age'",
    ),
    "missing whole numbers": (
        (TABLE.assign(age=pd.array(SOME, dtype="Int64")), Y),
        "silo south: features have missing or infinite values in column 'age'",
    ),
    "missing truths": (
        (TABLE.assign(age=pd.array(SOME == 1, dtype="boolean").reshape(-1)).assign(age=SOME), Y),
        "silo south: features have missing or infinite values in column 'age'",
    ),
    "an Arrow table of dates": ((pa.table({"age": X[:, 0], "dose": DATES}), Y), "silo south: column 'dose': values"),
    "no rows": ((TABLE[:0], Y[:0]), "silo south: features have the shape (0, 2)"),
    "a dictionary": (({"age": X[:, 0], "dose": X[:, 1]}, Y), "silo south: features are a dictionary; give a DataFrame"),
    "complex labels": ((TABLE, Y + 0j), "silo south: labels are complex numbers"),
    "labels of dates": ((TABLE, DATES), "silo south: labels are dates"),
    "labels of date objects": ((TABLE, [datetime.date(2024, 2, 29)] * 30), "silo south: labels are dates"),
    "labels of bytes": ((TABLE, Y.astype("S1")), "silo south: labels are bytes"),
    "masked labels": ((TABLE, np.ma.masked_array(Y, mask=Y)), "silo south: labels are masked"),
    "a list of masked labels": ((TABLE, [*Y[:29].tolist(), np.ma.masked]), "silo south: labels are masked"),
    "masked cells of a column": (
        (TABLE.assign(dose=pd.Series([np.ma.masked] * 30, dtype=object)), Y),
        "silo south: column 'dose': values are m",
    ),
    "missing labels": ((TABLE, pd.Series(SOME, dtype="Int64")), "silo south: labels are missing at some records"),
    "labels of two types": ((TABLE, [*Y[:29].tolist(), "yes"]), "silo south: labels are"),
    "labels that hold themselves": (
        (TABLE, pd.Series([ITSELF] * 30)),
        "silo south: labels are of type list; make them numbers or texts",
    ),
    "labels that hold nothing but themselves": (
        (TABLE, pd.Series([ALONE] * 30)),
        "silo south: labels are of type list; make them numbers or texts",
    ),
    "labels of arrays": ((TABLE, pd.Series([X[0], X[1]] * 15)), "silo south: labels are of type ndarray; make them n"),
    "labels of sets": ((TABLE, pd.Series([{1}] * 30)), "silo south: labels are of type set; make them number"),
    "cells that hold themselves": (
        (TABLE.assign(dose=pd.Series([ITSELF] * 30)), Y),
        "silo south: column 'dose': values are not an array of num",
    ),
    "a column of labels": ((TABLE, Y[:, None]), "silo south: labels have the shape (30, 1); wanted (n,), one label"),
    "labels as a frame": ((TABLE, pd.DataFrame({"y": Y})), "silo south: labels have the shape (30, 1); wanted (n,)"),
    "labels one-hot": ((TABLE, np.eye(2)[Y]), "silo south: labels have the shape (30, 2); wanted (n,), one label"),
    "fewer labels": ((TABLE, Y[1:]), "silo south: features have 30 records and labels 29"),
}
ARRAYS = {
    "masked": (np.ma.masked_array(X, mask=X > 1.5), "silo south: features are masked"),
    "rows that are masked": ([np.ma.masked_array(row, mask=row > 1.5) for row in X], "silo south: features are masked"),
    "a tuple of one such row": ((*X[:29], np.ma.masked_array(X[29], [0, 1])), "silo south: features are masked"),
    "cells that are masked": ([[1.0, np.ma.masked], *X[:29].tolist()], "silo south: features are masked"),
    "objects that are masked": (np.array([[1.0, np.ma.masked]] * 30, dtype=object), "silo south: features are masked"),
    "deep below": ([[[np.ma.masked]], [[1.0]]], "silo south: features are masked"),
    "masked after a list of itself": ([ITSELF, [np.ma.masked, 1.0]], "silo south: features are masked"),
    "a list of itself": (ITSELF, "silo south: features are not an array of numbers"),
    "rows that hold themselves": ([ITSELF, ITSELF], "silo south: features are not an array of numbers"),
    "an array of itself": (WITHIN, "silo south: features are not an array of numbers"),
    "a masked array of objects": (
        np.ma.masked_array(X.astype(object), mask=X > 1.5),
        "silo south: features are masked",
    ),
    "complex": (X + 0j, "silo south: features are complex numbers"),
    "dates": (np.full((30, 2), DATES[0]), "silo south: features are dates"),
    "texts": (X.astype(str), "silo south: features are texts"),
    "objects of texts": (X.astype(str).astype(object), "silo south: features are texts"),
    "lists with a text": ([*X[:29].tolist(), ["1", "2"]], "silo south: features are texts"),
    "objects of dates": (TABLE.assign(dose=DATES).astype(object).to_numpy(), "silo south: features are dates"),
    "objects of durations": (np.full((30, 2), np.timedelta64(3, "D")).astype(object), "silo south: features are durat"),
    "objects of complex": ((X + 1j).astype(object), "silo south: features are complex numbers"),
    "fields": (np.zeros(30, dtype=[("age", float), ("dose", float)]), "silo south: features are fields of a record"),
    "sparse": (scipy.sparse.csr_array(X), "silo south: features are a sparse matrix; give X.toarray()"),
    "ragged": ([[1.0, 2.0], [1.0]], "silo south: features are not an array of numbers"),
    "a generator": ((row for row in X), "silo south: features are not an array of numbers"),
    "lists in cells": (np.array([[[1.0], 2.0]] * 30, dtype=object)[:, :, None], "silo south: features are not an arr"),
    "too large": ([[10**400, 1]] * 30, "silo south: features hold a whole number that is too large"),
    "one column": (X[:, 0], "silo south: features have the shape (30,); wanted (n, k)"),
    "NaN": (np.where(X[3, 1] == X, np.nan, X), "silo south: features have missing or infinite values in column 1"),
    "infinite": (np.where(X[3, 1] == X, np.inf, X), "silo south: features have missing or infinite values in column 1"),
    "None": (np.where(X[3, 1] == X, None, X), "silo south: features have missing or infinite values in column 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_tables_that_do_not_fit_are_refused(case):
    records, message = REFUSED[case]
    with pytest.raises(InputError) as raised:
        trained((TABLE, Y), records)
    assert str(raised.value).startswith(message) and "\n" not in str(raised.value)


@pytest.mark.parametrize("case", ARRAYS)
def test_arrays_that_would_be_cast_in_silence_are_refused(case):
    features, message = ARRAYS[case]
    with pytest.raises(InputError) as raised:
        trained((X, Y), (features, Y))
    assert str(raised.value).startswith(message) and "\n" not in str(raised.value)


def test_a_mask_that_masks_nothing_and_numbers_of_any_type_are_taken():
    expected = trained((X, Y), (X, Y)).weights
    decimals = np.array([[Decimal(cell) for cell in row] for row in X.tolist()], dtype=object)
    rows = [np.ma.masked_array(row) for row in X]
    for features in (np.ma.masked_array(X), rows, X.tolist(), X.astype(object), np.asfortranarray(X), decimals):
        np.testing.assert_allclose(trained((X, Y), (features, Y)).weights, expected, rtol=1e-12)
    for features in (memoryview(X), [memoryview(row) for row in X], X.view(np.recarray)):
        np.testing.assert_allclose(trained((X, Y), (features, Y)).weights, expected, rtol=1e-12)
    np.testing.assert_allclose(trained((X, Y), (X, memoryview(Y))).weights, expected, rtol=1e-12)
    numbers = np.rint(X)
    expected = trained((X, Y), (numbers, Y)).weights
    for kind in (np.int8, np.float16, np.longdouble):
        np.testing.assert_allclose(trained((X, Y), (numbers.astype(kind), Y)).weights, expected, rtol=1e-12)
    rounded = pd.DataFrame(numbers, columns=TABLE.columns)
    assert 0.0 in numbers and "-0.0" in map(str, numbers.ravel().tolist())
    encoded = pa.table({name: pa.array(cells).dictionary_encode() for name, cells in rounded.items()})
    for table in (rounded.astype("category"), rounded.astype(np.longdouble), encoded):
        found = trained((pd.DataFrame(X, columns=TABLE.columns), Y), (table, Y))
        np.testing.assert_allclose(found.weights, expected, rtol=1e-12)


def test_tables_of_any_library_are_taken_by_their_names():
    """Another library's table has `columns` of names and is indexed by place, as polars's; Arrow's has columns."""

    class Frame:
        columns = ("dose", "age")

        def __len__(self):
            return len(X)

        def __getitem__(self, key):
            return X[:, 1 - key[1]]

    expected = trained((TABLE, Y), (TABLE, Y)).weights
    arrow = pa.table({"dose": X[:, 1], "age": X[:, 0]})
    for table in (Frame(), arrow, TABLE.astype("Float64")[["dose", "age"]], TABLE.convert_dtypes()):
        np.testing.assert_allclose(trained((TABLE, Y), (table, Y)).weights, expected, rtol=1e-12)
    for labels in (pa.array(Y), pd.Series(Y).astype("boolean"), pd.Series(Y, dtype="Int64"), Y > 0, Y.tolist()):
        np.testing.assert_allclose(trained((TABLE, Y), (arrow, labels)).weights, expected, rtol=1e-12)


def test_labels_of_texts_and_categories_are_classes_by_name():
    words = np.where(Y == 1, "yes", "no")
    expected = trained((TABLE, Y), (TABLE, Y)).weights
    for labels in (
        words,
        words.astype(object),
        pd.Series(words),
        pd.Series(pd.Categorical(words)),
        pa.array(words),
        pa.array(words).dictionary_encode(),
    ):
        found = trained((TABLE, labels), (TABLE, labels), classes=("no", "yes"))
        np.testing.assert_allclose(found.weights, expected, rtol=1e-12)
        assert found.classes_.tolist() == ["no", "yes"] and set(found.predict(TABLE)) <= {"no", "yes"}


def test_a_table_may_have_any_names():
    named = {"label": X[:, 0], "label_": X[:, 1]}
    expected = trained((X, Y), (X, Y)).weights
    levels = pd.MultiIndex.from_tuples([("a", 1), ("a", 2)])
    for frame in (pd.DataFrame(named), pd.DataFrame(X), pd.DataFrame(X, columns=levels)):
        found = trained((frame, Y), (frame, Y))
        np.testing.assert_allclose(found.weights, expected, rtol=1e-12)
        assert found.feature_names_in_.tolist() == list(map(str, frame.columns))


def test_an_array_belongs_to_one_silo_and_no_public_set():
    with pytest.raises(InputError, match="silo south: features are the very object of silo north; a record is of one"):
        fedcore.train({"north": (X, Y), "south": (X, Y)}, epsilon=1)
    with pytest.raises(InputError, match="test: features are the very object of silo south; test records are public"):
        trained((X, Y), (X, Y), test=(X, Y))


def test_the_same_arrays_are_the_same_bytes_and_the_same_columns(tmp_path):
    frames = {"north": (TABLE, Y), "south": (TABLE[["dose", "age"]], pd.Series(Y).astype("boolean"))}
    written = []
    for place in ("one", "two"):
        folder = tmp_path / place
        folder.mkdir()
        section = data_section(frames, (TABLE.copy(), Y > 0), folder, None, None, (0, 1), check_values=True)
        paths = [Path(silo["path"]) for silo in section["silos"]] + [Path(section["test"])]
        assert all(path.parent == folder for path in paths)
        written.append([path.read_bytes() for path in paths])
    assert written[0] == written[1]
    first, second, public = (pq.read_table(path).to_pydict() for path in paths)
    assert first == second == public == {"age": X[:, 0].tolist(), "dose": X[:, 1].tolist(), "label": Y.tolist()}


def test_the_same_call_gives_the_same_bits_wherever_it_is_made(tmp_path, monkeypatch):
    """Noise is that of a simulation: it follows from the seed, names and settings, and from no temporary folder."""
    silos = {"north": (X, Y), "south": (X[:20], Y[:20])}
    found = []
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / place))
        found.append(fedcore.train(silos, epsilon=1.0, algorithm=METHOD, seed=0))
    other = fedcore.train(silos, epsilon=1.0, algorithm=METHOD, seed=1)
    np.testing.assert_array_equal(found[0].weights, found[1].weights)
    assert not np.array_equal(found[0].weights, other.weights)
    assert found[0].config == found[1].config and str(tmp_path) not in found[0].config.model_dump_json()
