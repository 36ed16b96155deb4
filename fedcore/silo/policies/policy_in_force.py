"""A policy in force at one silo: refuses runs by the silo's clock and ledger, and names the line that refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from fedcore.accounting.filters import SLACK, Cap, Charge
from fedcore.accounting.tiny_silos import refusal
from fedcore.algorithms import Method
from fedcore.directed_rounding import in_full, shown_down, shown_up
from fedcore.errors import SiloError
from fedcore.ledger.ledger import Ledger
from fedcore.ledger.refusals import of_samples
from fedcore.models import Objective
from fedcore.planning.problem import unit_of
from fedcore.silo.policies.decisions import UNDECIDED, Decisions
from fedcore.silo.policies.policy import Policy, loss_names, method_names

Clock = Callable[[], datetime]
"""Returns the time, with a zone."""


def utc_now() -> datetime:
    """The time of this machine's clock, in UTC."""
    return datetime.now(UTC)


class PolicyInForce:
    """A policy at one silo of n records, or persons of a column. Refuses by SiloError with code `policy` and the line
    of the policy. `decisions`: the operator's; without them a policy that asks for one refuses every run."""

    def __init__(
        self,
        policy: Policy,
        silo: str,
        n: int,
        clock: Clock = utc_now,
        person: str | None = None,
        decisions: Decisions | None = None,
    ) -> None:
        self._policy, self._silo, self._n, self._clock, self._person = policy, silo, n, clock, person
        self._decisions = decisions
        self._faults: dict[str, str | None] = {}
        self._terms: dict[str, str] = {}

    @property
    def cap(self) -> Cap:
        """The policy's cap over all runs at this silo."""
        return self._policy.cap.of(self._n)

    def allows(self, run: str, method: Method[Any], loss: Objective | None, ledger: Ledger) -> None:
        """Raises SiloError for runs that `approve` would refuse whatever their charge, before a plan is made."""
        refused = self._expired(run) or self._terms_fault(run, method, loss, ledger)
        if refused is not None and not ledger.is_run(run):
            raise SiloError(self._silo, "policy", refused)

    def approve(self, run: str, method: Method[Any], loss: Objective | None, charge: Charge, ledger: Ledger) -> None:
        """Raises SiloError unless the policy allows one more run, with the full `charge` of its plan.

        A run that the ledger knows passes, since no further charge is reserved and its releases may be sent again. If
        the present policy does not allow the run, it gets no new answer (`answer`).
        """
        fault = self._fault(run, method, loss, charge, ledger)
        refused = self._expired(run) or fault
        if refused is not None and not ledger.is_run(run):
            raise SiloError(self._silo, "policy", refused)
        # Stored while the silo is open: the same run may come again with other terms, which the ledger then refuses.
        self._faults[run] = self._faults.get(run) or fault

    def decided(self, run: str, terms: str, agreement: Callable[[], bytes], ledger: Ledger) -> None:
        """Raises SiloError unless the operator's decisions let the run begin; `approve` comes first.

        `terms`: SHA-256 (hex) of the run's terms. `agreement`: its bytes, kept for an operator who has to decide. A run
        that the ledger knows passes, as in `approve`.
        """
        self._terms[run] = terms
        operator = self._operator(run)
        if operator is None:
            return
        try:
            operator.check_asked(run, terms, self._by_person, agreement)
        except SiloError:
            if not ledger.is_run(run):
                raise

    def answer(self, run: str) -> None:
        """Raises SiloError unless policy and operator allow a new answer in this run.

        `approve` and `decided` come first.
        """
        refused = self._expired(run) or self._faults[run]
        if refused is not None:
            raise SiloError(self._silo, "policy", refused)
        if (operator := self._operator(run)) is not None:
            operator.check_answer(run, self._terms[run], self._by_person)

    @property
    def _by_person(self) -> bool:
        return self._policy.decides == "operator"

    def _operator(self, run: str) -> Decisions | None:
        if self._decisions is None and self._by_person:
            raise SiloError(self._silo, UNDECIDED, f"its operator decides on run {run}, and is asked in a service only")
        return self._decisions

    def _expired(self, run: str) -> str | None:
        now = self._clock()
        if not self._policy.expired(now):
            return None
        time = now.astimezone(UTC).isoformat(sep=" ", timespec="seconds")
        return f"its policy allows nothing new after expires = {self._policy.expires}; run {run} asks at {time}"

    def _fault(
        self, run: str, method: Method[Any], loss: Objective | None, charge: Charge, ledger: Ledger
    ) -> str | None:
        """The first line of the policy that the run breaks, as a sentence; None if it breaks none."""
        charges = ledger.charges()
        if ledger.is_run(run):
            charge = charges.pop(run)
        return (
            self._terms_fault(run, method, loss, ledger)
            or self._one_run_fault(run, charge)
            or self._cap_fault(run, charge, list(charges.values()), ledger.caps.under([self.cap]))
        )

    def _terms_fault(self, run: str, method: Method[Any], loss: Objective | None, ledger: Ledger) -> str | None:
        policy = self._policy
        for name in method_names(method):
            if name in policy.methods:
                continue
            return f"its policy allows methods = {_listed(policy.methods)}; run {run} asks for {name}"
        for name in () if loss is None else loss_names(loss):
            if name not in policy.losses:
                return f"its policy allows losses = {_listed(policy.losses)}; run {run} asks for {name}"
        if policy.person is not None and policy.person != self._person:
            return f"its policy allows person = {policy.person!r}; run {run} asks for {unit_of(self._person)}"
        before = ledger.runs - ledger.is_run(run)
        if before >= policy.runs:
            return f"its policy allows runs = {policy.runs} ({before} approved before); run {run} is one more"
        return None

    def _one_run_fault(self, run: str, charge: Charge) -> str | None:
        limit = self._policy.one_run
        if limit is None:
            return None
        if (fault := refusal(limit.delta, self._n, "one_run.delta")) is not None:
            return f"its policy says too little: {fault}"
        if not charge.epsilon <= limit.epsilon:
            return (
                f"its policy allows one_run.epsilon = {in_full(limit.epsilon)}; run {run} asks for "
                f"{_epsilon(charge.epsilon)}"
            )
        delta = 1.0 / self._n**2 if isinstance(limit.delta, str) else float(limit.delta)
        if not charge.delta <= delta:
            allowed = _limit(limit.delta, delta)
            return f"its policy allows one_run.delta = {allowed}; run {run} asks for {shown_up(charge.delta)}"
        return None

    def _cap_fault(self, run: str, charge: Charge, before: list[Charge], order: float | None) -> str | None:
        if (fault := refusal(self._policy.cap.delta, self._n, "cap.delta")) is not None:
            return f"its policy says too little: {fault}"
        cap = self.cap
        if cap.admits([*before, charge], order):
            return None
        spent = math.fsum(other.delta for other in before)
        if cap.rule == "basic" and not spent + charge.delta <= cap.delta * SLACK:
            left, needed = max(0.0, cap.delta - spent), shown_up(charge.delta)
            key = f"cap.delta = {_limit(self._policy.cap.delta, cap.delta)}"
        else:
            left, needed = cap.left(before, order), _epsilon(charge.epsilon)
            key = f"cap.epsilon = {in_full(cap.epsilon)}"
        more = of_samples(cap, before, charge, order)
        return f"its policy allows {key} over all runs ({shown_down(left)} left); run {run} asks for {needed}{more}"


def _listed(names: tuple[str, ...]) -> str:
    return f"[{', '.join(names)}]"


def _limit(typed: str | float, delta: float) -> str:
    """A delta as it was typed; for 1/n^2 the number, rounded down."""
    return shown_down(delta) if isinstance(typed, str) else in_full(delta)


def _epsilon(value: float) -> str:
    return shown_up(value) if math.isfinite(value) else "answers without noise"
