"""Epsilon of Gaussian answers towards an observer who sees them shuffled with those of other silos.

Neighbours differ in one record of one silo, the target. In each round the target and at least M - 1 other silos send an
answer with the same noise, clipped records and size. A shuffler forwards all of them in random order. Participation is
visible and gives no amplification.

One round. Let P and Q be the target's answers on the two data sets, and W = (P + Q) / 2. P and Q are Gaussians whose
means lie at most `sensitivity` apart. An answer R of another silo, whatever its *whole* data set, has its mean within
`whole` of both, n times as far for n records. For any `share`, let e = integral of (share W - R)_+. It is at most share
times the mean of the hockey-stick divergences of P and of Q from R at ln(1 / share), hence

    e <= share delta_G(whole / sigma, ln(1 / share)).

So there is R' >= share W within total variation e of R: R plus its deficit, less as much of its excess. With R' in
place of R for M - 1 others, each of them is of W with probability `share`. The rest can be identified and sampled
without the target's record, so the batch is that of `blanket_curve`. Smaller distances of P and Q are covered too.
Scaling and adding noise turns the larger pair into the smaller one, and its W into the smaller pair's. More messages
than M reveal no more, since all beyond M can be identified.

R rounds. Each round's curve holds whatever the server asked, so rounds compose adaptively (`loss_distribution`), to
(epsilon, d). The answers of all rounds are within total variation R (M - 1) e of those with R', in both worlds, hence

    delta <= d + (1 + e^epsilon) R (M - 1) e + R M (mass beyond FARTHEST).

Where this is no less than the local epsilon of the same answers, the local one is returned: it holds without a
shuffler.

Sources: Feldman, McMillan and Talwar 2021 show that the others of a batch act as clones of the target whatever their
data, pair by pair; they compose rounds by advanced composition. The blanket: see `blanket`. Deviation: their reports
have a pure local epsilon, and a Gaussian has none; the argument above replaces it.
"""

from __future__ import annotations

import math
from functools import lru_cache

from scipy.optimize import brentq

from fedcore.accounting.blanket import WIDEST, blanket_curve, gaussian_lean
from fedcore.accounting.gaussian import epsilon_of, log_delta, mu_of
from fedcore.accounting.loss_distributions.discrete_losses import Answers
from fedcore.accounting.loss_distributions.loss_distribution import SHARE, epsilon_of_curves
from fedcore.accounting.noise_search import least_short_noise

CLOSENESS = 0.35
"""Part of delta that the distance of other silos' answers from the blanket may take."""
LARGEST_EPSILON = 500.0
"""Epsilon beyond which e^epsilon times that distance is not computed; the local epsilon is the result."""


@lru_cache(maxsize=4096)
def shuffled_epsilon(
    multiplier: float, records: int, rounds: int, messages: int, delta: float, target: float | None = None
) -> float:
    """An upper bound on epsilon at `delta` of `rounds` answers of a silo, shuffled with others.

    Each is one of `messages` in a batch.
    `multiplier`: sigma over the sensitivity of an answer to one of its `records`; n of them move it n times as far.
    Never more than the local epsilon of the same answers, which is returned where the bound does not apply. `target`:
    an epsilon to be met, if known; at it the bound is no looser than a search for it assumed.
    Raises ValueError unless 0 < delta < 1, multiplier > 0 and counts are positive.
    """
    if not (multiplier > 0 and min(records, rounds, messages) >= 1):
        raise ValueError(f"no answers: {multiplier=}, {records=}, {rounds=}, {messages=}")
    best = epsilon_of(math.sqrt(rounds) / multiplier, delta)
    if target is not None and target < best and _within(target, multiplier, records, rounds, messages, delta) <= target:
        best = target
    # The closeness of other answers costs (1 + e^epsilon) of an epsilon that is known only afterwards. Any bound on it
    # is valid if the result is no larger.
    for _ in range(3):
        found = _within(best, multiplier, records, rounds, messages, delta)
        if not found < best * (1 - 1e-3):
            break
        best = found
    return best


@lru_cache(maxsize=4096)
def shuffled_multiplier(records: int, rounds: int, messages: int, epsilon: float, delta: float) -> float:
    """The least sigma over sensitivity for (epsilon, delta) of shuffled answers, to 1e-4 from above.

    At most the local multiplier for (epsilon, delta), which is returned where a shuffler gains nothing.
    """
    local = math.sqrt(rounds) / mu_of(epsilon, delta)

    def accounted(multiplier: float) -> float:
        return _within(epsilon, multiplier, records, rounds, messages, delta)

    if accounted(local) > epsilon:
        return local
    question = {"shuffled": messages, "records": records, "rounds": rounds, "epsilon": epsilon, "delta": delta}
    return min(local, least_short_noise(accounted, local, epsilon, question))


def _within(ceiling: float, multiplier: float, records: int, rounds: int, messages: int, delta: float) -> float:
    """Epsilon if it is at most `ceiling`; a larger value is no bound, but rises as noise falls."""
    local = epsilon_of(math.sqrt(rounds) / multiplier, delta)
    if messages < 2 or ceiling > LARGEST_EPSILON or multiplier * WIDEST < 1:
        return local
    lean = gaussian_lean(1 / multiplier)
    left = (1 - CLOSENESS) * delta - rounds * messages * lean.lost
    if left <= 0:
        return local
    # The largest share for which the other silos' answers are close enough.
    log_allowed = math.log(CLOSENESS * delta / ((1 + math.exp(ceiling)) * rounds * (messages - 1)))
    whole = records / multiplier

    def excess(log_ratio: float) -> float:
        return max(log_delta(whole, log_ratio), -1e300) - log_ratio - log_allowed

    log_ratio = 0.0
    if excess(0.0) > 0:
        high = whole**2 / 2 + whole * math.sqrt(-2 * log_allowed)
        log_ratio = float(brentq(excess, 0.0, high, xtol=1e-12)) * (1 + 1e-9)
    share = math.exp(-log_ratio)
    curve = blanket_curve(lean, messages, share, SHARE * left / rounds / 2)
    return epsilon_of_curves([Answers(curve, rounds)], left)
