"""Orders of communication rounds and gradient evaluations in theorems, to compare a plan with.

Source: Gao et al. 2024, Theorems 2.1, C.6 and 3.5 (spec localized-isrl-dp, section 9). Constants and logarithms are
dropped, as in the paper's own tables. The ratio of a plan to its order shows their size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedcore.planning.problem import Problem


@dataclass(frozen=True)
class Complexity:
    """Rounds that a theorem's guarantee needs, and gradients of records summed over all silos."""

    source: str
    rounds: float
    gradient_evaluations: float


def accelerated_complexity(problem: Problem) -> Complexity:
    """Order of the localized accelerated method with full batches.

    `R = max{1, sqrt(beta D / L) M^(1/4) m^(1/2), 1{M < N} eps^2 n / (d ln(1/delta))}`, and M n R gradients, which for M
    = N is Theorem C.6. beta is the smoothness of the (smoothed) loss. The theorems' beta for a Moreau envelope gives
    Theorem 3.1. That for a convolution gives Theorem 3.2, without its term for drawing from the ball. Without noise the
    last term is dropped. Raises InputError for an infinite beta.
    """
    M, n, D, L = problem.harmonic_participants, problem.n, problem.objective.diameter, problem.objective.lipschitz
    beta, epsilon = problem.objective.smoothness_for("the theorem's order"), problem.budget.epsilon
    rounds = max(1.0, math.sqrt(beta * D / L) * M**0.25 * math.sqrt(_accuracy(problem)))
    if not problem.participation.full and epsilon is not None:
        rounds = max(rounds, epsilon**2 * n / (problem.objective.dim * math.log(1 / problem.delta)))
    return Complexity("Theorem 2.1, full batches", rounds, M * n * rounds)


def subgradient_complexity(problem: Problem) -> Complexity:
    """Order of the localized subgradient method, with the least batches, by Theorem 3.5.

    Rounds: R = min(n M, M eps^2 n^2 / d) + 1. Gradients:

        `M + M^2 min(n, eps^2 n^2/d) + eps M n + M^(3/2) min(eps n^(3/2), eps^2 n^2 / sqrt(d))`.

    Without noise M^2 n gradients in n M rounds, a record each.
    """
    M, n, d, epsilon = problem.harmonic_participants, problem.n, problem.objective.dim, problem.budget.epsilon
    source = "Theorem 3.5, least batches"
    if epsilon is None:
        return Complexity(source, n * M + 1, M * (n * M + 1))
    few = min(n, epsilon**2 * n**2 / d)
    noise = min(epsilon * n**1.5, epsilon**2 * n**2 / math.sqrt(d))
    return Complexity(source, M * few + 1, M + M**2 * few + epsilon * M * n + M**1.5 * noise)


def _accuracy(problem: Problem) -> float:
    """m = min{sqrt(n), eps n / sqrt(d ln(1/delta))}; without noise sqrt(n)."""
    n, epsilon = problem.n, problem.budget.epsilon
    if epsilon is None:
        return math.sqrt(n)
    return min(math.sqrt(n), epsilon * n / math.sqrt(problem.objective.dim * math.log(1 / problem.delta)))
