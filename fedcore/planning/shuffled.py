"""Gain of a shuffler in a plan: epsilon towards those who see only shuffled batches, and noise saved."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedcore.accounting.events import gaussian_delta
from fedcore.accounting.gaussian import mu_of
from fedcore.accounting.shuffling import shuffled_epsilon
from fedcore.mechanisms.grid import delta_cost
from fedcore.planning.phase import Phase
from fedcore.planning.problem import Problem


def phase_epsilon(problem: Problem, phase: Phase, silo: str) -> float:
    """Epsilon of a phase at `silo`, in batches of `Shuffle.minimum` messages.

    Infinite where no accountant covers the phase.
    """
    event = phase.event(silo, 1)
    if problem.trust.shuffle is None or event.sigma <= 0 or event.sampling != "full" or phase.schedule.answers > 1:
        return math.inf
    delta = gaussian_delta(problem.budget.delta(problem.sizes[silo]), event.mechanism)
    rounds = 1 if phase.schedule.fresh_blocks else phase.most_answers
    records, messages = int(phase.by_silo[silo].batch), problem.trust.shuffle.minimum
    found = shuffled_epsilon(event.sigma / event.sensitivity, records, rounds, messages, delta, problem.budget.epsilon)
    if event.mechanism != "gaussian":  # the distance of each message of all batches from a Gaussian mechanism's
        dim = phase.question.length(problem.objective.dim)
        if delta_cost(dim, phase.rounds * messages, found) > problem.budget.delta(problem.sizes[silo]) - delta:
            return math.inf
    return found


def noise_without(problem: Problem, phases: Sequence[Phase]) -> float | None:
    """Largest ratio, over phases, of the noise needed without a shuffler to the planned noise.

    1 where the local calibration needs no more. None without a shuffler, or without a target.
    """
    budget = problem.budget
    if problem.trust.shuffle is None or budget.epsilon is None or budget.multiplier is not None:
        return None
    factors = [1.0]
    for phase in phases:
        event = phase.events(problem.silos[0].name)[0]
        delta = gaussian_delta(budget.delta(problem.sizes[problem.silos[0].name]), event.mechanism)
        factors.append(math.sqrt(event.gdp_mu_squared) / mu_of(budget.epsilon, delta))
    return max(factors)
