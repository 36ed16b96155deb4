"""Caps as privacy filters: rules that stay valid when each run is chosen after looking at all that came before.

A run is charged its full plan when a silo approves it. The rules look at charges only, and each has a proof for
adaptively chosen ones. An epsilon composed from privacy loss distributions has none: it describes a plan that was
fixed beforehand, and stopping when it reaches a target can spend more (an example is in
tests/fedcore/accounting/test_filters.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

from fedcore.accounting.composition import spent, worst_mu_squared
from fedcore.accounting.divergences import renyi
from fedcore.accounting.divergences.pieces import Piece, divergence, pieces_from, pieces_json, pieces_of
from fedcore.accounting.events import GaussianRelease, gaussian_delta, is_number, is_whole
from fedcore.accounting.gaussian import epsilon_of, mu_of
from fedcore.errors import InputError

Rule = Literal["gdp", "rdp", "basic"]
SLACK = 1 + 1e-12
"""A run whose target is the cap itself must fit in spite of rounding."""


@dataclass(frozen=True)
class Divergence:
    """A Renyi divergence `rho` of one `order`, rounded up, by version `formula` of `renyi`.

    Raises ValueError for an order that is none, a divergence that is negative or no number, and a version below 1.
    """

    order: float
    rho: float
    formula: int = renyi.FORMULA

    def __post_init__(self) -> None:
        renyi.check_order(self.order)
        if not (is_number(self.rho) and self.rho >= 0 and is_whole(self.formula) and self.formula >= 1):
            raise ValueError(f"no divergence is {self.rho} by formula {self.formula}")


@dataclass(frozen=True)
class Charge:
    """What one run may cost a silo at most: squared Gaussian-DP parameter, and epsilon at the run's delta.

    Both are bounds by themselves, at least 0 and perhaps infinite; others raise ValueError. Where answers are about
    samples, mu_squared is that of answers about all, which is far from tight, and epsilon is composed exactly.
    `pieces`: the answers of a run of samples, which its Renyi divergence of any order follows from; () where mu_squared
    says all. `divergence`: that of the account's order, as it was charged; None before there is one.
    """

    mu_squared: float
    epsilon: float
    delta: float
    pieces: tuple[Piece, ...] = ()
    divergence: Divergence | None = None

    def __post_init__(self) -> None:
        # The negation also refuses what is not a number. A negative charge would make room under a cap.
        numbers = all(is_number(each) for each in (self.mu_squared, self.epsilon, self.delta))
        if not (numbers and self.mu_squared >= 0 and self.epsilon >= 0 and self.delta >= 0):
            raise ValueError(f"no run costs mu^2 {self.mu_squared}, epsilon {self.epsilon} at delta {self.delta}")

    @classmethod
    def of(cls, events: Iterable[GaussianRelease], delta: float) -> Charge:
        """The charge of a plan's events at one silo. Raises ValueError for events without a bound on mu."""
        listed = list(events)
        return cls(worst_mu_squared(listed), spent(listed, delta), delta, pieces_of(listed))

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Charge:
        """The charge that `json` made, also by versions that knew mu^2, epsilon and delta only.

        Raises ValueError, TypeError or KeyError for anything else.
        """
        more = set(values) - {"mu_squared", "epsilon", "delta", "pieces", "order", "rho", "formula"}
        if more:
            raise ValueError(f"no charge has {', '.join(sorted(more))}")
        kept = None
        if not {"order", "rho", "formula"}.isdisjoint(values):
            kept = Divergence(values["order"], values["rho"], values["formula"])
        pieces = pieces_from(values.get("pieces", ()))
        return cls(values["mu_squared"], values["epsilon"], values["delta"], pieces, kept)

    @property
    def json(self) -> dict[str, Any]:
        """As plain values, floats with all their bits: what ledgers and the register keep."""
        found: dict[str, Any] = {"mu_squared": self.mu_squared, "epsilon": self.epsilon, "delta": self.delta}
        if self.pieces:
            found["pieces"] = pieces_json(self.pieces)
        if self.divergence is not None:
            kept = self.divergence
            found |= {"order": kept.order, "rho": kept.rho, "formula": kept.formula}
        return found

    @property
    def samples(self) -> bool:
        """Whether answers about samples are in it, for which mu_squared is far from tight."""
        return bool(self.pieces)

    def rho(self, order: float) -> float:
        """Its Renyi divergence of this order, rounded up: as it was charged, or else from its pieces or mu_squared.

        Infinite for a charge by a newer formula than this code's: what that holds against a cap is not known here.
        """
        kept = self.divergence
        if kept is not None and kept.formula > renyi.FORMULA:
            return math.inf
        if kept is not None and (kept.order, kept.formula) == (order, renyi.FORMULA):
            return kept.rho
        bound = renyi.full(order, self.mu_squared)
        return min(bound, divergence(self.pieces, order)) if self.pieces else bound

    def at(self, order: float | None) -> Charge:
        """The same with its divergence of the account's order; None: there is none yet."""
        return self if order is None else replace(self, divergence=Divergence(order, self.rho(order)))


@dataclass(frozen=True)
class Cap:
    """A silo's limit (epsilon, delta) over all runs, and the rule that keeps to it.

    gdp:   the sum of mu^2 stays below the mu^2 that is (epsilon, delta)-DP; loses nothing for Gaussian noise
           (fully adaptive composition for Gaussian DP: Smith and Thakurta 2022; Koskela, Tobaben and Honkela 2023).
           An answer about a sample counts as one about all, which it is never worse than.
    rdp:   Renyi divergences of one order add up to at most what converts to (epsilon, delta) (`renyi`); an answer about
           a sample counts with its own. The order is the account's, which its first cap implied, whatever its rule:
           several orders, of which the best is taken afterwards, have no proof.
    basic: epsilons and deltas add up (privacy filter of basic composition: Rogers, Roth, Ullman and Vadhan 2016).

    A cap that is raised keeps the account's order; what was sent before keeps the claim of the cap of its time. Each
    rule has its proof alone: who changes it after looking at answers claims the deltas of both together.
    Raises InputError unless epsilon is a positive number, 0 < delta < 1, and there is such a rule.
    """

    epsilon: float
    delta: float
    rule: Rule = "gdp"

    def __post_init__(self) -> None:
        if not (is_number(self.epsilon) and 0 < self.epsilon < math.inf):
            raise InputError(f"cap: epsilon = {self.epsilon} must be a positive number")
        if not (is_number(self.delta) and 0 < self.delta < 1):
            raise InputError(f"cap: delta = {self.delta} must lie strictly between 0 and 1")
        if self.rule not in get_args(Rule):
            raise InputError(f"cap: there is no rule {self.rule!r}; there are {', '.join(get_args(Rule))}")

    @cached_property
    def order(self) -> float:
        """The order that an account takes whose first cap this is."""
        return renyi.implied_order(self.epsilon, self.delta)

    def room(self, order: float) -> float:
        """Largest sum of Renyi divergences of this order, rounded down; negative where nothing fits."""
        found = self.epsilon - renyi.conversion(order, self.delta)
        return found - 1e-12 * abs(self.epsilon)

    def capacity(self, order: float) -> float:
        """What its rule adds charges up to: mu^2, divergences of this order, or epsilons. Caps of
        one rule compare so."""
        if self.rule == "basic":
            return self.epsilon
        return self.room(order) if self.rule == "rdp" else self._largest_mu_squared()

    def admits(self, charges: Sequence[Charge], order: float | None = None) -> bool:
        """Whether runs with these charges, chosen adaptively, keep to the cap together.

        `order`: the account's; None: this is its first cap.
        """
        if self.rule == "basic":
            epsilon = math.fsum(charge.epsilon for charge in charges)
            delta = math.fsum(charge.delta for charge in charges)
            return epsilon <= self.epsilon * SLACK and delta <= self.delta * SLACK
        if self.rule == "rdp":
            at = self.order if order is None else order
            return math.fsum(charge.rho(at) for charge in charges) <= self.room(at)
        return math.fsum(charge.mu_squared for charge in charges) <= self._largest_mu_squared() * SLACK

    def spent(self, charges: Sequence[Charge], order: float | None = None) -> float:
        """Epsilon, at the cap's delta, that the charges come to by its rule (for basic: at the sum of their deltas)."""
        if self.rule == "basic":
            return math.fsum(charge.epsilon for charge in charges)
        if self.rule == "rdp":
            at = self.order if order is None else order
            rho = math.fsum(charge.rho(at) for charge in charges)
            return max(0.0, self.epsilon - self.room(at) + rho) if rho > 0 else 0.0
        return epsilon_of(math.sqrt(math.fsum(charge.mu_squared for charge in charges)), self.delta)

    def left(self, charges: Sequence[Charge], order: float | None = None) -> float:
        """Epsilon (at the cap's delta; for basic, any) that one more run, of full batches, may take; 0 if none."""
        if self.rule == "gdp" and not any(charge.mu_squared for charge in charges):
            return self.epsilon  # and not what rounding leaves of it
        if self.rule == "basic":
            if math.fsum(charge.delta for charge in charges) >= self.delta:
                return 0.0
            return max(0.0, self.epsilon - math.fsum(charge.epsilon for charge in charges))
        if self.rule == "rdp":
            at = self.order if order is None else order
            left = (self.room(at) - math.fsum(charge.rho(at) for charge in charges)) * 2 / at
        else:
            left = self._largest_mu_squared() - math.fsum(charge.mu_squared for charge in charges)
        return epsilon_of(math.sqrt(left), self.delta) if left > 0 else 0.0

    def _largest_mu_squared(self) -> float:
        # Some runs may have discrete noise; what that takes of delta is below any rounding.
        return mu_of(self.epsilon, gaussian_delta(self.delta, "discrete-gaussian")) ** 2
