"""Epsilon under honest silo sampling: the server really draws by chance which silos take part.

Participation is visible, so a drawn round has no amplification in the usual sense. It reveals nothing where the silo is
left out and all of its answers where it takes part. The gain: the number of rounds with the silo's answers is random.
It is Binomial(T, p) if in each of T rounds a uniform subset of p M of the M silos is drawn afresh:

    delta(epsilon) = sum over n of Binomial(n; T, p) delta_n(epsilon), delta_n that of n rounds' answers

This also holds for a subset of random size with expectation p M, drawn anew in each round. Given the size m, a silo's
chance is m / M, on average p, and rounds are independent of one another.

The epsilon averages over draws that are still unknown. For an observer who knows them (in a simulation they follow from
the public seed) n is a number, and delta_n(epsilon) holds. The epsilon also assumes an honest server. No number that
protects a silo uses it: accounted epsilons, calibrated noise, ledgers and caps count every round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from fedcore.accounting.composition import Kinds, curves_of, participation_of, spent
from fedcore.accounting.events import GaussianRelease, gaussian_delta
from fedcore.accounting.loss_distributions.loss_distribution import epsilon_of_curves


def honest_sampling(
    event: GaussianRelease, rounds: int, participation: float, delta: float, certain: Sequence[GaussianRelease] = ()
) -> float:
    """An epsilon >= 0 (nats) at `delta` for `event` with chance `participation` in each round.

    `event`: all that the silo answers in one round (count: K local steps). `participation`: drawn anew in each of
    `rounds`. `certain`: answers that do not depend on the draws, such as the K gradients of a warm start. A silo gives
    these at most once and is charged for them in full.
    An upper bound whatever the grid, typically within 0.1 %. It never exceeds `spent` of an answer in every round,
    equals that for participation 1, and is infinite where that is.
    Assumes that the draws are honest, independent of one another and of all records; not for caps (see the module).
    Source: spec dp-scaffold, 5.8 (`certified`).
    Raises ValueError unless rounds >= 1, 0 < participation <= 1 and 0 < delta < 1. Raises it also for events that
    `spent` does not know or that are not all about the same positions.
    """
    if rounds < 1:
        raise ValueError(f"rounds = {rounds} must be at least 1")
    if not 0 < participation <= 1:
        raise ValueError(f"participation = {participation} must be above 0 and at most 1")
    for other in certain:
        if (other.start, other.stop) != (event.start, event.stop):
            raise ValueError(f"{other} and {event} must be about the same positions")
    every = [replace(event, count=event.count * rounds), *certain]
    most = spent(every, delta)
    if participation == 1 or most == 0 or math.isinf(most):
        return most
    if any(one.mechanism != "gaussian" for one in every):
        delta = gaussian_delta(delta, "discrete-gaussian")
    # A silo that answers in every round bounds every mixture, and its closed form has no grid.
    return min(most, _mixture(participation_of([event]), rounds, participation, participation_of(certain), delta))


@lru_cache(maxsize=1024)  # the silos of a plan repeat the question
def _mixture(
    drawn: tuple[float, Kinds], rounds: int, participation: float, certain: tuple[float, Kinds], delta: float
) -> float:
    in_rounds = [replace(one, participation=participation, rounds=rounds) for one in curves_of(*drawn)]
    return epsilon_of_curves(in_rounds + curves_of(*certain), delta)
