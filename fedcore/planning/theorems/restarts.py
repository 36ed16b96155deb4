"""Choice of DIFF2's period and of the split of its budget between restarts and differences.

Murata and Suzuki 2023, Proposition D.2 (spec diff2, 5), with clipping bounds that no gradient exceeds. For steps
`eta <= min{1 / (2 L), 1 / (2 sqrt(T s_2^2 C_2^2 d))}`,

    E |grad f(x_out)|^2 <= 2 (f(x_0) - f(x_*)) / (eta R) + 2 s_1^2 C_1^2 d,

s C the noise of the mean over silos. At a given eta, period and split decide the last term. s_1^2 is m_1 / v. The
condition on eta bounds `T m_2 / (1 - v)` by `1 / (4 eta^2 d V)`, V the noise of a difference that has the whole budget.
So the best split is `v = 1 - c T m_2` with `c = 4 eta^2 d V`. The best period minimises `ceil(R / T) / (1 - c T m_2)`.
With real numbers that is `T = (1 + c R) / (2 c R)` and v near 1/2, half of the budget for restarts. The experiments of
the paper give restarts four fifths (u = 1.25), whatever the step. (Ours; elementary.)

The part of a gradient that a restart clips is missing from the estimate until the next restart, which the proposition
excludes. So a longer period is taken only where noise requires it. Chosen is the shortest period whose restarts have
noise of norm at most C_1 / 10, if there is one (ours; docs/results/diff2.md shows why).

With K - 1 local steps of one silo after each step (Propositions F.2, F.3) this holds with 2 e K^2 times the cost c. The
local noise and the silos' heterogeneity bound steps further.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedcore.planning.theorems.cycle import PAPER_SPLIT, Cycle

LEAST_PART = 0.05
"""Least part of the budget for restarts, and for differences, so that neither is nearly all noise."""
HALF = 0.5
"""Split where none meets the condition on the step."""
ENOUGH = 0.01
"""Squared norm of a restart's noise, in units of its clipping bound, at which a period counts as long enough."""
MOST_TRIED = 2**20
"""Number of periods that are tried; periods too long for the condition are left out."""
AT_A_TIME = 2**16


def best_cycle(rounds: int, period: int | None, split: float | None, cost: float, relative: float = math.inf) -> Cycle:
    """The cycle of the least bound, with period and split as given or, for None, chosen.

    `cost`: c of the given step, 0 without noise. `relative`: squared norm of the noise of a single restart with the
    whole budget, over C_1^2; infinite: no period is short enough. A given period too long for the condition has the
    split 1/2. With T = 1 there is no split.
    """
    if period is None:
        period = _best_period(rounds, split, cost, relative)
    period = min(period, rounds)
    cycle = Cycle(rounds, period, PAPER_SPLIT if split is None else split)
    if split is not None or not cycle.differences:
        return cycle
    left = 1.0 - cost * period * cycle.differences
    return Cycle(rounds, period, min(max(left, LEAST_PART), 1.0 - LEAST_PART) if left > 0 else HALF)


def _best_period(rounds: int, split: float | None, cost: float, relative: float) -> int:
    """The smallest T in 1 .. R whose restarts have little enough noise, else the T of the least m_1 / v."""
    if relative * rounds <= ENOUGH:
        return 1
    longest = rounds if cost == 0 else min(rounds, 2 + math.floor(4.0 / (cost * rounds)))
    last = min(longest, MOST_TRIED)
    best, least = 1, math.inf
    for first in range(
        1, last + 1, AT_A_TIME
    ):  # the same result as for all periods at once, in a sixteenth of the memory
        periods = np.arange(first, min(first + AT_A_TIME - 1, last) + 1)
        floor = _floors(rounds, split, cost, periods)
        enough = np.flatnonzero(relative * floor <= ENOUGH)
        if enough.size:
            return int(periods[enough[0]])
        if floor.min() < least:
            best, least = int(periods[np.argmin(floor)]), float(floor.min())
    return best


def _floors(rounds: int, split: float | None, cost: float, periods: NDArray[np.int64]) -> NDArray[np.float64]:
    """m_1 / v of these periods T; infinite where the condition on the step is not met."""
    restarts = -(-rounds // periods)
    taken = cost * periods * (rounds - restarts)
    with np.errstate(divide="ignore"):
        if split is None:
            left = np.clip(1.0 - taken, LEAST_PART, 1.0 - LEAST_PART)
            floor = np.where(taken < 1.0 - LEAST_PART, restarts / left, np.inf)
        else:
            floor = np.where(taken <= 1.0 - split, restarts / split, np.inf)
    return np.where(periods == 1, float(rounds), floor)


def theorem_period(rounds: int, gradient: float, slope: float, dim: int, signal: float) -> int:
    """T of Theorem 4.3, max(1, round(tau R)), without its unspecified constant.

    `tau = (G^2 sqrt(d) / (L N epsilon))^(2/3)`, with the clipping bounds for G and L. `signal`: N epsilon, or between
    silos n_min sqrt(P) epsilon (spec, 8).
    """
    tau = (gradient**2 * math.sqrt(dim) / (slope * signal)) ** (2.0 / 3.0)
    return min(rounds, max(1, round(tau * rounds)))


def longest_step(
    slope: float, period: int, noise: float, dim: int, local: tuple[int, int, float] | None = None
) -> float:
    """The theorem's longest step, `min{1 / (2 L), 1 / (2 sqrt(T s_2^2 C_2^2 d))}`, with C_2 for L.

    `noise`: s_2^2 C_2^2 of the mean over silos. `local`: K, b and s_3^2 C_3^2 of local steps. With them T counts 2 e
    K^2 fold, and Proposition F.3 adds the bound `1 / (2 sqrt(2 e (K^2 zeta^2 + K L^2 / b + K s_3^2 C_3^2 d)))`. There
    zeta is replaced by its bound L.
    """
    steps, bounds = 1.0, [1.0 / (2.0 * slope)]
    if local is not None:
        K, b, own = local
        steps = growth(K)
        drift = 2.0 * math.e * (K**2 * slope**2 + K * slope**2 / b + K * own * dim)
        bounds.append(1.0 / (2.0 * math.sqrt(drift)))
    if noise > 0:
        bounds.append(1.0 / (2.0 * math.sqrt(steps * period * noise * dim)))
    return min(bounds)


def growth(steps: int) -> float:
    """2 e K^2, the factor of K local steps on the cost of differences; 1 without local steps."""
    return 1.0 if steps == 1 else 2.0 * math.e * steps**2
