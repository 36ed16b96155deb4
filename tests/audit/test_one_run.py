"""Bound of one training: against the formula written out, by hand, its coverage, and its best result."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fedcore.accounting.gaussian import mu_of
from fedcore.audit.bench import check_one_run, plan_one_run
from fedcore.audit.one_run import lower_bound, one_run, p_value, right_guesses
from fedcore.audit.power import accuracy, one_run_power


def naive_p_value(m, r, v, epsilon, delta):
    """Corollary 5.4 term by term, with binomial coefficients and exact sums."""
    q = 1 / (1 + math.exp(-epsilon))

    def pmf(k):
        return math.comb(r, k) * q**k * (1 - q) ** (r - k)

    alpha = max((math.fsum(pmf(v - j) for j in range(1, i + 1)) / i for i in range(1, v + 1)), default=0.0)
    return min(1.0, math.fsum(pmf(k) for k in range(v, r + 1)) + 2 * m * delta * alpha)


def naive_bound(m, r, v, delta, level):
    low, high = 0.0, 50.0
    if naive_p_value(m, r, v, 0.0, delta) >= level:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if naive_p_value(m, r, v, middle, delta) < level else (low, middle)
    return low


CASES = [
    (1000, 100, 75, 1e-4, 0.05),
    (56, 56, 50, 0.0, 1e-4),
    (300, 80, 80, 1e-5, 1e-4),
    (40, 9, 0, 1e-3, 0.1),
    (200, 200, 140, 1e-6, 0.01),
    (56, 56, 56, 1 / 56**2, 1e-4),
]


@pytest.mark.parametrize(("m", "r", "v", "delta", "level"), CASES)
def test_bound_and_p_value_are_those_of_the_formula(m, r, v, delta, level):
    for epsilon in (0.0, 0.3, 1.0, 4.0):
        assert p_value(m, r, v, epsilon, delta) == pytest.approx(naive_p_value(m, r, v, epsilon, delta), rel=1e-9)
    assert lower_bound(m, r, v, delta, level) == pytest.approx(naive_bound(m, r, v, delta, level), rel=1e-5, abs=1e-6)


def test_bound_of_the_papers_example():
    """Steinke, Nasr, Jagielski 2023, Appendix D: 75 of 100 guesses on 1,000 examples, delta 1e-4: 0.673.

    At 95 % confidence.
    """
    assert lower_bound(1000, 100, 75, 1e-4, 0.05) == pytest.approx(0.673, abs=5e-4)


@pytest.mark.parametrize("m", [20, 56, 1000])
def test_bound_of_all_right_by_hand(m):
    """q^m = level at delta 0, so epsilon = log(q / (1 - q)), about log(m / log(1 / level))."""
    level = 1e-4
    q = level ** (1 / m)
    assert lower_bound(m, m, m, 0.0, level) == pytest.approx(math.log(q / (1 - q)), rel=1e-5)
    if m == 1000:
        assert lower_bound(m, m, m, 0.0, level) == pytest.approx(math.log(m / math.log(1 / level)), rel=0.01)


def test_bound_of_randomised_response_holds_at_its_level():
    """Randomised response is the worst case at delta 0: the bound is wrong about as often as it may be."""
    epsilon, m, level, tries = 1.0, 80, 0.05, 4000
    right = stats.binom.rvs(m, 1 / (1 + math.exp(-epsilon)), size=tries, random_state=np.random.default_rng(0))
    bounds = {v: lower_bound(m, m, int(v), 0.0, level) for v in np.unique(right)}
    wrong = np.mean([bounds[v] > epsilon for v in right])
    # Five standard deviations above the level: a false alarm of this test has probability below 1e-6.
    assert 0.01 < wrong < level + 5 * math.sqrt(level * (1 - level) / tries)


def test_bounds_refuse_what_cannot_be():
    for arguments in ((10, 11, 5, 0.0, 0.1), (10, 5, 6, 0.0, 0.1), (10, 5, 5, -0.1, 0.1), (10, 5, 5, 0.0, 2.0)):
        with pytest.raises(ValueError, match="no p-value"):
            p_value(*arguments[:3], arguments[3], arguments[4])
    with pytest.raises(ValueError, match="cannot be made"):
        right_guesses(np.zeros(3), np.ones(3), 4)


def test_guesses_are_the_top_and_the_bottom():
    scores, signs = np.array([0.1, -3.0, 2.0, -0.2, 5.0]), np.array([-1.0, -1.0, 1.0, 1.0, 1.0])
    assert right_guesses(scores, signs, 3) == 3
    assert right_guesses(scores, signs, 5) == 3
    assert right_guesses(scores, signs, 4) == 3 and right_guesses(scores, -signs, 4) == 1
    finding = one_run(scores, signs, 3, 0.0, 0.3, 0.2)
    assert finding.statistic == pytest.approx(math.log(0.2 ** (1 / 3) / (1 - 0.2 ** (1 / 3))), rel=1e-5)
    assert not finding.passed and "replace-one" in finding.detail and "confidence 0.8" in finding.detail


# Best possible results


def test_a_silo_of_56_records_promises_none():
    """The delta term alone is at least 2 delta = 6.4e-4 whatever happens, more than the allowed 1e-4."""
    delta = 1 / 56**2
    assert all(lower_bound(56, r, r, delta, 1e-4) == 0.0 for r in range(1, 57))
    for epsilon in (0.5, 2.0, 8.0):
        reach = one_run_power(56, delta, epsilon, mu_of(epsilon, delta), 1e-4)
        assert reach.ceiling == 0 and reach.epsilon is None and reach.noise is None
        assert "promises nothing" in reach.sentence
    generous = one_run_power(56, 1e-9, 2.0, mu_of(2.0, 1e-9), 1e-4)
    assert 0 < generous.ceiling < 2 and generous.epsilon is None


def test_table_of_the_docs_is_that_of_the_code():
    page = (Path(__file__).parents[2] / "docs" / "explanation" / "audits.md").read_text()
    rows = re.findall(r"^\| ([\d,]+) \| ([\d.]+) \| (.*) \| (.*) \|$", page, re.MULTILINE)
    assert [int(row[0].replace(",", "")) for row in rows] == [56, 141, 200, 500, 1000, 10_000]
    for many, ceiling, *cells in rows:
        m = int(many.replace(",", ""))
        for accounted, cell in zip((1.0, 2.0), cells, strict=True):
            reach = one_run_power(m, 1 / m**2, accounted, mu_of(accounted, 1 / m**2), 1e-4)
            assert ceiling == f"{reach.ceiling:.2f}"
            bug = "none" if reach.epsilon is None else f"epsilon {reach.epsilon:.1f} (noise times {reach.noise:.2f})"
            assert cell == bug


def test_power_grows_with_the_number_of_canaries():
    mu = mu_of(1.0, 1e-6)
    small, large = (one_run_power(m, 1e-6, 1.0, mu, 1e-4) for m in (500, 2000))
    assert 1.0 < large.epsilon < small.epsilon and small.noise < large.noise < 1.0
    assert small.ceiling < large.ceiling


def test_accuracy_of_confident_guesses_is_that_of_normal_scores():
    rng, mu = np.random.default_rng(1), 1.3
    signs = rng.choice([-1.0, 1.0], 400_000)
    scores = signs * mu / 2 + rng.standard_normal(signs.size)
    for share in (0.05, 0.3, 1.0):
        top = np.argsort(-np.abs(scores))[: int(share * signs.size)]
        assert accuracy(mu, share) == pytest.approx((signs[top] == np.sign(scores[top])).mean(), abs=0.006)


def test_the_promised_bug_is_found_in_the_best_case():
    """95 % promised; 300 trials below 90 % would happen with probability under 1e-3."""
    m, delta, rng = 1000, 1e-6, np.random.default_rng(2)
    mu = mu_of(1.0, delta)
    reach = one_run_power(m, delta, 1.0, mu, 1e-4)
    true, found, trials = mu / reach.noise, 0, 300
    for _ in range(trials):
        signs = rng.choice([-1.0, 1.0], m)
        finding = one_run(signs * true / 2 + rng.standard_normal(m), signs, reach.guesses, delta, 1.0, 1e-4)
        found += not finding.passed
    assert found >= 0.9 * trials


def test_lower_bounds_of_clean_trainings_stay_below_accounted_and_can_be_positive(make_audited):
    bounds = []
    for seed in range(10):
        audited = make_audited(seed, n=600, dim=600, epsilon=4.0)
        finding = check_one_run(audited, np.random.default_rng(seed), plan_one_run(audited))
        assert finding.passed and finding.threshold == pytest.approx(4.0)
        bounds.append(finding.statistic)
    assert max(bounds) > 0.3
