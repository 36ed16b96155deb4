"""Records of one answer: all of a shard, an expected number that is given, or the theorems' choice.

Sources: Lowy and Razaviyayn 2023, Theorems 2.1 and 2.3 (spec isrl-dp-fl 6.1 and 6.6); Gao et al. 2024, Section 2, the
proof of its gradient count, equation 25, and Algorithm 4 (spec localized-isrl-dp, sections 4, 9 and 7.5). As in the
schedules, n is the smallest silo's and delta the largest. K is rounded up, and cut off at n, which is a full batch.
Logarithmic factors that a source drops are dropped here.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from fedcore.errors import InputError
from fedcore.hyperparameters import Count
from fedcore.planning.problem import Problem

Batch = Annotated[Count, Field(ge=1)] | Literal["theory"] | None
"""`algorithm.batch`: K of the smallest silo's shard, expected, by secret Poisson samples; None: full batches."""


def least_batch(problem: Problem, n: int, rounds: int) -> int:
    """K = ceil(epsilon n / (4 sqrt(2 R ln(2/delta)))), the least K of the published noise; at most n.

    Raises InputError without epsilon.
    """
    return whole_batch(least_records(problem, n, rounds), n)


def least_records(problem: Problem, n: int, rounds: int) -> float:
    """epsilon n / (4 sqrt(2 R ln(2/delta))), not rounded.

    It is above n where R is too small for the published noise. Raises InputError without epsilon.
    """
    log = math.log(2.0 / problem.delta)
    return _epsilon(problem) * n / (4.0 * math.sqrt(2.0 * rounds * log))


def minibatch_sgd_batch(problem: Problem, rounds: int, enough: float | None = None) -> int:
    """K of noisy minibatch SGD: the larger of `least_batch` and B / R, at most n.

    R rounds then see B records (`enough`), as many as the theorem's risk takes. None:
    `min(n, epsilon^2 n^2 / (d ln(2.5 R / delta) ln(2 / delta)))`. Raises InputError without epsilon.
    """
    n, delta = problem.n, problem.delta
    if enough is None:
        logs = math.log(2.5 * rounds / delta) * math.log(2.0 / delta)
        enough = min(float(n), (_epsilon(problem) * n) ** 2 / (problem.objective.dim * logs))
    return max(least_batch(problem, n, rounds), whole_batch(enough / rounds, n))


def gradient_minimal_batch(problem: Problem, n: int) -> int:
    """K of Algorithm 1 with the accelerated solver on n records per silo, for the fewest gradients.

    K is at most n. Let `Q = sqrt(beta D / L) M^(1/4)`. For d <= n, K is max(K_a, K_b) if K_a <= n, or d. Of these two
    it is the one with fewer gradients by the paper's counts, `(R' + 1) K` and `d + epsilon^2 n^2 / (d ln(1/delta))`.
    For d > n, K is max(K_c, K_d) if K_c <= n, else n. Raises InputError without epsilon, without smoothness, or for M <
    N, where the paper gives no such K.
    """
    if not problem.participation.full:
        raise InputError(
            f"algorithm.batch = theory: the theorem's K is for all silos in every round, not for "
            f"participation.silos_per_round = {problem.participation.words} of {problem.n_silos}; give a number"
        )
    epsilon, d, log = _epsilon(problem), problem.objective.dim, math.log(1.0 / problem.delta)
    beta = problem.objective.smoothness_for("algorithm.batch = theory")
    Q = math.sqrt(beta * problem.objective.diameter / problem.objective.clip) * problem.harmonic_participants**0.25
    if d > n:
        least = (epsilon * n) ** 1.5 / (Q * (d * log) ** 0.75)
        allowed = (epsilon * n) ** 0.75 * d**0.125 / (math.sqrt(Q) * log**0.375)
        return whole_batch(max(least, allowed), n) if least <= n else n
    least = epsilon**2 * n**1.75 / (Q * d * log)
    allowed = epsilon * n / math.sqrt(Q * n**0.25 * log)
    accelerated = max(least, allowed, 1.0)
    gradients = (Q * n**0.25 + 1.0) * accelerated
    if least <= n and gradients <= d + (epsilon * n) ** 2 / (d * log):
        return whole_batch(accelerated, n)
    return d


def one_pass_batch(problem: Problem, beta: float, gap: float | None) -> int:
    """K of one-pass accelerated minibatch SGD: balances the terms of Theorem 2.3 for M = N.

    Convex (`gap` None):

        `(L / (beta D))^(2/5) n^(3/5) (d ln(1/delta))^(1/5) / (epsilon^(2/5) M^(1/5))`.

    Strongly convex, for a starting gap Delta:

        `n / (sqrt(kappa) ln(mu Delta min{epsilon^2 n^2 M / (L^2 d ln(1/delta)), n M / phi^2}))`.

    There mu is the ridge, kappa beta / mu, and phi^2 is replaced by its bound L^2. K is all records where that
    logarithm leaves no more than one round, and at most n. L is the largest clipping bound times weight. Without noise
    epsilon is infinite in both. Raises InputError for M < N, or noise that is given in place of epsilon.
    """
    n, M, budget = problem.n, problem.harmonic_participants, problem.budget
    if not problem.participation.full:
        raise InputError(
            "algorithm.rounds = null: the paper's batch is for all silos in every round, not for "
            f"participation.silos_per_round = {problem.participation.words} of {problem.n_silos}; give a number"
        )
    if budget.epsilon is None and budget.private:
        raise InputError("algorithm.rounds = null needs privacy.epsilon: the paper's batch follows from it")
    L, noise = weighted_clip(problem), problem.objective.dim * math.log(1.0 / problem.delta)
    if gap is None:
        if budget.epsilon is None:
            return 1
        balance = (L / (beta * problem.objective.diameter * budget.epsilon)) ** 2 * noise / M if beta > 0 else math.inf
        return whole_batch(min(balance**0.2 * n**0.6, float(n)), n)
    floor = n * M / L**2
    if budget.epsilon is not None:
        floor = min(floor, (budget.epsilon * n) ** 2 * M / (L**2 * noise))
    rounds = math.sqrt(beta / problem.objective.ridge) * math.log(max(problem.objective.ridge * gap * floor, 1.0))
    return whole_batch(n / rounds, n) if rounds > 1 else n


def weighted_clip(problem: Problem) -> float:
    """L of the theorems: the clipping bound times the largest weight of a silo (spec isrl-dp-fl 6.8)."""
    return problem.objective.clip * max(problem.weights or (1.0,))


def no_theory(method: str) -> InputError:
    """The error for `theory` with a method whose paper gives no K."""
    return InputError(f"algorithm.batch = theory: no theorem gives {method} a batch size; give a number, or null")


def whole_batch(batch: float, n: int) -> int:
    """K as a whole number of records, from 1 to n, rounded up."""
    # Rounding may put a whole number slightly above itself; ceil must not return the next one.
    return min(n, max(1, math.ceil(batch * (1.0 - 1e-12))))


def _epsilon(problem: Problem) -> float:
    if problem.budget.epsilon is None:
        raise InputError("algorithm.batch = theory needs privacy.epsilon: the theorems' K grows with it")
    return problem.budget.epsilon
