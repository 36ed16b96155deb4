"""Events and epsilon of a plan, from its shares' public numbers and dp-accounting or closed formulas alone."""

import functools
import math

import numpy as np
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant, pld_pmf

from tests import gaussian_curve


def events_by_hand(plan, silo):
    """(phase, round, first position, last + 1, K, sigma) of every planned round, from the shares' public numbers."""
    for phase in plan.phases:
        share = phase.by_silo[silo]
        for round in range(1, phase.rounds + 1):
            start = share.start + (round - 1) * share.batch if phase.fresh_blocks else share.start
            stop = start + (share.batch if phase.fresh_blocks else share.n)
            yield phase.index, round, start, stop, share.batch, share.sigma


def epsilon_by_hand(plan, silo, n, delta):
    """Epsilon of the worst position. Full batches: composition of mu = 2 C / (K sigma), and the plain formula.

    Samples: dp-accounting's own composition, whose Poisson mechanism takes noise relative to C / K under REPLACE_ONE.
    """
    if any(share.rate < 1 for phase in plan.phases for share in phase.shares):
        return max(_library_epsilon(plan, phase, silo, delta) for phase in plan.phases)
    mu_squared = np.zeros(n)
    for index, _, start, stop, K, sigma in events_by_hand(plan, silo):
        answers = plan.phases[index - 1].answers
        mu_squared[start:stop] += answers * (2 * plan.problem.clip * (1 + 1e-6) / (K * sigma)) ** 2
    return gaussian_curve.epsilon_by_hand(math.sqrt(mu_squared.max()), delta)


@functools.cache
def _library(z, rate, rounds, delta):
    accountant = PLDAccountant(NeighboringRelation.REPLACE_ONE)
    accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(z)), rounds)
    return accountant.get_epsilon(delta)


@functools.cache
def _library_of_fixed_size(z, rate, answers, delta):
    """Balle, Barthe, Gaboardi 2018, Theorem 9, made symmetric, as points of dp-accounting's own distribution."""

    def hockey_stick(e):
        at = abs(e)
        amplified = math.log1p(math.expm1(at) / rate)
        above = rate * gaussian_curve.delta_by_hand(1 / z, amplified)
        return above if e >= 0 else 1 - math.exp(-at) * (1 - above)

    step, reach = 2e-3, 40.0 / z + 2.0
    places = np.arange(-math.ceil(reach / step), math.ceil(reach / step) + 1)
    mass = pld_pmf.create_pmf_pessimistic_connect_dots(step, places, [hockey_stick(step * k) for k in places])
    return mass.self_compose(answers).get_epsilon_for_delta(delta)


def _library_epsilon(plan, phase, silo, delta):
    """Of one phase: pieces are disjoint, which another test looks at."""
    share = phase.by_silo[silo]
    if phase.sampling == "without-replacement":
        z = share.sigma * share.batch / (2 * plan.problem.clip * (1 + 1e-6))
        return _library_of_fixed_size(float(f"{z:.12g}"), share.rate, phase.rounds * phase.answers, delta)
    z = share.sigma * share.rate * share.n / (plan.problem.clip * (1 + 1e-6))
    return _library(float(f"{z:.12g}"), share.rate, phase.rounds, delta)
