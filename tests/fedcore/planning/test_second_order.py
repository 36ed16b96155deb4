"""Gradient and Hessian as one vector: the largest distance between two records, and noise's effect on eigenvalues."""

import math

import numpy as np
import pytest

from fedcore.planning.sensitivity.second_order import (
    half_diameter,
    largest_norm,
    length,
    packed,
    scale_of,
    spectral_noise,
    unpacked,
)

BALANCES = [0.05, 0.3, 0.5, 0.7, 1.0, 2.0, 3.5, 20.0]


@pytest.mark.parametrize("balance", BALANCES)
def test_no_two_records_are_farther_apart_than_the_bound_and_some_are_as_far(balance):
    C, S, farthest, rng = 0.7, 0.25, 0.0, np.random.default_rng(0)
    scale = scale_of(C, S, balance)
    for trial in range(4000):
        angle = rng.uniform(0, math.pi)
        records = []
        for direction in ([1.0, 0.0, 0.0], [math.cos(angle), math.sin(angle), 0.0]):
            x = np.array(direction)
            extreme = trial % 2
            r = C * (rng.choice([-1.0, 1.0]) if extreme else rng.uniform(-1, 1))
            c = S * (rng.choice([0.0, 1.0]) if extreme else rng.uniform(0, 1))
            records.append(packed(r * x, c * np.outer(x, x), scale))
            assert np.linalg.norm(records[-1]) <= largest_norm(C, balance) * (1 + 1e-12)
        farthest = max(farthest, float(np.linalg.norm(records[0] - records[1])))
    assert farthest <= 2 * half_diameter(C, balance) * (1 + 1e-12)
    assert farthest >= 2 * half_diameter(C, balance) * 0.999
    assert 2 * half_diameter(C, balance) < C * math.sqrt(4 + 2 * balance)  # what the two parts by themselves would cost


def test_packing_keeps_norms_and_is_undone():
    rng = np.random.default_rng(1)
    A = rng.standard_normal((5, 5))
    g, H = rng.standard_normal(5), A + A.T
    made = packed(g, H, 1.7)
    assert made.shape == (length(5),) == (20,)
    assert np.linalg.norm(made) == pytest.approx(math.hypot(np.linalg.norm(g), 1.7 * np.linalg.norm(H)))
    gradient, hessian = unpacked(made, 5, 1.7)
    np.testing.assert_allclose(gradient, g)
    np.testing.assert_allclose(hessian, H)
    with pytest.raises(ValueError, match="20 numbers"):
        unpacked(made[1:], 5, 1.7)


def test_noise_moves_eigenvalues_by_about_what_is_said():
    d, rng = 60, np.random.default_rng(2)
    noise = [np.linalg.eigvalsh(unpacked(0.3 * rng.standard_normal(length(d)), d, 1.0)[1])[-1] for _ in range(40)]
    assert np.mean(noise) == pytest.approx(spectral_noise(0.3, d), rel=0.06)
