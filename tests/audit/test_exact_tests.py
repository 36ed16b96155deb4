"""Level of the exact tests: p-values of correct noise are at least uniform."""

import math

import numpy as np
import pytest
from scipy import stats

from fedcore.audit.cells import binomial, chi_square, cosine, least, normal
from fedcore.audit.instruments import lattice, normality, overlap
from fedcore.audit.instruments.independence import _closest_directions, _joint, _same

RNG = np.random.default_rng


def held(p, level):
    """True if p-values fall below `level` no more often than they may; wrong with probability below 1e-4."""
    p = np.asarray(p)
    return (p < level).sum() <= stats.binom.isf(1e-4, p.size, level)


@pytest.mark.parametrize("level", [0.2, 0.01])
def test_p_values_are_uniform_where_they_are_exact(level):
    rng, many = RNG(0), 20_000
    drawn = {
        "chi": chi_square(rng.chisquare(7, many), 7),
        "normal": normal(rng.standard_normal(many)),
        "cosine": cosine(
            np.array(
                [np.dot(a, b) / np.linalg.norm(a) / np.linalg.norm(b) for a, b in rng.standard_normal((many, 2, 5))]
            ),
            5,
        ),
    }
    for p in drawn.values():
        assert held(p, level) and held(1 - p, level)
    assert held(binomial(rng.binomial(60, 0.2, many), 60, 0.2), level)


def test_bounds_on_p_values_hold():
    rng, level = RNG(1), 0.05
    assert held([float(_closest_directions(rng.standard_normal((30, 6)))[0]) for _ in range(400)], level)
    assert held([float(_same(rng.standard_normal((30, 3)))[0]) for _ in range(400)], level)
    assert held([normality._fourth_powers(rng.standard_normal(3000)) for _ in range(400)], level)
    rows = [rng.standard_normal((40, 8)) for _ in range(100)]
    pairs = np.arange(40).reshape(-1, 2)
    assert held(np.concatenate([_joint(each, pairs, reverse) for each in rows for reverse in (False, True)]), level)


def test_the_same_numbers_in_another_order_and_sign_are_found():
    rng = RNG(2)
    for width in (2, 3, 20, 700):
        rows = rng.standard_normal((50, width))
        assert _same(rows)[0] > 1e-6
        rows[40] = rng.permutation(rows[3]) * rng.choice([-1.0, 1.0], width) + 1e-12
        assert _same(rows)[0] < 1e-6


def test_heavy_and_light_tails_are_found_by_fourth_powers():
    rng = RNG(3)
    assert normality._fourth_powers(rng.standard_t(12, 2**17) * math.sqrt(10 / 12)) < 1e-7
    assert normality._fourth_powers(rng.uniform(-0.5, 0.5, (12, 2**17)).sum(axis=0)) < 1e-7
    assert math.isnan(normality._fourth_powers(np.array([0.0, np.nan])))


def test_repeated_values_are_rare_by_the_bound_and_in_truth(monkeypatch):
    monkeypatch.setattr(lattice, "EQUAL", 1e-6)
    rng, many = RNG(4), 300
    repeats = [int((np.diff(np.sort(rng.standard_normal(many))) <= 1e-6).sum()) for _ in range(4000)]
    seen = np.mean([count >= 1 for count in repeats])
    bound = lattice._repeated(1, many)
    assert lattice._repeated(0, many) == 1.0 and bound < 0.03
    assert seen <= bound + 5 * math.sqrt(bound / 4000)


def test_what_samples_share_has_the_distribution_of_many_pairs():
    one = stats.hypergeom.pmf(np.arange(4), 10, 3, 3)
    total = overlap._power(one, 5)
    by_hand = one
    for _ in range(4):
        by_hand = np.convolve(by_hand, one)
    np.testing.assert_allclose(total, by_hand, atol=1e-14)
    drawn = [
        sum(
            len(np.intersect1d(RNG([a, b]).choice(10, 3, False), RNG([a, b, 1]).choice(10, 3, False))) for b in range(5)
        )
        for a in range(2000)
    ]
    assert np.mean(drawn) == pytest.approx(np.arange(16) @ total, abs=0.15)


def test_the_worst_family_decides_and_is_named():
    families = {"a": np.array([[0.5, 0.2], [0.9, 0.4]]), "b": np.array([0.03]), "empty": np.array([])}
    finding = least("x", families, 0.01, "sentence")
    assert finding.statistic == pytest.approx(0.06) and finding.passed and "least likely is b" in finding.detail
    finding = least("x", {"a": np.array([[0.5, 1e-5], [0.9, 0.4]])}, 0.01, "sentence", {"a": ("one", "two")})
    assert finding.statistic == pytest.approx(4e-5) and not finding.passed and "a one, 1" in finding.detail
    assert not least("x", {"a": np.array([0.5, np.nan])}, 0.01, "sentence").passed
    with pytest.raises(ValueError, match="make no test"):
        least("x", {"a": np.array([])}, 0.01, "sentence")
