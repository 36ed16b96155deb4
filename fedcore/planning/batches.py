"""Records of one answer: all of a piece, an expected number that is given, or the theorems' choice of it.

Sources: Lowy and Razaviyayn 2023, Theorem 2.1 in its complete form (spec isrl-dp-fl 6.1); Gao et al. 2024, Section 2
and the proof of its gradient count, equation 25, and Algorithm 4 (spec localized-isrl-dp, sections 4, 9 and 7.5). n
and delta are the smallest silo's and the largest, as in the schedules. K is rounded up, and cut off at n, which is a
full batch; logarithmic factors that a source drops are dropped here.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from fedcore.errors import InputError
from fedcore.hyperparameters import Count
from fedcore.planning.problem import Problem

Batch = Annotated[Count, Field(ge=1)] | Literal["theory"] | None
"""`algorithm.batch`: K of the smallest silo's piece, expected, by secret Poisson samples; None: full batches."""


def least_batch(problem: Problem, n: int, rounds: int) -> int:
    """K = ceil(epsilon n / (4 sqrt(2 R ln(2/delta)))), the least that the published noise is stated for; at most n.

    Raises InputError without epsilon.
    """
    log = math.log(2.0 / problem.delta)
    return _within(_epsilon(problem) * n / (4.0 * math.sqrt(2.0 * rounds * log)), n)


def minibatch_sgd_batch(problem: Problem, rounds: int) -> int:
    """K of noisy minibatch SGD: the larger of `least_batch` and B / R, at most n.

    With it R rounds see as many records as the theorem's risk takes:
    B = min(n, epsilon^2 n^2 / (d ln(2.5 R / delta) ln(2 / delta))). Raises InputError without epsilon.
    """
    n, delta = problem.n, problem.delta
    logs = math.log(2.5 * rounds / delta) * math.log(2.0 / delta)
    enough = min(float(n), (_epsilon(problem) * n) ** 2 / (problem.dim * logs))
    return max(least_batch(problem, n, rounds), _within(enough / rounds, n))


def gradient_minimal_batch(problem: Problem, n: int) -> int:
    """K of Algorithm 1 with the accelerated solver on n records per silo, with the fewest gradients; at most n.

    Q = sqrt(beta D / L) M^(1/4). d <= n: max(K_a, K_b) if K_a <= n, or d, whichever leads to fewer gradients by the
    paper's counts (R' + 1) K and d + epsilon^2 n^2 / (d ln(1/delta)). d > n: max(K_c, K_d) if K_c <= n, else n.
    Raises InputError without epsilon, without smoothness, or for M < N, where the paper gives no such K.
    """
    if not problem.participation.full:
        raise InputError(
            f"algorithm.batch = theory: the theorem's K is for all silos in every round, not for "
            f"participation.silos_per_round = {problem.participants} of {problem.n_silos}; give a number"
        )
    epsilon, d, log = _epsilon(problem), problem.dim, math.log(1.0 / problem.delta)
    beta = problem.smoothness_for("algorithm.batch = theory")
    Q = math.sqrt(beta * problem.diameter / problem.clip) * problem.harmonic_participants**0.25
    if d > n:
        least = (epsilon * n) ** 1.5 / (Q * (d * log) ** 0.75)
        allowed = (epsilon * n) ** 0.75 * d**0.125 / (math.sqrt(Q) * log**0.375)
        return _within(max(least, allowed), n) if least <= n else n
    least = epsilon**2 * n**1.75 / (Q * d * log)
    allowed = epsilon * n / math.sqrt(Q * n**0.25 * log)
    accelerated = max(least, allowed, 1.0)
    gradients = (Q * n**0.25 + 1.0) * accelerated
    if least <= n and gradients <= d + (epsilon * n) ** 2 / (d * log):
        return _within(accelerated, n)
    return d


def no_theory(method: str) -> InputError:
    """The refusal of `theory` by a method whose paper gives no K."""
    return InputError(f"algorithm.batch = theory: no theorem gives {method} a batch size; give a number, or null")


def _within(batch: float, n: int) -> int:
    # A whole number that floating point puts a little above itself is not the next one.
    return min(n, max(1, math.ceil(batch * (1.0 - 1e-12))))


def _epsilon(problem: Problem) -> float:
    if problem.budget.epsilon is None:
        raise InputError("algorithm.batch = theory needs privacy.epsilon: the theorems' K grows with it")
    return problem.budget.epsilon
