"""Epsilon of a silo's whole data set: neighbours differ in all records; their number is public.

Source: Lowy and Razaviyayn, ISRL-DP with user-level privacy of a silo that is one person ("hybrid", spec isrl-dp-fl,
section 3). The paper converts a record-level guarantee by group privacy. Here the mechanism itself is accounted, which
needs noise smaller by orders of magnitude.

Movement of an answer (ours; elementary). One replaced record moves a sum by at most s times its divisor, s being the
event's sensitivity. By the triangle inequality b replaced records move it by at most b s, attained where each moves it
in the same direction. All records of the silo are replaced, hence all that an answer is about:

- full batch, one pass: b = stop - start; the mean of b gradients of norm at most C moves by 2 C.
- fixed-size sample: b is the size of the sample, whichever records it has; no amplification.
- Poisson sample: b ~ Bin(stop - start, rate), divided by its mean (`loss_curves.all_of_sample`).

Shards do not compose in parallel: the whole silo is in each of them, so all events of all phases add. Rounding to a
grid moves a sum once and not once for each record, so b s covers it, too (`fedcore.mechanisms.grid`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache

from fedcore.accounting.composition import check_event, settled
from fedcore.accounting.events import GaussianRelease, gaussian_delta
from fedcore.accounting.gaussian import epsilon_of, mu_of
from fedcore.accounting.loss_distributions.discrete_losses import Answers
from fedcore.accounting.loss_distributions.loss_curves import all_of_sample, gaussian
from fedcore.accounting.loss_distributions.loss_distribution import epsilon_of_curves
from fedcore.accounting.noise_search import least_noise


@dataclass(frozen=True)
class WholeSilo:
    """A target for the whole data set of each silo: (epsilon, delta) for all that it sends in a run."""

    epsilon: float
    delta: float

    def factor(self, events: Iterable[GaussianRelease]) -> float:
        """The least factor on the noise of one silo's events that meets the target; it may be below 1.

        Accurate to 1e-4 from above with Poisson samples, else exact. Infinite for events without noise or accountant.
        """
        listed = tuple(events)
        full, sampled = _parts(listed)
        if math.isinf(full):
            return math.inf
        if not sampled:
            return math.sqrt(full) / mu_of(self.epsilon, _left(listed, self.delta))
        return _factor(listed, self.epsilon, self.delta)


def whole_silo_epsilon(events: Iterable[GaussianRelease], delta: float) -> float:
    """An epsilon >= 0 (nats) at `delta` for these events at one silo, for replacing all of its records.

    The smallest one for full batches, one pass and samples of a fixed size; with Poisson samples an upper bound.
    Infinite if an answer had no noise, or for samples with replacement. Raises ValueError as `composition.spent`.
    """
    listed = list(events)
    full, sampled = _parts(listed)
    left = _left(listed, delta)
    if not sampled or math.isinf(full):
        return epsilon_of(math.sqrt(full), left)
    return _composed(full, sampled, left)


def group_privacy(epsilon: float, delta: float, records: int) -> tuple[float, float]:
    """(epsilon_0, delta_0) per record that implies (epsilon, delta) for all `records` by group privacy.

    epsilon / n and delta / (n e^((n-1) epsilon / n)): the paper's App. G.1 with the factor that it leaves out (spec
    isrl-dp-fl, E4). A number for comparison; no noise is calibrated by it. delta_0 may underflow to 0.
    """
    each = epsilon / records
    return each, delta / records * math.exp(-(records - 1) * each)


_Samples = frozenset[tuple[tuple[int, float, float], int]]
"""Answers about Poisson samples, (records, rate, multiplier), with the number of each kind."""


def _parts(events: Iterable[GaussianRelease]) -> tuple[float, _Samples]:
    """mu^2 of all answers about a public number of records, and the answers about a random number."""
    full, sampled = [], Counter[tuple[int, float, float]]()
    for event in events:
        check_event(event)
        records = event.stop - event.start
        if event.sigma <= 0 or event.sampling == "with-replacement":
            full.append(math.inf)
        elif event.sampling == "poisson":
            sampled[records, event.rate, settled(event.sigma / event.sensitivity)] += event.count
        else:
            # The fixed size; the rate's rounding may make the product a last bit too large.
            most = math.ceil(event.rate * records * (1.0 - 2.0**-50))
            full.append(replace(event, sensitivity=most * event.sensitivity).gdp_mu_squared)
    return math.fsum(full) if math.inf not in full else math.inf, frozenset(sampled.items())


def _left(events: Iterable[GaussianRelease], delta: float) -> float:
    """Part of delta available to the Gaussian mechanisms that the noise stands for."""
    discrete = any(event.mechanism != "gaussian" for event in events)
    return gaussian_delta(delta, "discrete-gaussian") if discrete else delta


@lru_cache(maxsize=4096)
def _composed(full: float, sampled: _Samples, delta: float) -> float:
    # In a fixed order: a sum of floats depends on it.
    kinds = sorted(sampled)
    curves = [Answers(all_of_sample(*kind), count) for kind, count in kinds]
    if full > 0:
        curves.append(Answers(gaussian(math.sqrt(full)), 1))
    # The cost as if each sample had been all records. It has no grid, whose truncations decide where noise is very
    # large.
    all_each = math.hypot(math.sqrt(full), *(math.sqrt(count) * kind[0] / kind[2] for kind, count in kinds))
    return min(epsilon_of_curves(curves, delta), epsilon_of(all_each, delta))


@lru_cache(maxsize=4096)
def _factor(events: tuple[GaussianRelease, ...], epsilon: float, delta: float) -> float:
    def accounted(factor: float) -> float:
        return whole_silo_epsilon([replace(event, sigma=event.sigma * factor) for event in events], delta)

    full, sampled = _parts(events)
    all_each = full + math.fsum(count * (kind[0] / kind[2]) ** 2 for kind, count in sampled)
    enough = math.sqrt(all_each) / mu_of(epsilon, _left(events, delta))
    question = {"whole silo": [asdict(event) for event in events], "epsilon": epsilon, "delta": delta}
    return least_noise(accounted, enough, epsilon, question)
