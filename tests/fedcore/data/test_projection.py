"""Principal components against independent solvers; the map of a record by itself."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.decomposition import PCA

from fedcore.data.constants.pca import Projection
from fedcore.data.records import prepare_records
from fedcore.errors import InputError

RNG = np.random.default_rng(3)
X = RNG.standard_normal((60, 9)) @ RNG.standard_normal((9, 9)) + 5 * RNG.standard_normal(9)
FINITE = st.floats(allow_nan=False, allow_infinity=False)


def test_a_cross_by_hand():
    """Points at (1 +- 3, 2) and (1, 2 +- 1): variances 18 / 4 along the first axis, 2 / 4 along the second."""
    rows = np.array([[4.0, 2.0], [-2.0, 2.0], [1.0, 3.0], [1.0, 1.0]])
    both = Projection.fit([rows], 2)
    np.testing.assert_allclose(both.mean, [1, 2], atol=1e-15)
    np.testing.assert_allclose(both.components, np.eye(2), atol=1e-15)
    np.testing.assert_allclose(both.divide_by, np.sqrt(4.5 + 0.5))
    first = Projection.fit([rows], 1)
    np.testing.assert_allclose(first(np.array([[4.0, 77.0]])), [[3 / np.sqrt(4.5)]])


def test_it_is_that_of_the_singular_value_decomposition_and_of_scikit_learn():
    made = Projection.fit([X], 5)
    _, values, directions = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)
    directions = directions[:5] * [[1 if row[np.abs(row).argmax()] > 0 else -1] for row in directions[:5]]
    np.testing.assert_allclose(made.components, directions, atol=1e-10)
    projected = (X - X.mean(axis=0)) @ directions.T
    scale = np.sqrt((projected**2).sum(axis=1).mean())
    assert scale == pytest.approx(np.sqrt((values[:5] ** 2).sum() / 60), rel=1e-12)
    np.testing.assert_allclose(made(X), projected / scale, atol=1e-10)
    theirs = PCA(5, svd_solver="full").fit(X)
    signs = np.sign((theirs.components_ * made.components).sum(axis=1))
    np.testing.assert_allclose(made(X) * made.divide_by, theirs.transform(X) * signs, atol=1e-10)


def test_prepared_rows_have_mean_zero_and_mean_squared_norm_one():
    rows = Projection.fit([X], 4)(X)
    np.testing.assert_allclose(rows.mean(axis=0), 0, atol=1e-12)
    assert (rows**2).sum(axis=1).mean() == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize("cuts", [[30], [1], [1, 2, 59], [20, 21, 40]])
def test_blocks_are_pooled(cuts):
    pooled, whole = Projection.fit(np.split(X, cuts), 5), Projection.fit([X], 5)
    for name in ("mean", "components", "divide_by"):
        np.testing.assert_allclose(getattr(pooled, name), getattr(whole, name), rtol=1e-9, atol=1e-11)


def test_signs_do_not_depend_on_the_order_or_the_solver():
    for _ in range(5):
        np.testing.assert_allclose(
            Projection.fit([RNG.permutation(X)], 9).components, Projection.fit([X], 9).components, atol=1e-9
        )
    top = Projection.fit([X], 9).components
    assert all(row[np.abs(row).argmax()] > 0 for row in top)
    np.testing.assert_allclose(top @ top.T, np.eye(9), atol=1e-12)


@pytest.mark.parametrize(("rows", "rank"), [(X[:4], 3), (X[:, :3] @ np.ones((3, 9)), 1), (np.ones((7, 9)), 0)])
def test_more_dimensions_than_the_images_vary_in_are_refused(rows, rank):
    with pytest.raises(InputError, match=rf"data\.pca\.dimension = {rank + 1}, .* vary in {rank} directions only"):
        Projection.fit([rows], rank + 1)


def test_bytes_give_the_same_constants_to_the_last_bit():
    made = Projection.fit([X], 5)
    again = Projection.from_bytes(made.to_bytes())
    assert again.digest == made.digest and again(X).tobytes() == made(X).tobytes()
    assert Projection.fit([X], 4).digest != made.digest
    for damaged in (b"", made.to_bytes()[:-1], made.to_bytes() + b"x", Projection(X[0], X[:2], np.nan).to_bytes()):
        with pytest.raises(ValueError):
            Projection.from_bytes(damaged)


MAP = Projection.fit([X[:, :4]], 3)
MATRICES = arrays(np.float64, st.tuples(st.integers(2, 7), st.just(4)), elements=FINITE)


@given(MATRICES, st.data(), st.booleans())
def test_replacing_a_record_changes_no_other_row(raw, data, bias):
    y = np.zeros(len(raw))
    before = prepare_records(raw, y, bias, 1.0, 255.0, MAP).X
    at = data.draw(st.integers(0, len(raw) - 1))
    other = raw.copy()
    other[at] = data.draw(arrays(np.float64, 4, elements=FINITE))
    after = prepare_records(other, y, bias, 1.0, 255.0, MAP).X
    rest = np.arange(len(raw)) != at
    assert after[rest].tobytes() == before[rest].tobytes()
    alone = prepare_records(raw[at : at + 1], y[:1], bias, 1.0, 255.0, MAP).X
    assert alone.tobytes() == before[at : at + 1].tobytes()
    assert np.isfinite(before).all() and np.linalg.norm(before, axis=1).max() <= 1 + 1e-14


def test_a_row_has_the_same_bits_among_many_and_alone():
    """At a size where BLAS would block a matrix product."""
    rows = RNG.standard_normal((500, 120))
    made = Projection.fit([rows], 50)
    together = made(rows)
    assert all(made(rows[k : k + 1]).tobytes() == together[k].tobytes() for k in range(500))
    np.testing.assert_allclose(together, (rows - made.mean) @ made.components.T / made.divide_by, atol=1e-12)


def test_order_of_the_map_by_hand():
    """Divide by 2, project, append 1, shorten."""
    made = Projection(np.array([1.0, 0.0]), np.array([[0.0, 1.0]]), 0.5)
    np.testing.assert_allclose(
        prepare_records([[9.0, 3.0]], [1], True, 1.0, 2.0, made).X, [np.array([3, 1]) / np.sqrt(10)], rtol=1e-14
    )


def test_features_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match=r"shape \(1, 2\) do not fit a projection of 4 features"):
        prepare_records([[1.0, 2.0]], [1], True, 1.0, 1.0, MAP)
