"""Best possible result of a one-run audit, before it is run: largest bound, smallest bug.

In the best case canaries do not disturb each other, and the transcript is for each of them exactly a Gaussian mechanism
with parameter mu. A score is then normal with mean +-mu/2 and variance 1, and only confident scores are guessed. A real
training can only do worse, so a bug that is not detectable here is not detectable.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np
from scipy import stats
from scipy.optimize import brentq

from fedcore.accounting.gaussian import epsilon_of
from fedcore.audit.one_run import lower_bound, p_value
from fedcore.directed_rounding import shown_down, shown_up

POWER = 0.95
LARGEST_MU = 100.0


@dataclass(frozen=True)
class OneRunPower:
    """Reach of a one-run audit with `m` canaries against a plan that accounts `accounted` at `delta`.

    `ceiling`: the bound if every guess were right, 0 where no outcome shows anything. `guesses`: number of guesses to
    make. `epsilon`: the least true epsilon at which the bound exceeds `accounted` with probability 0.95; None if there
    is none. `noise`: the noise that would spend it, as a multiple of the planned one.
    """

    m: int
    delta: float
    false_alarm: float
    accounted: float
    ceiling: float
    guesses: int
    epsilon: float | None
    noise: float | None

    @property
    def sentence(self) -> str:
        """The expected result, in one sentence."""
        head = (
            f"one-run audit of {self.m} canaries at delta {shown_up(self.delta, 3)}, confidence "
            f"{shown_down(1 - self.false_alarm, 6)}: "
        )
        if self.epsilon is None or self.noise is None:
            best = f"at best it shows epsilon {shown_down(self.ceiling)}"
            reason = "no outcome shows anything" if self.ceiling == 0 else best
            return head + f"promises nothing; {reason}, accounted are {shown_up(self.accounted)}"
        return head + (
            f"the smallest bug it promises to detect is noise of {shown_down(self.noise, 3)} times the plan, true "
            f"epsilon {shown_up(self.epsilon)} where {shown_up(self.accounted)} are accounted (at best it shows "
            f"{shown_down(self.ceiling)})"
        )

    def as_json(self) -> dict[str, Any]:
        """The fields and the sentence as plain JSON values."""
        return asdict(self) | {"power": POWER, "sentence": self.sentence}


def accuracy(mu: float, share: float) -> float:
    """Expected fraction of right guesses among the `share` (0 to 1] of most confident scores, at best."""
    if share >= 1:
        return float(stats.norm.cdf(mu / 2))

    def excess(cut: float) -> float:
        return float(stats.norm.sf(cut - mu / 2) + stats.norm.sf(cut + mu / 2)) - share

    cut = brentq(excess, 0.0, mu + 40.0)
    return min(1.0, float(stats.norm.sf(cut - mu / 2)) / share)


@cache
def one_run_power(m: int, delta: float, accounted: float, mu: float, false_alarm: float) -> OneRunPower:
    """The reach of an audit with `m` canaries of a plan with Gaussian-DP parameter `mu`.

    Raises ValueError unless m >= 1, mu > 0 and 0 < false_alarm < 1.
    """
    if m < 1 or not mu > 0 or not 0 < false_alarm < 1:
        raise ValueError(f"an audit of {m} canaries at mu = {mu} and level {false_alarm} has no power to speak of")
    choices = sorted({max(1, min(m, round(m * share))) for share in np.geomspace(0.01, 1.0, 17)})
    ceilings = {r: lower_bound(m, r, r, delta, false_alarm) for r in choices}
    ceiling = max(ceilings.values())
    able = [r for r in choices if ceilings[r] > accounted]

    def best(true_mu: float) -> int | None:
        for r in able:
            # Given the set of confident scores, right guesses are independent; a binomial is no less spread out.
            correct = int(stats.binom.ppf(1 - POWER, r, accuracy(true_mu, r / m)))
            if p_value(m, r, correct, accounted, delta) < false_alarm:
                return r
        return None

    if not able or best(LARGEST_MU) is None:
        highest = max(choices, key=lambda r: (ceilings[r], r))
        return OneRunPower(m, delta, false_alarm, accounted, ceiling, highest, None, None)
    low, high = mu, LARGEST_MU
    while high - low > 1e-3 * high:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if best(middle) is None else (low, middle)
    guesses = best(high)
    return OneRunPower(m, delta, false_alarm, accounted, ceiling, guesses or m, epsilon_of(high, delta), mu / high)
