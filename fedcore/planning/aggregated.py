"""Noise of a trusted aggregator: one vector on the mean of all silos, in place of one at each.

Replacing a record of silo p moves the mean over N silos by p's weight times `2 C / n_p`, over N. So p needs a standard
deviation of w_p / N times the one on its own mean. The aggregator takes the largest that any silo needs. A share's
sigma is that noise in units of the silo's own mean; larger silos spend less. Source: Murata and Suzuki 2023, Lemma C.1
and Proposition 4.1, whose n_min this is for equal weights (spec diff2, 4.1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedcore.errors import InputError
from fedcore.planning.problem import Problem


def noise_as_planned(problem: Problem, sigmas: Sequence[float]) -> list[float]:
    """Sigma of each silo's share, from the sigma that each silo needs on its own mean.

    Both are in the problem's order. Without an aggregator they are equal. With one, a share's sigma is the aggregator's
    noise in the silo's units, never less than the silo needs.
    """
    if not problem.trust.aggregator:
        return list(sigmas)
    weights = problem.weights or (1.0,) * len(sigmas)
    largest = max(weight * sigma for weight, sigma in zip(weights, sigmas, strict=True))
    return [max(sigma, largest / weight) for weight, sigma in zip(weights, sigmas, strict=True)]


def aggregated_sigma(sigmas: Sequence[float], weights: Sequence[float] | None) -> float:
    """Standard deviation per coordinate of the aggregator's noise on the mean over all silos.

    `sigmas`: of the shares, which all stand for this noise. `weights`: of the silos; None: all 1.
    """
    weight = 1.0 if weights is None else weights[0]
    return sigmas[0] * weight / len(sigmas)


def mean_noise(sigmas: Sequence[float], weights: Sequence[float] | None, entrusted: bool) -> float:
    """Variance per coordinate of the noise on the mean over all silos.

    `entrusted`: an aggregator adds it; else each silo adds its part.
    """
    if entrusted:
        return aggregated_sigma(sigmas, weights) ** 2
    of_each = zip(weights or (1.0,) * len(sigmas), sigmas, strict=True)
    return math.fsum((weight * sigma) ** 2 for weight, sigma in of_each) / len(sigmas) ** 2


def check_aggregator(problem: Problem) -> None:
    """Raises InputError where a problem with an aggregator has a feature that no plan accounts for."""
    if not problem.trust.aggregator:
        return
    wanted = (
        (problem.participation.full, "all silos in every round: leave participation.silos_per_round out"),
        (
            problem.budget.mechanism == "gaussian",
            "privacy.noise = seeded: it is a simulation, and guarded silos trust no aggregator",
        ),
        (problem.budget.whole_silo is None, "no privacy.whole_silo: leave it out"),
        (problem.evaluation is None, "no evaluation, in which silos add their own noise: leave it out"),
        (problem.trust.shuffle is None, "no shuffler beside the aggregator"),
    )
    for holds, requirement in wanted:
        if not holds:
            raise InputError(f"privacy.trust = central needs {requirement}")
