"""Arrays and DataFrames that NumPy would take in silence: other orders of columns, masks, dates, complex numbers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import fedcore
from fedcore.errors import InputError

METHOD = {"name": "mbsgd", "rounds": 3, "step": 0.5}
X = np.random.default_rng(4).standard_normal((30, 2))
Y = (X[:, 0] > X[:, 1]).astype(int)
TABLE = pd.DataFrame(X, columns=["age", "dose"])


def trained(north, south, test=None):
    return fedcore.train({"north": north, "south": south}, test=test, privacy={"trust": "none"}, algorithm=METHOD)


def test_columns_in_another_order_are_the_same_columns():
    same = trained((TABLE, Y), (TABLE, Y), (TABLE, Y))
    other = trained((TABLE, Y), (TABLE[["dose", "age"]], Y), (TABLE[["dose", "age"]], Y))
    np.testing.assert_allclose(other.weights, same.weights, rtol=1e-12)
    assert same.test_error == other.test_error
    np.testing.assert_allclose(trained((X, Y), (X, Y), (X, Y)).weights, same.weights, rtol=1e-12)


DATES = np.full(30, np.datetime64("2024-02-29"))
REFUSED = {
    "a column less": ((TABLE[["age"]], Y), "silo south: column 'dose' of the first silo is not there"),
    "a column more": ((TABLE.assign(sex=1), Y), "silo south: column 'sex' is not at the first silo"),
    "no names": ((X, Y), "silo south: columns have names at some silos and not at others"),
    "a name twice": ((pd.DataFrame(X, columns=["age", "age"]), Y), "silo south: column 'age' is there twice"),
    "another index": ((TABLE, pd.Series(Y, index=range(1, 31))), "silo south: features and labels have other indexes"),
    "dates": ((TABLE.assign(dose=DATES), Y), "silo south: features are dates"),
    "durations": ((TABLE.assign(dose=DATES - DATES[0]), Y), "silo south: features are durations"),
    "complex labels": ((TABLE, Y + 0j), "silo south: labels are complex numbers"),
    "labels of dates": ((TABLE, DATES), "silo south: labels are dates"),
    "masked labels": ((TABLE, np.ma.masked_array(Y, mask=Y)), "silo south: labels are masked"),
}
ARRAYS = {
    "masked": (np.ma.masked_array(X, mask=X > 1.5), "silo south: features are masked"),
    "complex": (X + 0j, "silo south: features are complex numbers"),
    "dates": (np.full((30, 2), DATES[0]), "silo south: features are dates"),
    "texts": (X.astype(str), "silo south: features are texts"),
    "objects of dates": (TABLE.assign(dose=DATES).astype(object).to_numpy(), "silo south: features are not an array"),
    "objects of complex": ((X + 1j).astype(object), "silo south: features are not an array of numbers"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_tables_that_do_not_fit_are_refused(case):
    records, said = REFUSED[case]
    with pytest.raises(InputError) as told:
        trained((TABLE, Y), records)
    assert str(told.value).startswith(said) and "\n" not in str(told.value)


@pytest.mark.parametrize("case", ARRAYS)
def test_arrays_that_would_be_cast_in_silence_are_refused(case):
    features, said = ARRAYS[case]
    with pytest.raises(InputError) as told:
        trained((X, Y), (features, Y))
    assert str(told.value).startswith(said) and "\n" not in str(told.value)


def test_a_mask_that_masks_nothing_and_numbers_of_any_type_are_taken():
    expected = trained((X, Y), (X, Y)).weights
    for features in (np.ma.masked_array(X), X.tolist(), X.astype(object), np.asfortranarray(X)):
        np.testing.assert_allclose(trained((X, Y), (features, Y)).weights, expected, rtol=1e-12)
