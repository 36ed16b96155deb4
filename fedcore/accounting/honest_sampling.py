"""What a run costs a silo if the server really draws by chance who takes part: the epsilon under honest silo sampling.

Everybody sees who takes part, so a drawn round has no amplification in the usual sense: it reveals nothing where the
silo is left out and all of its answers where it is not. What the draw gives is that the number of rounds that a silo
answers in is random, Binomial(T, p), for a uniform subset of p M of the M silos drawn afresh in each of T rounds:

    delta(epsilon) = sum over n of Binomial(n; T, p) delta_n(epsilon), delta_n that of n rounds' answers

It is so too where the size of the subset is random, drawn anew in each round, with p M its expectation: given the size
m a silo's chance is m / M, on average p, and rounds are independent of one another.

It is an average over draws that nobody knows yet: to somebody who knows them (in a simulation they follow from the
public seed) n is a number, and delta_n(epsilon) what holds. It rests on the server drawing as it says. Nothing that a
silo relies on uses it: the accounted epsilon of a plan, the noise that is calibrated to it, ledgers and caps are all
for a silo that is asked in every round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from fedcore.accounting.composition import Kinds, curves_of, spent, together
from fedcore.accounting.events import GaussianRelease, gaussian_delta
from fedcore.accounting.loss_distributions.loss_distribution import epsilon_of_curves


def honest_sampling(
    event: GaussianRelease, rounds: int, participation: float, delta: float, certain: Sequence[GaussianRelease] = ()
) -> float:
    """An epsilon >= 0 (nats) at `delta` if the silo gives `event` in each of `rounds` rounds with chance
    `participation`, drawn anew in each, and those of `certain` in any case.

    `event`: all that the silo answers in one round (count: K local steps). `certain`: what is not left to the draws,
    such as the K gradients of a warm start, which a silo gives once at most and is charged for in full.
    An upper bound whatever the grid, typically within 0.1 %; it never exceeds `spent` of an answer in every round,
    equals it for participation 1, and is infinite where that is.
    Assumes that the draws are honest, independent of one another and of all records; not for caps (see the module).
    Source: spec dp-scaffold, 5.8 (`certified`).
    Raises ValueError unless rounds >= 1, 0 < participation <= 1 and 0 < delta < 1, and for events that `spent` does not
    know or that are not all about the same positions.
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
    return min(most, _mixture(together([event]), rounds, participation, together(certain), delta))


@lru_cache(maxsize=1024)  # the silos of a plan ask the same question
def _mixture(
    drawn: tuple[float, Kinds], rounds: int, participation: float, certain: tuple[float, Kinds], delta: float
) -> float:
    in_rounds = [replace(one, participation=participation, rounds=rounds) for one in curves_of(*drawn)]
    return epsilon_of_curves(in_rounds + curves_of(*certain), delta)
