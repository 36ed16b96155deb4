"""Events and epsilon of a plan, from its shares' public numbers and independent formulas.

Those are dp-accounting's, or closed.
"""

import functools
import math

import numpy as np
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant, pld_pmf

from tests import gaussian_curve


def events_by_hand(plan, silo):
    """(phase, round, first position, last + 1, K, sigma) of every planned round, from public numbers.

    For differences sigma is per unit of the step. Rounds that are another silo's turn are left out.
    """
    names = [facts.name for facts in plan.problem.silos]
    for whole in plan.phases:
        turns = 0
        for round in range(1, whole.rounds + 1):
            phase = whole.at(round)
            share = phase.by_silo[silo]
            if phase.schedule.in_turn:
                turns += 1
                if turns % len(names) != names.index(silo):
                    continue
            start = share.start + (round - 1) * share.batch if phase.schedule.fresh_blocks else share.start
            stop = start + (share.batch if phase.schedule.fresh_blocks else share.n)
            yield phase.index, round, start, stop, share.batch, share.sigma


def epsilon_by_hand(plan, silo, n, delta):
    """Epsilon of the worst position.

    Full batches: composition of mu = 2 C / (K sigma), and the plain formula.
    Samples: dp-accounting's own composition, whose Poisson mechanism takes noise relative to C / K under REPLACE_ONE.
    """
    if any(kind.schedule.in_turn for phase in plan.phases for kind in phase.kinds):
        return _mixed_epsilon(plan, silo, delta)
    if any(share.rate < 1 for phase in plan.phases for share in phase.shares):
        return max(_library_epsilon(plan, phase, silo, delta) for phase in plan.phases)
    mu_squared = np.zeros(n)
    for index, round, start, stop, K, sigma in events_by_hand(plan, silo):
        phase = plan.phases[index - 1].at(round)
        mu_squared[start:stop] += phase.schedule.answers * (2 * phase.question.clip * (1 + 1e-6) / (K * sigma)) ** 2
    return gaussian_curve.epsilon_by_hand(math.sqrt(mu_squared.max()), delta)


@functools.cache
def _library(z, rate, rounds, delta):
    accountant = PLDAccountant(NeighboringRelation.REPLACE_ONE)
    accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(z)), rounds)
    return accountant.get_epsilon(delta)


def _mixed_epsilon(plan, silo, delta):
    """Full batches composed with local steps about samples of a fixed size, as loss distributions."""
    mu_squared, samples = 0.0, {}
    for index, round, _, _, K, sigma in events_by_hand(plan, silo):
        phase = plan.phases[index - 1].at(round)
        z = K * sigma / (2 * phase.question.clip * (1 + 1e-6))
        if phase.by_silo[silo].rate == 1:
            mu_squared += phase.schedule.answers / z**2
        else:
            kind = (float(f"{z:.12g}"), phase.by_silo[silo].rate)
            samples[kind] = samples.get(kind, 0) + phase.schedule.answers
    (((z, rate), answers),) = samples.items()
    whole = _fixed_size(1 / math.sqrt(mu_squared), 1.0)
    return _fixed_size(z, rate).self_compose(answers).compose(whole).get_epsilon_for_delta(delta)


def _library_of_fixed_size(z, rate, answers, delta):
    return _fixed_size(z, rate).self_compose(answers).get_epsilon_for_delta(delta)


@functools.cache
def _fixed_size(z, rate):
    """Balle, Barthe, Gaboardi 2018, Theorem 9, made symmetric, as points of dp-accounting's distribution."""

    def hockey_stick(e):
        at = abs(e)
        amplified = math.log1p(math.expm1(at) / rate)
        above = rate * gaussian_curve.delta_by_hand(1 / z, amplified)
        return above if e >= 0 else 1 - math.exp(-at) * (1 - above)

    step, reach = 2e-3, 40.0 / z + 2.0  # one grid for all, so that they can be composed
    places = np.arange(-math.ceil(reach / step), math.ceil(reach / step) + 1)
    return pld_pmf.create_pmf_pessimistic_connect_dots(step, places, [hockey_stick(step * k) for k in places])


def _library_epsilon(plan, phase, silo, delta):
    """Epsilon of one phase, whose shards are disjoint (another test checks that)."""
    share = phase.by_silo[silo]
    if phase.schedule.sampling == "without-replacement":
        z = share.sigma * share.batch / (2 * plan.problem.objective.clip * (1 + 1e-6))
        return _library_of_fixed_size(float(f"{z:.12g}"), share.rate, phase.rounds * phase.schedule.answers, delta)
    z = share.sigma * share.rate * share.n / (plan.problem.objective.clip * (1 + 1e-6))
    return _library(float(f"{z:.12g}"), share.rate, phase.rounds, delta)
