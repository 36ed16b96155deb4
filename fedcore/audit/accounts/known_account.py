"""A silo's account as the auditor knows it, with which charges and statements are compared."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.filters import Cap, Charge
from fedcore.audit.accounts.cost import delta_at_least, gaussian, squared
from fedcore.audit.audit_session import AuditSession
from fedcore.audit.audited_silo import AuditedSilo
from fedcore.directed_rounding import in_full
from fedcore.errors import SiloError
from fedcore.ledger.ledger import Ledger
from fedcore.ledger.sqlite import SqliteLedger

ASKED = 6
"""Number of addresses of a run that are asked, first and last among them."""
SLACK = 1.0 + 1e-6
"""Relative allowance for rounding on deltas and squared parameters."""


@dataclass
class KnownAccount:
    """The auditor's record of an account, and the faults found in the silo's.

    `released`: events of every run. `closed`: ended runs; `in_full`: those that are charged their whole plan. `lost`:
    events of runs that no ledger has any more. `faults`: sentences about what does not fit. `compared`: number of
    checks.
    """

    audited: AuditedSilo
    released: dict[str, list[GaussianRelease]] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    in_full: set[str] = field(default_factory=set)
    lost: list[list[GaussianRelease]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    compared: int = 0

    def holds(self, fault: str, right: bool) -> None:
        self.compared += 1
        if not right:
            self.faults.append(fault)

    def refuses(self, name: str, opened: Callable[[], SqliteLedger]) -> None:
        """Checks that a ledger is not opened."""
        try:
            opened().close()
        except SiloError:
            return
        self.holds(f"{name} is opened", False)

    def events(self, run: str) -> list[GaussianRelease]:
        """Events that the run's charge must cover: its releases if it was closed after them, else its plan."""
        ended = run in self.closed and run not in self.in_full
        return self.released[run] if ended else self.planned

    @cached_property
    def planned(self) -> list[GaussianRelease]:
        """Every answer that the plan grants a server from this silo, phase by phase and round by round."""
        silo, found = self.audited.silo, []
        for phase in self.audited.plan.phases:
            for round in range(1, (1 if phase.schedule.at_most_once else phase.rounds) + 1):
                here = phase.at(round)
                if not here.schedule.in_turn or here.whose_turn(phase.turn(round)) == silo:
                    found.append(phase.event(silo, round))
        return found

    def covers(self, name: str, events: list[GaussianRelease], epsilon: float | None, delta: float) -> None:
        """Checks a stated epsilon (None: infinite) against the least cost of the events."""
        enough = epsilon is None or delta_at_least(events, epsilon) <= delta * SLACK
        self.holds(f"{name} says epsilon {epsilon}; {len(events)} events exceed it at delta {in_full(delta)}", enough)

    def charged(self, when: str, charges: dict[str, Charge]) -> None:
        """Checks every run's charge in force against its events."""
        for run in self.released:
            charge = charges.get(run)
            if charge is None:
                self.holds(f"{when}: run {run} is charged nothing", False)
                continue
            least = squared(self.events(run))
            self.holds(
                f"{when}: run {run} is charged mu^2 {in_full(charge.mu_squared)}, and its events are {in_full(least)}",
                charge.mu_squared * SLACK >= least,
            )
            self.covers(f"{when}: the charge of run {run}", self.events(run), charge.epsilon, charge.delta)
            self.holds(f"{when}: run {run} is charged at delta {charge.delta}", charge.delta <= self.audited.delta)

    def stated(self, when: str, statement: dict[str, Any]) -> None:
        """Checks the operator's statement against the events: each run, and all runs in total."""
        delta = statement["delta"]
        for each in statement["runs"]:
            run, known = each["run"], self.released.get(each["run"])
            if known is None:
                continue
            self.covers(f"{when}: the statement of run {run}", self.events(run), each["epsilon_charged"], delta)
            self.covers(f"{when}: what run {run} has spent", known, each["epsilon_spent"], delta)
            self.holds(f"{when}: run {run} has {each['releases']} releases", each["releases"] == len(known))
        self.holds(f"{when}: not every run is in the statement", len(statement["runs"]) >= len(self.released))
        if len(self.released) > 1:
            for key, events in (("epsilon_charged", self.events), ("epsilon_spent", self.released.__getitem__)):
                total, epsilon = sum(squared(events(run)) for run in self.released), statement[key]
                enough = epsilon is None or gaussian(total, epsilon) <= delta * SLACK
                self.holds(f"{when}: all runs together are stated with {key} {epsilon}", enough)

    def ask(
        self, session: AuditSession, run: str, addresses: Iterable[tuple[int, int]], known_as: str | None = None
    ) -> None:
        """Lets the silo approve a run and answer each address once.

        Without addresses the run is only approved.
        `known_as`: name in `released` of a run of another version of the data with the same name.
        """
        session.approved(run)
        released = self.released.setdefault(known_as or run, [])
        for address in addresses:
            session.sent_once(run, address)
            released.append(self.audited.event(address))

    def close(self, session: AuditSession, run: str) -> None:
        """Ends a run, and checks its account at the site against its releases."""
        reported, released = session.account(run), self.released[run]
        self.covers(f"the site's account of run {run}", released, reported.epsilon, reported.delta)
        self.holds(f"the site reports {reported.releases} releases of run {run}", reported.releases == len(released))
        session.close(run)
        self.closed.add(run)

    def silent(self, name: str, session: AuditSession, run: str, addresses: Iterable[tuple[int, int]]) -> None:
        """Checks that none of these addresses is answered in the run."""
        for address in addresses:
            payload = session.payload(run, address, session.queries.first(address))
            self.holds(f"{name} answers round {address[0]}.{address[1]}", payload is None)


def no_more(known: KnownAccount, session: AuditSession, run: str, answered: set[tuple[int, int]]) -> None:
    """Checks that a closed run gives no new answer, also where it is approved again."""
    others = [address for address in known.audited.addresses if address not in answered]
    known.silent(f"closed run {run}", session, run, others[:2])


def halves(addresses: list[tuple[int, int]]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The first half of the addresses, rounded up, and the rest."""
    middle = (len(addresses) + 1) // 2
    return addresses[:middle], addresses[middle:]


def chosen(audited: AuditedSilo) -> list[tuple[int, int]]:
    """Addresses that are asked, in order."""
    return audited.spread(ASKED)


def admits(ledger: Ledger, run: str, charge: Charge, cap: Cap) -> bool:
    """True if the ledger approves a run of this charge under this cap."""
    try:
        ledger.open_run(run, "0" * 64, hashlib.sha256(run.encode()).digest(), charge, cap)
    except SiloError:
        return False
    return True
