"""A site: one process that holds one or many silos open and answers a round for all of them in one call.

Bytes come in; the site rebuilds and checks them, and computes every digest itself. Bytes or plain data go out, so that
a guarded silo's own service can take the site's place by a change of address.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from fedcore.accounting.effort import effort_within
from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.noise_search import NoiseCache
from fedcore.algorithms.statistics.evaluated import evaluated
from fedcore.arrays import is_vector, unpack
from fedcore.errors import SiloError
from fedcore.ledger.locked import alone
from fedcore.limits import MOST_EFFORT, MOST_SIMULATED_EFFORT
from fedcore.messages import Query, Receipt, Release, Releases, is_bounded, receipts_of
from fedcore.planning.phase import Phase
from fedcore.planning.plan import Plan
from fedcore.shuffling.forms import Carrier
from fedcore.silo.account import SiloAccount, account
from fedcore.silo.agreement import Agreement, own_plan
from fedcore.silo.columns.members import Columns, Members
from fedcore.silo.lease import Leases
from fedcore.silo.outbox import Outbox, send_sealed
from fedcore.silo.private_silo import PrivateSilo
from fedcore.silo.question import Forms, RoundQuestion, checked_phase
from fedcore.silo.refusal import rebuilt, with_public_errors
from fedcore.silo.simulated import simulated_losses
from fedcore.silo.site_log import SiteLog

MOST_OPEN = 256
"""Bound on the open runs of a site: for each, its silos hold their records in another order."""


class Site:
    """Holds silos by name, and lets one thread at a time use them.

    `log`: a file at the site with a line for the start and the end of each answer. `noise`: cache of calibrated noise.
    `carrier`: takes sealed answers to shufflers; None: shuffled runs are refused.
    """

    def __init__(
        self,
        silos: Iterable[PrivateSilo],
        log: Path | None = None,
        noise: NoiseCache | None = None,
        carrier: Carrier | None = None,
    ) -> None:
        self._noise = noise
        self.lock = threading.RLock()
        self._silos = {silo.name: silo for silo in silos}
        self.silos = tuple(self._silos)
        self._first = self.silos[0]
        guarded = any(silo.guarded for silo in self._silos.values())
        self._effort = MOST_EFFORT if guarded else MOST_SIMULATED_EFFORT
        self._approved: dict[str, tuple[Plan, Forms]] = {}
        self._columns: dict[str, Columns] = {}
        self._outbox = Outbox(self._first, carrier)
        self.leases = Leases(self._first)
        self._log = None if log is None else with_public_errors(self._first, SiteLog, self._first, log)

    @alone
    def approve(self, agreement: bytes, route: bytes | None = None, lease: int = 0) -> list[str]:
        """Rebuilds and checks an agreement (`Agreement.to_bytes`), and agrees to it (`agree`).

        `route`: `Route.to_bytes` of a shuffled run's shuffler; the run's answers then leave by `send` alone. None for
        other runs. `lease`: the driver's (`fedcore.silo.lease`), which every later call has to name.
        """
        agreed = rebuilt(self._first, "agreement", Agreement.from_bytes, agreement)
        found = self._outbox.checked(agreed, route)
        names = self.agree(agreed, lease)
        self._outbox.add(agreed.run, found)
        return names

    @alone
    def agree(self, agreement: Agreement, lease: int = 0) -> list[str]:
        """Makes the plan again and has every silo approve it; returns their names. Raises SiloError if refused.

        For objects that the caller made at the site, as an auditor does. Agreements from elsewhere go to `approve`.
        """
        self.leases.refuse_older(agreement.run, lease)
        with effort_within(self._effort):  # a driver may send a problem whose plan takes too long to make
            return self._agreed(agreement, lease)

    def _agreed(self, agreement: Agreement, lease: int) -> list[str]:
        method = evaluated(agreement.method, agreement.problem)
        for silo in self._silos.values():
            with_public_errors(silo.name, silo.compare, agreement.problem, agreement.method, agreement.loss)
            with_public_errors(silo.name, silo.allows, agreement.run, method, agreement.loss)
        plan, digest, forms = with_public_errors(self._first, own_plan, agreement, self._noise)
        if digest != agreement.plan:
            sentence = f"its own plan for run {agreement.run} is {digest[:12]}, not {agreement.plan[:12]} as sent"
            raise SiloError(self._first, "plan", sentence)
        known = agreement.run in self._approved
        if not known and len(self._approved) >= MOST_OPEN:
            raise SiloError(self._first, "open", f"it has {MOST_OPEN} runs open; forget one, then ask again")
        try:
            for silo in self._silos.values():
                with_public_errors(
                    silo.name, silo.approve, agreement.run, plan, agreement.method, agreement.loss, lease
                )
            self.leases.refuse_older(agreement.run, lease)
            self.leases.fence(agreement.run, lease)
            self._approved[agreement.run] = (plan, forms)
            self._columns.pop(agreement.run, None)
        finally:
            if agreement.run not in self._approved:
                self.forget_run(agreement.run)
        return list(self.silos)

    def has(self, run: str) -> bool:
        """Checks whether the run is approved here, and not forgotten."""
        return run in self._approved

    @alone
    def restore(self, run: str, receipts: bytes, lease: int = 0) -> None:
        """Gives memory ledgers the receipts that the driver stored; durable ledgers ignore them."""
        plan, _ = self._run(run, lease)
        self._columns.pop(run, None)
        by_silo: dict[str, list[tuple[Receipt, GaussianRelease]]] = {}
        for receipt in rebuilt(self._first, "receipts", receipts_of, receipts):
            if not plan.has(receipt.phase, receipt.round):
                raise SiloError(self._first, "receipts", f"round {receipt.phase}.{receipt.round} is not in its plan")
            if receipt.silo in self._silos:
                event = plan.phases[receipt.phase - 1].event(receipt.silo, receipt.round)
                by_silo.setdefault(receipt.silo, []).append((receipt, event))
        for name, mine in by_silo.items():
            with_public_errors(name, self._silos[name].ledger.restore, run, mine)

    @alone
    def answer(self, query: bytes, lease: int = 0) -> bytes:
        """One release per participant at this site, in the query's order, as `Releases.to_bytes`.

        `query`: `Query.to_bytes`. It is rebuilt and checked before any record is read: address, names, types and sizes
        of arrays, models within the domain. Digests are computed here. Raises SiloError with a constant sentence.
        """
        request = rebuilt(self._first, "query", Query.from_bytes, query)
        self.leases.check(request.run, lease)
        if request.run in self._outbox:
            raise SiloError(self._first, "route", "the run is shuffled: its answers go to the shuffler alone")
        return self._answers(request).to_bytes()

    def send(self, query: bytes, lease: int = 0) -> None:
        """Seals the release of each participant at this site to the run's server, and sends it to the shuffler.

        A committed release is sealed and sent again. All participants are tried; then the first failure is raised, as
        SiloError or ShufflerError. No digest of a release is returned.
        """
        with self.lock:
            request = rebuilt(self._first, "query", Query.from_bytes, query)
            self.leases.check(request.run, lease)
            channel = self._outbox.channel(request.run)
            shuffle = self._run(request.run, lease)[0].problem.trust.shuffle
            minimum = len(request.participants) if shuffle is None else shuffle.minimum
            failures: list[SiloError] = []
            releases = self._answers(request, failures)
        send_sealed(channel, request.run, releases, minimum, failures)  # without the lock: a shuffler may be slow
        if failures:
            raise failures[0]

    def _answers(self, query: Query, failures: list[SiloError] | None = None) -> Releases:
        """The releases of this site's participants. `failures`: collects errors of single silos; None: they raise."""
        names = [name for name in query.participants if name in self._silos]
        if not names:
            return Releases.of(query, [])
        plan, forms = self._approved.get(query.run, (None, {}))
        phase = checked_phase(query, names, plan, forms)
        for array in query.arrays.values():
            array.flags.writeable = False  # all silos share the array: none may change it for the next
        releases = []
        # A warning turned into an exception would be an outcome that depends on records.
        with np.errstate(all="ignore"):
            if failures is None and (found := self._in_columns(query, names, phase)) is not None:
                return found
            digests = query.digests(names)
            for name in names:
                arrays = query.arrays_for(name)
                question = RoundQuestion(query.run, query.phase, query.round, arrays, digests[name])
                try:
                    releases.append(self._answer(name, question, phase))
                except SiloError as error:
                    if failures is None:
                        raise
                    failures.append(error)
        return Releases.of(query, releases)

    def _answer(self, name: str, question: RoundQuestion, phase: Phase) -> Release:
        self._note("begin", question, [name])
        release = with_public_errors(name, self._silos[name].answer, question, phase)
        self._note("end", question, [name])
        return release

    def _in_columns(self, query: Query, names: list[str], phase: Phase) -> Releases | None:
        """The releases of these silos where they answer in columns; None where each answers by itself."""
        columns = self._columns.setdefault(query.run, Columns())
        kind = self._approved[query.run][0].phases[query.phase - 1].kind(query.round)

        def made() -> Members | None:
            question = RoundQuestion(query.run, query.phase, query.round, query.arrays, b"")
            return Members.of(
                (with_public_errors(name, self._silos[name].member, question, phase) for name in names), phase
            )

        block = query.round if phase.schedule.fresh_blocks else 0
        members = columns.members((query.phase, block, tuple(names)), kind, made)
        if members is None or not with_public_errors(names[0], columns.are_next, query, members):
            columns.answered_alone()
            return None
        self._note("begin", query, names)
        whole = len(names) == len(self.silos)
        found = with_public_errors(names[0], columns.answers, query, phase, members, whole)
        for name in names:
            self._silos[name].computed += 1
        self._note("end", query, names)
        return found

    def _note(self, step: str, query: Query | RoundQuestion, names: Iterable[str]) -> None:
        if self._log is not None:
            for name in names:
                self._log.note(step, query, name, self._silos[name].computed)

    @alone
    def accounts(self, run: str, lease: int = 0) -> list[SiloAccount]:
        """Accounts of this run, silo by silo, from the ledgers."""
        plan, _ = self._run(run, lease)
        return [with_public_errors(silo.name, account, silo, plan, run) for silo in self._silos.values()]

    @alone
    def simulated(self, run: str, w: bytes, lease: int = 0) -> list[tuple[int, float, float]]:
        """NOT PRIVATE: (records, sum of losses, wrong classes) per silo, for metrics under `simulation/` only.

        `w`: the model, packed by `arrays.pack` under the name w.
        """
        plan, _ = self._run(run, lease)
        arrays = rebuilt(self._first, "model", unpack, w)
        if (
            set(arrays) != {"w"}
            or not is_vector(arrays["w"], plan.problem.objective.dim)
            or not is_bounded(arrays["w"])
        ):
            raise SiloError(self._first, "model", f"a model is one array w of {plan.problem.objective.dim} values")
        return simulated_losses(list(self._silos.values()), run, arrays["w"])

    @alone
    def close_run(self, run: str, lease: int = 0) -> None:
        """Ends a run for good at all silos: each charge falls to that of its releases (`PrivateSilo.close_run`)."""
        self._run(run, lease)
        for silo in self._silos.values():
            with_public_errors(silo.name, silo.close_run, run)

    @alone
    def forget_run(self, run: str) -> None:
        """Drops a run at this site, if it has it; the silos stay open for other runs."""
        if type(run) is not str:
            raise SiloError(self._first, "plan", "it has not approved a run of this id")
        self._approved.pop(run, None)
        self._outbox.forget(run)
        self._columns.pop(run, None)
        self.leases.forget(run)
        for silo in self._silos.values():
            silo.forget_run(run)

    def end(self) -> None:
        """Closes the ledgers at once; an answer that is under way is not committed any more."""
        for silo in self._silos.values():
            silo.ledger.close()
        if self.lock.acquire(blocking=False):
            try:
                self.close()
            finally:
                self.lock.release()

    def fence(self, run: str, lease: int) -> None:
        """Refuses older leases of a run from now on, also for answers under way; waits for none of these."""
        self.leases.fence(run, lease)
        for silo in self._silos.values():
            with_public_errors(silo.name, silo.ledger.fence, run, lease)

    @alone
    def close(self) -> None:
        for silo in self._silos.values():
            silo.ledger.close()
        if self._log is not None:
            self._log.close()
            self._log = None

    def _run(self, run: str, lease: int) -> tuple[Plan, Forms]:
        """Plan and forms of an approved run, for the driver with this lease."""
        found = self._approved.get(run) if type(run) is str else None
        if found is None:
            raise SiloError(self._first, "plan", "it has not approved a run of this id")
        self.leases.check(run, lease)
        return found
