"""One record more or less in a secret sample moves a sum by that record's clipped gradient, to the last bits of others.

A product of fewer rows may round a row's predictor differently. A server may choose the model so that predictors lie at
the kink of a loss. Then one bit decides a residual, and sums over gathered rows move by several times the clip.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedcore.accounting.events import GaussianRelease, Sampling
from fedcore.accounting.rounding import ROUNDING
from fedcore.losses import Absolute, DrawnConvolution, Hinge, Logistic, Quantile
from fedcore.models import Linear, OneHiddenLayer, SoftmaxRegression
from fedcore.models.linear import clipped_gradient_sum, residual_bounds, row_norms
from fedcore.silo.answers import Gradient, Shard

CLIP = 0.5
MODELS = {
    "absolute": Linear(Absolute()),
    "quantile": Linear(Quantile(tau=0.3)),
    "hinge": Linear(Hinge()),
    "logistic": Linear(Logistic()),
    "softmax": SoftmaxRegression(3),
    "network": OneHiddenLayer(3, 4),
    "drawn": Linear(Absolute()),
}


def at_the_kink(name: str, d: int, m: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """m equal records and a model whose predictor of them is their label, up to the last bits."""
    x = rng.standard_normal(d)
    X = np.tile(x / np.linalg.norm(x), (m, 1))
    if name == "softmax":
        return X, np.zeros(m), 1e10 * rng.standard_normal(3 * d)
    if name == "network":
        V = rng.standard_normal((4, d))
        # Units whose input is rounding alone, at the kink, before weights that make a record of one of them loud.
        W1 = 1e10 * (V - np.outer(V @ X[0], X[0]))
        return X, np.zeros(m), np.concatenate([W1.ravel(), 1e5 * rng.standard_normal(15)])
    w = rng.standard_normal(d)
    if name == "hinge":
        return X, np.ones(m), w / (X[0] @ w)
    if name == "logistic":
        return X, np.ones(m), 1e10 * (w - (X[0] @ w) * X[0])  # predictors of rounding alone, which is large here
    return X, np.full(m, (X @ w)[rng.integers(m)]), w


def approved(name: str, X: np.ndarray, y: np.ndarray, sampling: Sampling = "poisson") -> tuple[Gradient, Shard]:
    bounds, norms = MODELS[name].bounds(X, y, CLIP), row_norms(X)
    drawn = DrawnConvolution(Absolute(), 1.0, 1.0, X.shape[1]) if name == "drawn" else None
    event = GaussianRelease(0, len(y), 2 * CLIP, 1.0, sampling=sampling, rate=0.5)
    answer = Gradient(MODELS[name], bounds, drawn, norms, CLIP, math.inf, record_bound=1.0)
    return answer, Shard(event, slice(0, len(y)), X, y, len(y), 0.0, None)


@pytest.mark.parametrize("name", MODELS)
def test_a_record_moves_the_sum_of_a_sample_by_its_own_gradient_at_most(name):
    rng = np.random.default_rng(3)
    for d in (1, 2, 3, 5, 8, 20, 50, 64):
        for m in range(1, 10):
            X, y, w = at_the_kink(name, d, m, rng)
            run, shard = approved(name, X, y)
            shifts = np.zeros(m) if name == "drawn" else None
            for _ in range(8):
                some = np.flatnonzero(rng.random(m) < 0.7)
                for left_out in some:
                    with_it = run.clipped_sum(w, shard, some, shifts)
                    without = run.clipped_sum(w, shard, some[some != left_out], shifts)
                    assert np.linalg.norm(with_it - without) <= CLIP * (1 + ROUNDING)


@pytest.mark.parametrize("name", MODELS)
def test_another_record_in_a_sample_of_fixed_size_moves_the_sum_by_their_two_gradients_at_most(name):
    rng = np.random.default_rng(4)
    for d in (1, 3, 8, 20, 64):
        for m in range(2, 10):
            X, y, w = at_the_kink(name, d, m, rng)
            run, shard = approved(name, X, y, "without-replacement")
            shifts = np.zeros(m) if name == "drawn" else None
            for scale in (1.0, 1e-12):
                some = np.sort(rng.choice(m, size=rng.integers(1, m), replace=False))
                here = run.clipped_sum(scale * w, shard, some, shifts)
                for new in np.setdiff1d(np.arange(m), some):
                    other = np.sort(np.append(some[1:], new))
                    there = run.clipped_sum(scale * w, shard, other, shifts)
                    assert np.linalg.norm(here - there) <= 2 * CLIP * (1 + ROUNDING)


@pytest.mark.parametrize("name", ["logistic", "softmax"])
def test_samples_of_fixed_size_are_taken_out_where_places_do_not_matter(name, monkeypatch):
    """By the bound on rounding: at ordinary weights of a smooth model, and never at large ones."""
    rng = np.random.default_rng(6)
    X = rng.standard_normal((40, 5))
    X /= np.linalg.norm(X, axis=1)[:, None]
    y = np.ones(40)
    rows: list[int] = []
    model = MODELS[name]
    whole = type(model).clipped_gradient_sum
    monkeypatch.setattr(
        type(model), "clipped_gradient_sum", lambda self, w, X, *rest: rows.append(len(X)) or whole(self, w, X, *rest)
    )
    w = rng.standard_normal(model.weights(5))
    some = np.array([3, 7, 8, 30])
    taken, masked = {}, {}
    for scale in (1.0, 1e9):
        run, shard = approved(name, X, y, "without-replacement")
        taken[scale] = run.clipped_sum(scale * w, shard, some)
        run, shard = approved(name, X, y, "poisson")
        masked[scale] = run.clipped_sum(scale * w, shard, some)
    assert rows == [4, 40, 40, 40]
    np.testing.assert_allclose(taken[1.0], masked[1.0], rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(taken[1e9], masked[1e9])


@pytest.mark.parametrize("name", ["logistic", "softmax"])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3, 1e8])
def test_places_move_a_gradient_by_less_than_the_bound_on_rounding(name, scale):
    rng, model = np.random.default_rng(8), MODELS[name]
    for d in (2, 5, 17, 64):
        x = rng.standard_normal(d)
        X = np.tile(x / np.linalg.norm(x), (9, 1))
        w = scale * rng.standard_normal(model.weights(d))
        y, bounds = np.ones(9), np.full(9, 2.0)
        alone = model.clipped_gradient_sum(w, X[:1], y[:1], bounds[:1])
        for m in range(2, 10):
            assert np.linalg.norm(model.clipped_gradient_sum(w, X[:m], y[:m], bounds[:m]) / m - alone) <= (
                model.rounding(w, 1.0) + 1e-15
            )


def test_sums_over_gathered_rows_would_move_by_more():
    """The reason to mask rows in place: with rows taken out, sums move by more than the clip, over many models."""
    rng, worst = np.random.default_rng(3), 0.0
    for d in (3, 5, 8, 20, 50, 64):
        for m in range(2, 10):
            for _ in range(20):
                X, y, w = at_the_kink("absolute", d, m, rng)
                bounds = residual_bounds(X, CLIP)
                sums = [clipped_gradient_sum(Absolute(), w, X[:k], y[:k], bounds[:k]) for k in (m, m - 1)]
                worst = max(worst, float(np.linalg.norm(sums[0] - sums[1])) / CLIP)
    if worst <= 1 + ROUNDING:
        pytest.skip("this machine's BLAS rounds a row alike wherever it stands")
    assert worst > 2


@pytest.mark.parametrize("name", MODELS)
def test_a_sample_sums_what_its_records_do(name):
    rng = np.random.default_rng(5)
    X = rng.standard_normal((12, 4))
    X[3] = 0.0
    y = np.zeros(12) if name in ("softmax", "network") else np.where(rng.random(12) < 0.5, -1.0, 1.0)
    w = rng.standard_normal(MODELS[name].weights(4))
    run, shard = approved(name, X, y)
    shifts = 0.1 * rng.standard_normal(12) if name == "drawn" else None
    singles = np.array([run.clipped_sum(w, shard, np.array([j]), shifts) for j in range(12)])
    assert (np.linalg.norm(singles, axis=1) <= CLIP * (1 + ROUNDING)).all()
    for chosen in (np.arange(12), np.array([0, 3, 7]), np.array([], dtype=int)):
        found = run.clipped_sum(w, shard, chosen, shifts)
        np.testing.assert_allclose(found, singles[chosen].sum(axis=0), rtol=1e-12, atol=1e-14)
    # A record that is no number spoils nothing, whether it is in the sample or not.
    X[5] = 1e308
    run, shard = approved(name, X, y)
    with np.errstate(all="ignore"):
        found = run.clipped_sum(1e12 * w, shard, np.array([0, 7]), shifts)
        alone = run.clipped_sum(1e12 * w, shard, np.array([0]), shifts) + run.clipped_sum(
            1e12 * w, shard, np.array([7]), shifts
        )
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, alone, rtol=1e-12, atol=1e-13)
