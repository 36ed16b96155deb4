"""The per-record map: row norms, order, independence of the rows, and huge values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedcore.data.records import prepare_records
from fedcore.errors import InputError

FINITE = st.floats(allow_nan=False, allow_infinity=False)
MATRICES = arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 5)), elements=FINITE)


def exact_norm_squared(row):
    from fractions import Fraction

    return sum(Fraction(float(x)) ** 2 for x in row)


@given(MATRICES, st.booleans(), st.sampled_from([1.0, 0.3, 17.0]), st.sampled_from([1.0, 16.0, 1e-3]))
def test_rows_are_finite_and_no_longer_than_the_bound(X, bias, bound, divide_by):
    records = prepare_records(X, np.zeros(len(X)), bias, bound, divide_by)
    assert records.bound == bound
    assert records.X.shape == (len(X), X.shape[1] + bias)
    assert np.isfinite(records.X).all()
    for row in records.X:
        # a row that was scaled is not longer in exact arithmetic; one that was not is, by rounding at most
        assert exact_norm_squared(row) <= exact_norm_squared([bound]) * (1 + 1e-14)


@given(MATRICES, st.booleans())
def test_each_row_depends_on_itself_only_and_keeps_its_place(X, bias):
    y = np.arange(len(X), dtype=float)
    together = prepare_records(X, y, bias, 1.0)
    for i in range(len(X)):
        alone = prepare_records(X[i : i + 1], y[i : i + 1], bias, 1.0)
        assert alone.X.tobytes() == together.X[i : i + 1].tobytes()
    assert together.y.tolist() == y.tolist()


@given(MATRICES)
def test_mapping_twice_is_mapping_once(X):
    once = prepare_records(X, np.zeros(len(X)), False, 1.0)
    assert prepare_records(once.X, once.y, False, 1.0).X.tobytes() == once.X.tobytes()


def test_known_rows():
    records = prepare_records([[6.0, 8.0], [0.5, 0.0], [0.0, 0.0]], [1, -1, 1], True, 1.0, divide_by=2.0)
    long = np.array([3.0, 4.0, 1.0])
    np.testing.assert_allclose(records.X[0], long / np.sqrt(26), rtol=1e-14)
    np.testing.assert_allclose(records.X[1], np.array([0.25, 0, 1]) / np.sqrt(1.0625), rtol=1e-14)
    assert records.X[2].tolist() == [0.0, 0.0, 1.0]  # as long as the bound: stays
    assert records.X.flags.c_contiguous and records.X.dtype == records.y.dtype == np.float64


def test_shorter_rows_stay_bit_for_bit():
    X = np.random.default_rng(0).uniform(-0.1, 0.1, (50, 4))
    assert prepare_records(X, np.zeros(50), False, 1.0).X.tobytes() == X.tobytes()


def test_huge_and_tiny_entries_keep_their_direction():
    X = np.array([[3e307, 4e307], [1.7e308, 1.7e308], [3e-320, 0.0]])
    records = prepare_records(X, np.zeros(3), False, 1.0, divide_by=1e-3)
    np.testing.assert_allclose(records.X[1], np.sqrt([0.5, 0.5]), rtol=1e-12)
    assert np.isfinite(records.X).all() and 0 < records.X[2, 0] < 1e-300
    np.testing.assert_allclose(prepare_records(X, np.zeros(3), False, 1.0).X[0], [0.6, 0.8], rtol=1e-12)


def test_equal_records_are_all_kept():
    assert prepare_records(np.ones((7, 2)), np.ones(7), True, 1.0).n == 7


def test_records_cannot_be_changed():
    records = prepare_records([[1.0]], [1.0], True, 1.0)
    with pytest.raises(ValueError, match="read-only"):
        records.X[0, 0] = 5.0


def test_input_arrays_stay_as_they_are():
    X, y = np.full((2, 2), 9.0), np.ones(2)
    prepare_records(X, y, False, 1.0)
    X[0, 0], y[0] = 1.0, 2.0  # still the caller's own, and writable
    assert X[1, 1] == 9.0


@pytest.mark.parametrize(
    ("features", "labels", "constants", "words"),
    [
        ([[np.nan]], [1.0], (1.0, 1.0), "must be finite"),
        ([[1.0]], [np.inf], (1.0, 1.0), "must be finite"),
        ([[1.0]], [1.0, 2.0], (1.0, 1.0), r"shape \(1, 1\)"),
        ([1.0], [1.0], (1.0, 1.0), r"must be \(n, d\)"),
        ([[1.0]], [1.0], (0.0, 1.0), "feature_bound = 0.0 must be a positive"),
        ([[1.0]], [1.0], (1.0, float("inf")), "divide_by = inf must be a positive"),
    ],
)
def test_wrong_input_is_refused(features, labels, constants, words):
    with pytest.raises(InputError, match=words):
        prepare_records(features, labels, False, *constants)


@pytest.mark.parametrize("bound", [0.5, 1.0, 7.0])
def test_features_are_scaled_before_the_bias_is_appended(bound):
    """The preparation of the DP-SCAFFOLD paper: row by row x min(1, bound / |x|), then a constant 1."""
    X = np.random.default_rng(2).standard_normal((60, 4)) * np.logspace(-3, 3, 60)[:, None]
    records = prepare_records(X, np.zeros(60), True, bound, divide_by=2.0, normalise="features")
    made = records.X
    for row, raw in zip(made.tolist(), X.tolist(), strict=True):
        halves = [value / 2 for value in raw]
        length = sum(value * value for value in halves) ** 0.5
        np.testing.assert_allclose(row, [value * min(1.0, bound / length) for value in halves] + [1.0], rtol=1e-12)
    lengths = np.linalg.norm(made, axis=1)
    assert lengths.max() <= np.sqrt(bound**2 + 1) * (1 + 1e-15) and lengths.max() > np.sqrt(bound**2 + 1) * (1 - 1e-12)
    assert (made[:, -1] == 1.0).all()
    assert records.bound == pytest.approx(np.sqrt(bound**2 + 1), rel=1e-15)


def test_without_a_bias_both_ways_are_one():
    X = np.random.default_rng(3).standard_normal((30, 4))
    forms = [prepare_records(X, np.zeros(30), False, 0.7, normalise=way) for way in ("record", "features")]
    assert forms[0].X.tobytes() == forms[1].X.tobytes()
    assert forms[0].bound == forms[1].bound == 0.7


def test_one_record_changes_one_row_whatever_is_scaled():
    X = np.random.default_rng(4).standard_normal((30, 4)) * 3
    other = X.copy()
    other[7] *= 1e6
    first, second = (prepare_records(A, np.zeros(30), True, 1.0, normalise="features").X for A in (X, other))
    assert (first != second).any(axis=1).nonzero()[0].tolist() in ([7], [])
    assert first[:7].tobytes() == second[:7].tobytes() and first[8:].tobytes() == second[8:].tobytes()
