"""Noise level in the theorems on minibatch SGD: psi of each silo, and the better bound over silos.

Source: Lowy and Razaviyayn 2023, the notation of their complete theorems, corrected (spec isrl-dp-fl 2; E2, E3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from fedcore.errors import InputError
from fedcore.planning.batches import weighted_clip
from fedcore.planning.participation import Participation
from fedcore.planning.problem import Problem


@dataclass(frozen=True)
class NoiseLevel:
    """`participants`: Mt, M or M'; `psi`: psit. The published noise of R rounds has variance 256 R psit."""

    participants: float
    psi: float


def level_of(problem: Problem, rounds: int, key: str) -> NoiseLevel:
    """The `switch` of all silos' psi_i, for R rounds.

    `psi_i = (c_i L / (n_i epsilon))^2 ln(2.5 R / delta_i) ln(2 / delta_i)`. Without noise (a case that the papers do
    not have) d psit is L^2 / n, the accuracy that the data allow. Raises InputError, naming `key`, for noise that is
    given in place of a target.
    """
    budget = problem.budget
    if budget.epsilon is None:
        if budget.private:
            raise InputError(f"{key} needs privacy.epsilon: the theorem's number follows from it; give a number")
        return NoiseLevel(
            problem.harmonic_participants, weighted_clip(problem) ** 2 / (problem.n * problem.objective.dim)
        )
    psi = []
    for silo, weight in zip(problem.silos, problem.weights or (1.0,) * problem.n_silos, strict=True):
        delta = budget.delta(silo.n)
        unit = weight * problem.objective.clip / (silo.trained * budget.epsilon)
        psi.append(unit**2 * math.log(2.5 * rounds / delta) * math.log(2.0 / delta))
    return switch(psi, problem.participation)


def switch(psi: Sequence[float], participation: Participation) -> NoiseLevel:
    """(M', Psi) if Psi / M' <= psi_max / M, else (M, psi_max), of the silos' psi_i and the law of M_r.

    1/M = E[1/M_r], 1/M'^2 = E[1/M_r^2], Psi^2 = E[(mean of the M_r largest psi_i)^2].
    """
    largest, M, second = sorted(psi, reverse=True), participation.harmonic, participation.second_harmonic
    sums = list(accumulate(largest))
    mean = math.sqrt(math.fsum(p * (sums[m - 1] / m) ** 2 for m, p in participation.probabilities))
    if mean / second <= largest[0] / M:
        return NoiseLevel(second, mean)
    return NoiseLevel(M, largest[0])
