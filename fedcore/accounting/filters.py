"""Caps as privacy filters: rules that stay valid when runs are chosen after looking at answers.

A run is charged its full plan when a silo approves it. The rules look at charges only, and each has a proof for
adaptively chosen charges. An epsilon composed from privacy loss distributions has no such proof. It describes a plan
that was fixed beforehand; stopping when it reaches a target can spend more (tests/fedcore/accounting/test_filters.py
has an example).
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
"""Allowance for rounding, so that a run whose target is the cap itself fits."""


@dataclass(frozen=True)
class Divergence:
    """A Renyi divergence `rho` of one `order`, rounded up, by version `formula` of `renyi`.

    Raises ValueError for an invalid order, a divergence that is negative or no number, and a version below 1.
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
    """The most that one run may cost a silo: squared Gaussian-DP parameter, and epsilon at its delta.

    Each is a bound by itself, at least 0 and perhaps infinite; others raise ValueError. For answers about samples,
    mu_squared is that of answers about all records, which is far from tight; epsilon is composed exactly. `pieces`: the
    answers of a run with samples, from which its Renyi divergence of any order follows; () where mu_squared suffices.
    `divergence`: that of the account's order, as charged; None before the account has an order.
    """

    mu_squared: float
    epsilon: float
    delta: float
    pieces: tuple[Piece, ...] = ()
    divergence: Divergence | None = None

    def __post_init__(self) -> None:
        # The negation also refuses NaN. A negative charge would make room under a cap.
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
        divergence = None
        if not {"order", "rho", "formula"}.isdisjoint(values):
            divergence = Divergence(values["order"], values["rho"], values["formula"])
        pieces = pieces_from(values.get("pieces", ()))
        return cls(values["mu_squared"], values["epsilon"], values["delta"], pieces, divergence)

    @property
    def json(self) -> dict[str, Any]:
        """Plain values of the charge for ledgers and registers; floats keep all their bits."""
        found: dict[str, Any] = {"mu_squared": self.mu_squared, "epsilon": self.epsilon, "delta": self.delta}
        if self.pieces:
            found["pieces"] = pieces_json(self.pieces)
        if self.divergence is not None:
            charged = self.divergence
            found |= {"order": charged.order, "rho": charged.rho, "formula": charged.formula}
        return found

    @property
    def samples(self) -> bool:
        """True if the charge has answers about samples, for which mu_squared is far from tight."""
        return bool(self.pieces)

    def rho(self, order: float) -> float:
        """Renyi divergence of this order, rounded up: as charged, or else from the pieces or mu_squared.

        Infinite for a charge by a newer formula than this code's, whose cost under a cap is unknown here.
        """
        charged = self.divergence
        if charged is not None and charged.formula > renyi.FORMULA:
            return math.inf
        if charged is not None and (charged.order, charged.formula) == (order, renyi.FORMULA):
            return charged.rho
        bound = renyi.full(order, self.mu_squared)
        return min(bound, divergence(self.pieces, order)) if self.pieces else bound

    def at(self, order: float | None) -> Charge:
        """The charge with its divergence of the account's order; unchanged for None (no order yet)."""
        return self if order is None else replace(self, divergence=Divergence(order, self.rho(order)))


@dataclass(frozen=True)
class Cap:
    """A silo's limit (epsilon, delta) over all runs, and the rule that enforces it.

    gdp: the sum of mu^2 stays below the mu^2 that is (epsilon, delta)-DP. Lossless for Gaussian noise (fully adaptive
    composition for Gaussian DP: Smith and Thakurta 2022; Koskela, Tobaben and Honkela 2023). An answer about a sample
    counts as one about all records, which bounds it.

    rdp: Renyi divergences of one order add up to at most the value that converts to (epsilon, delta) (`renyi`). An
    answer about a sample counts with its own divergence. The order is the account's, implied by its first cap of any
    rule. Several orders, of which the best is taken afterwards, have no proof.

    basic: epsilons and deltas add up (privacy filter of basic composition: Rogers, Roth, Ullman and Vadhan 2016).

    A cap that is raised keeps the account's order. Earlier answers keep the claim of the cap of their time. Each rule
    has a proof by itself: a change of rule after looking at answers claims the deltas of both rules added.
    Raises InputError unless epsilon is a positive number, 0 < delta < 1, and the rule exists.
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
        """The Renyi order of an account whose first cap is this one."""
        return renyi.implied_order(self.epsilon, self.delta)

    def room(self, order: float) -> float:
        """Largest sum of Renyi divergences of this order, rounded down; negative where no charge fits."""
        found = self.epsilon - renyi.conversion(order, self.delta)
        return found - 1e-12 * abs(self.epsilon)

    def capacity(self, order: float) -> float:
        """Largest sum of charges under the rule: mu^2, divergences of this order, or epsilons.

        Orders the caps of one rule.
        """
        if self.rule == "basic":
            return self.epsilon
        return self.room(order) if self.rule == "rdp" else self._largest_mu_squared()

    def admits(self, charges: Sequence[Charge], order: float | None = None) -> bool:
        """True if runs with these charges, chosen adaptively, stay within the cap in total.

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
        """Total epsilon of the charges at the cap's delta by its rule (for basic: at the sum of their deltas)."""
        if self.rule == "basic":
            return math.fsum(charge.epsilon for charge in charges)
        if self.rule == "rdp":
            at = self.order if order is None else order
            rho = math.fsum(charge.rho(at) for charge in charges)
            return max(0.0, self.epsilon - self.room(at) + rho) if rho > 0 else 0.0
        return epsilon_of(math.sqrt(math.fsum(charge.mu_squared for charge in charges)), self.delta)

    def left(self, charges: Sequence[Charge], order: float | None = None) -> float:
        """Epsilon (at the cap's delta; for basic, any) that one more run of full batches may take; 0 if none."""
        if self.rule == "gdp" and not any(charge.mu_squared for charge in charges):
            return self.epsilon  # exactly, without rounding
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
