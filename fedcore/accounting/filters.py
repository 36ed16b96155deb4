"""Caps as privacy filters: rules that stay valid when each run is chosen after looking at all that came before.

A run is charged its full plan when a silo approves it. The rules look at charges only, and each has a proof for
adaptively chosen ones. An epsilon composed from privacy loss distributions has none: it describes a plan that was
fixed beforehand, and stopping when it reaches a target can spend more (an example is in
tests/fedcore/accounting/test_filters.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from fedcore.accounting.composition import spent, worst_mu_squared
from fedcore.accounting.events import GaussianRelease, gaussian_delta
from fedcore.accounting.gaussian import epsilon_of, mu_of

Rule = Literal["gdp", "rdp", "basic"]
SLACK = 1 + 1e-12
"""A run whose target is the cap itself must fit in spite of rounding."""
ORDERS = tuple(1 + 2 ** (power / 8) for power in range(-48, 81))
"""Renyi orders, from which a cap takes one, once and for all."""


@dataclass(frozen=True)
class Charge:
    """What one run may cost a silo at most: squared Gaussian-DP parameter, and epsilon at the run's delta.

    Both are bounds by themselves, at least 0 and perhaps infinite; others raise ValueError. Where answers are about
    samples, mu_squared is that of answers about all, which is far from tight, and epsilon is composed exactly: `basic`
    then charges less than the two other rules.
    """

    mu_squared: float
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        # The negation also refuses what is not a number. A negative charge would make room under a cap.
        if not (self.mu_squared >= 0 and self.epsilon >= 0 and self.delta >= 0):
            raise ValueError(f"no run costs mu^2 {self.mu_squared}, epsilon {self.epsilon} at delta {self.delta}")

    @classmethod
    def of(cls, events: Iterable[GaussianRelease], delta: float) -> Charge:
        """The charge of a plan's events at one silo. Raises ValueError for events without a bound on mu."""
        listed = list(events)
        return cls(worst_mu_squared(listed), spent(listed, delta), delta)


@dataclass(frozen=True)
class Cap:
    """A silo's limit (epsilon, delta) over all runs, and the rule that keeps to it.

    gdp:   the sum of mu^2 stays below the mu^2 that is (epsilon, delta)-DP; loses nothing for Gaussian noise
           (fully adaptive composition for Gaussian DP: Smith and Thakurta 2022; Koskela, Tobaben and Honkela 2023).
           An answer about a sample counts as one about all, which it is never worse than.
    rdp:   Renyi divergences of one order, fixed by the cap alone, add up to at most what converts to (epsilon, delta)
           (Renyi filter: Feldman and Zrnic 2021; conversion: Canonne, Kamath and Steinke 2020, Proposition 12).
    basic: epsilons and deltas add up (privacy filter of basic composition: Rogers, Roth, Ullman and Vadhan 2016).
    """

    epsilon: float
    delta: float
    rule: Rule = "gdp"

    def admits(self, charges: Sequence[Charge]) -> bool:
        """Whether runs with these charges, chosen adaptively, keep to the cap together."""
        if self.rule == "basic":
            epsilon = math.fsum(charge.epsilon for charge in charges)
            delta = math.fsum(charge.delta for charge in charges)
            return epsilon <= self.epsilon * SLACK and delta <= self.delta * SLACK
        return math.fsum(charge.mu_squared for charge in charges) <= self._largest_mu_squared() * SLACK

    def left(self, charges: Sequence[Charge]) -> float:
        """Epsilon (at the cap's delta; for basic, any) that one more run may take; 0 if none."""
        if self.rule == "gdp" and not any(charge.mu_squared for charge in charges):
            return self.epsilon  # and not what rounding leaves of it
        if self.rule == "basic":
            if math.fsum(charge.delta for charge in charges) >= self.delta:
                return 0.0
            return max(0.0, self.epsilon - math.fsum(charge.epsilon for charge in charges))
        left = self._largest_mu_squared() - math.fsum(charge.mu_squared for charge in charges)
        return epsilon_of(math.sqrt(left), self.delta) if left > 0 else 0.0

    def _largest_mu_squared(self) -> float:
        if self.rule == "gdp":
            # Some runs may have discrete noise; what that takes of delta is below any rounding.
            return mu_of(self.epsilon, gaussian_delta(self.delta, "discrete-gaussian")) ** 2
        # A mu-GDP mechanism has divergence order * mu^2 / 2. The order follows from the cap, never from the runs.
        return max(0.0, max(2 / order * (self.epsilon - self._conversion(order)) for order in ORDERS))

    def _conversion(self, order: float) -> float:
        return math.log1p(-1 / order) - math.log(self.delta * order) / (order - 1)
