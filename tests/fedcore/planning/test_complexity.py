"""Orders that theorems name, against the theorems' own special cases and sums by hand."""

import dataclasses
import math

import pytest

from fedcore.accounting.calibration import Budget
from fedcore.algorithms import LocalizedAccelerated, LocalizedMbsgd, LocalizedSubgradient
from fedcore.models.smoothing import theory_beta, theory_radius
from fedcore.planning.problem import SiloFacts
from fedcore.planning.theorems.complexity import accelerated_complexity, subgradient_complexity
from tests.problems import changed, problem_of


def problem(n=100, silos=25, d=64, beta=0.25, epsilon=1.0, participants=25):
    facts = tuple(SiloFacts(f"s{i}", n) for i in range(silos))
    return problem_of(facts, d, 1.0, beta, 2.0, participants, Budget(epsilon, 1e-4))


def test_the_accelerated_method_by_hand():
    """m = min(10, 100 / sqrt(64 ln 1e4) = 4.1188); R = sqrt(0.25 * 2) 25^(1/4) sqrt(m) = 3.2090."""
    order = accelerated_complexity(problem())
    assert order.rounds == pytest.approx(3.2090, rel=1e-4)
    assert order.gradient_evaluations == pytest.approx(25 * 100 * 3.2090, rel=1e-4)


def test_silos_left_out_and_no_noise():
    # eps^2 n / (d ln(1/delta)) = 64 * 1000 / (4 * 9.2103) = 1737.2, far above the accelerated term.
    few = problem(n=1000, d=4, epsilon=8.0, participants=18)
    assert accelerated_complexity(few).rounds == pytest.approx(1737.2, rel=1e-4)
    # Without noise sqrt(0.5) 18^(1/4) 1000^(1/4), with no such term.
    free = dataclasses.replace(few, budget=Budget(None, 1e-4))
    assert accelerated_complexity(free).rounds == pytest.approx(0.5**0.5 * 18000**0.25, rel=1e-9)
    assert accelerated_complexity(problem(beta=1e-9)).rounds == 1.0


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 30.0])
def test_smoothed_losses_take_the_rounds_of_their_own_theorems(epsilon):
    """Theorem 3.1: sqrt(M) m. Theorem 3.2: d^(1/4) sqrt(M) m, 1/s being m to a factor of 2."""
    plain = problem(epsilon=epsilon)
    m = min(10.0, epsilon * 100 / math.sqrt(64 * math.log(1e4)))
    moreau = changed(plain, smoothness=theory_beta(plain))
    assert accelerated_complexity(moreau).rounds == pytest.approx(max(1.0, 5 * m), rel=1e-9)
    convolved = changed(plain, smoothness=8 / theory_radius(plain))
    named = 64**0.25 * 5 * m
    assert named / math.sqrt(2) <= accelerated_complexity(convolved).rounds <= named


def test_the_subgradient_method_where_d_is_n_and_epsilon_1():
    """The paper's table: N n rounds; N^2 n + N^(3/2) n^(3/2) gradients, beside lower terms."""
    order = subgradient_complexity(problem(n=64))
    assert order.rounds == 25 * 64 + 1
    assert order.gradient_evaluations == pytest.approx(25 + 625 * 64 + 25 * 64 + 125 * 512)
    free = dataclasses.replace(problem(n=64), budget=Budget(None, 1e-4))
    assert subgradient_complexity(free).rounds == 25 * 64 + 1


def test_plans_carry_the_order_of_their_theorem():
    assert LocalizedAccelerated().plan(problem()).complexity == accelerated_complexity(problem())
    assert LocalizedSubgradient().plan(problem()).as_json()["totals"]["theorem"]["rounds"] == pytest.approx(
        25 * min(100, 10000 / 64) + 1
    )
    assert LocalizedMbsgd(step=1, rounds=2).plan(problem()).as_json()["totals"]["theorem"] is None
