"""Noise of a trusted aggregator: one vector on the mean of all silos, in place of one at each.

Replacing a record of silo p moves the mean over N silos by p's weight times 2 C / n_p, over N, so p needs a standard
deviation of w_p / N times what it would add to its own mean. The aggregator's is the largest that any silo needs; in
units of each silo's own mean it is the sigma of its share, and larger silos spend less.
Source: Murata and Suzuki 2023, Lemma C.1 and Proposition 4.1, whose n_min this is for equal weights (spec diff2, 4.1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedcore.errors import InputError
from fedcore.planning.problem import Problem


def noise_as_planned(problem: Problem, sigmas: Sequence[float]) -> list[float]:
    """Of the silos, in the problem's order, from what each needs on its own mean: itself, or the aggregator's in its
    units, never less."""
    if not problem.trust.aggregator:
        return list(sigmas)
    weights = problem.weights or (1.0,) * len(sigmas)
    largest = max(weight * sigma for weight, sigma in zip(weights, sigmas, strict=True))
    return [max(sigma, largest / weight) for weight, sigma in zip(weights, sigmas, strict=True)]


def aggregated_sigma(sigmas: Sequence[float], weights: Sequence[float] | None) -> float:
    """Standard deviation per coordinate of an aggregator's noise on the mean over all silos, which the sigma of each
    share stands for. `weights`: of the silos; None: all 1."""
    weight = 1.0 if weights is None else weights[0]
    return sigmas[0] * weight / len(sigmas)


def mean_noise(sigmas: Sequence[float], weights: Sequence[float] | None, entrusted: bool) -> float:
    """Variance per coordinate of the noise on the mean over all silos, whoever adds it: an aggregator, or each silo."""
    if entrusted:
        return aggregated_sigma(sigmas, weights) ** 2
    of_each = zip(weights or (1.0,) * len(sigmas), sigmas, strict=True)
    return math.fsum((weight * sigma) ** 2 for weight, sigma in of_each) / len(sigmas) ** 2


def check_aggregator(problem: Problem) -> None:
    """Raises InputError where an aggregator is trusted with what it cannot do, or no plan accounts for."""
    if not problem.trust.aggregator:
        return
    wanted = (
        (problem.participation.full, "all silos in every round: leave participation.silos_per_round out"),
        (
            problem.budget.mechanism == "gaussian",
            "privacy.noise = seeded: it is a simulation, and guarded silos trust nobody",
        ),
        (problem.budget.whole_silo is None, "no privacy.whole_silo: leave it out"),
        (problem.evaluation is None, "no evaluation, in which silos add their own noise: leave it out"),
        (problem.trust.shuffle is None, "no shuffler beside the aggregator"),
    )
    for holds, said in wanted:
        if not holds:
            raise InputError(f"privacy.trust = central needs {said}")
