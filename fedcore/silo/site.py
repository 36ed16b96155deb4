"""A site: one process that keeps one or many silos open and answers a round for all of them in one call.

What comes in is bytes: rebuilt and checked here, every digest computed here. What goes out is bytes or plain data, so
that a guarded silo's own service can take the site's place by a change of address.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import numpy as np

from fedcore.accounting.composition import spent
from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.noise_search import NoiseCache, noise_kept_in
from fedcore.algorithms.statistics.evaluated import evaluated
from fedcore.arrays import is_vector, unpack
from fedcore.errors import InputError, ShufflerError, SiloError
from fedcore.messages import Query, Receipt, Release, bundled, is_bounded, receipts_of
from fedcore.planning.phase import Phase
from fedcore.planning.plan import Plan
from fedcore.planning.whole_silo import planned
from fedcore.shuffling.forms import Carrier, Route
from fedcore.shuffling.shuffler import SILENT
from fedcore.silo.agreement import Agreement
from fedcore.silo.private_silo import PrivateSilo
from fedcore.silo.question import Form, Question
from fedcore.silo.together import Stack, Together

MOST_OPEN = 256
"""Runs that a site keeps open at a time: of each its silos keep their records in another order."""

P = ParamSpec("P")
T = TypeVar("T")


class SiloAccount(NamedTuple):
    """What a silo's ledger says of one run: releases, the epsilon they spend at its delta, and answers computed."""

    silo: str
    n: int
    releases: int
    epsilon: float
    delta: float
    computed: int


def _alone(act: Callable[Concatenate[Site, P], T]) -> Callable[Concatenate[Site, P], T]:
    """A method of a site that waits until no other thread is in one: a ledger's look and its write belong together."""

    @wraps(act)
    def alone(site: Site, *args: P.args, **kwargs: P.kwargs) -> T:
        with site.lock:
            return act(site, *args, **kwargs)

    return alone


class Site:
    """Holds silos by name, and lets one thread at a time at them.

    `log`: a file at the site that gets a line as each answer begins and as it ends. `noise`: keeps what calibrations
    found. `carrier`: takes sealed answers to shufflers; None: shuffled runs are refused.
    """

    def __init__(
        self,
        silos: Iterable[PrivateSilo],
        log: Path | None = None,
        noise: NoiseCache | None = None,
        carrier: Carrier | None = None,
    ) -> None:
        self._noise = noise
        self._carrier = carrier
        self._routes: dict[str, Route] = {}
        self.lock = threading.RLock()
        self._silos = {silo.name: silo for silo in silos}
        self.silos = tuple(self._silos)
        self._first = self.silos[0]
        self._approved: dict[str, tuple[Plan, list[Form]]] = {}
        self._stacks: dict[str, tuple[tuple[Any, ...], Stack | None]] = {}
        self._log = None if log is None else _told(self._first, _opened, self._first, log)
        if self._log is not None:
            self._closing = weakref.finalize(self, os.close, self._log)

    @_alone
    def approve(self, agreement: bytes, route: bytes | None = None) -> list[str]:
        """Rebuilds and checks what `Agreement.to_bytes` wrote, and agrees to it (`agree`).

        `route`: `Route.to_bytes` of a shuffled run's shuffler, and of no other run's. From then on the run's answers
        leave by `send` alone.
        """
        agreed = self._read("agreement", Agreement.from_bytes, agreement)
        shuffled = agreed.problem.shuffle is not None
        if shuffled != (route is not None):
            said = "comes with the address of its shuffler" if shuffled else "is not shuffled, and has no shuffler"
            raise SiloError(self._first, "route", f"run {agreed.run} {said}")
        found = None if route is None else self._read("route", Route.from_bytes, route)
        if shuffled and self._carrier is None:
            raise SiloError(self._first, "route", "it reaches no shuffler: its site was opened without a way to one")
        names = self.agree(agreed)
        if found is not None:
            self._routes[agreed.run] = found
        return names

    @_alone
    def agree(self, agreement: Agreement) -> list[str]:
        """Makes the plan anew and has every silo approve it; returns their names. Raises SiloError if refused.

        For objects of the caller's own making: an auditor's at the site. What came from elsewhere goes to `approve`.
        """
        asking = evaluated(agreement.method, agreement.problem)
        for silo in self._silos.values():
            _told(silo.name, silo.compare, agreement.problem, agreement.method, agreement.loss)
            _told(silo.name, silo.allows, agreement.run, asking, agreement.loss)
        plan, digest, forms = _told(self._first, _planned, agreement, self._noise)
        if digest != agreement.plan:
            raise SiloError(
                self._first,
                "plan",
                f"its own plan for run {agreement.run} is {digest[:12]}, not {agreement.plan[:12]} as sent",
            )
        known = agreement.run in self._approved
        if not known and len(self._approved) >= MOST_OPEN:
            raise SiloError(self._first, "open", f"it has {MOST_OPEN} runs open; forget one, then ask again")
        try:
            for silo in self._silos.values():
                _told(silo.name, silo.approve, agreement.run, plan, agreement.method, agreement.loss)
            self._approved[agreement.run] = (plan, forms)
            self._stacks.pop(agreement.run, None)
        finally:
            if agreement.run not in self._approved:
                self.forget_run(agreement.run)
        return list(self.silos)

    @_alone
    def restore(self, run: str, receipts: bytes) -> None:
        """Gives memory ledgers the receipts that the driver kept (`release.kept`); durable ledgers ignore them."""
        plan, _ = self._run(run)
        by_silo: dict[str, list[tuple[Receipt, GaussianRelease]]] = {}
        for receipt in self._read("receipts", receipts_of, receipts):
            if not plan.has(receipt.phase, receipt.round):
                raise SiloError(self._first, "receipts", f"round {receipt.phase}.{receipt.round} is not in its plan")
            if receipt.silo in self._silos:
                event = plan.phases[receipt.phase - 1].event(receipt.silo, receipt.round)
                by_silo.setdefault(receipt.silo, []).append((receipt, event))
        for name, mine in by_silo.items():
            _told(name, self._silos[name].ledger.restore, run, mine)

    @_alone
    def answer(self, query: bytes) -> bytes:
        """One release per participant that lives here, in the query's order, as `release.bundled`.

        What `Query.to_bytes` wrote is rebuilt and checked before any record is looked at: address, names, types and
        sizes of arrays, models within the domain; digests are computed here. Raises SiloError with a constant sentence.
        """
        asked = self._read("query", Query.from_bytes, query)
        if asked.run in self._routes:
            raise SiloError(self._first, "route", "the run is shuffled: its answers go to the shuffler alone")
        return bundled(asked, list(self._answers(asked)))

    def send(self, query: bytes) -> None:
        """Seals the release of each participant that lives here to the run's server, and sends it to the shuffler.

        A release that was committed before is sent again, sealed anew. All participants are tried; then the first
        failure is raised, as SiloError or ShufflerError. Nothing is returned: not a digest of what was sent.
        """
        with self.lock:
            asked = self._read("query", Query.from_bytes, query)
            route, carrier = self._routes.get(asked.run), self._carrier
            if route is None or carrier is None:
                raise SiloError(self._first, "route", "it has approved no shuffled run of this id")
            shuffle = self._run(asked.run)[0].problem.shuffle
            minimum = len(asked.participants) if shuffle is None else shuffle.minimum
            failures: list[SiloError] = []
            releases = list(self._answers(asked, failures))
        for release in releases:  # without the lock: a shuffler may keep a site waiting
            try:
                envelope = _told(release.silo, route.envelope, asked.run, release, minimum)
                _told(release.silo, carrier, route.address, envelope.to_bytes(), route.patience)
            except SiloError as error:
                failures.append(error)
                if error.code == SILENT:  # the others would wait as long for nobody
                    break
        if failures:
            raise failures[0]

    def _answers(self, query: Query, failures: list[SiloError] | None = None) -> Iterator[Release]:
        """The releases of silos here that take part. `failures`: takes the errors of single silos, else raised."""
        names = [name for name in query.participants if name in self._silos]
        if not names:
            return
        plan, forms = self._approved.get(query.run, (None, ()))
        if plan is None or plan.digest != query.plan:
            raise SiloError(names[0], "plan", f"it has not approved run {query.run} with this plan")
        if not plan.has(query.phase, query.round):
            raise SiloError(names[0], "plan", f"round {query.phase}.{query.round} is not in the approved plan")
        if len(set(names)) < len(names):
            raise SiloError(names[0], "query", "a query names each participant once")
        fault = forms[query.phase - 1].fault(query, names)
        if fault is not None:
            raise SiloError(names[0], "query", fault)
        for array in query.arrays.values():
            array.flags.writeable = False  # one array for all of them: none may change what the next one is asked
        phase, digests = plan.phases[query.phase - 1], query.digests(names)
        together = self._together(query, names, phase)
        for name in names:
            question = Question(query.run, query.phase, query.round, query.asked(name), digests[name], together)
            try:
                yield self._answer(name, question, phase)
            except SiloError as error:
                if failures is None:
                    raise
                failures.append(error)

    def _answer(self, name: str, question: Question, phase: Phase) -> Release:
        if self._log is not None:
            self._note(self._log, "begin", question, name)
        # A warning turned into an exception would be an outcome that depends on records.
        with np.errstate(all="ignore"):
            release = _told(name, self._silos[name].answer, question, phase)
        if self._log is not None:
            self._note(self._log, "end", question, name)
        return release

    def _together(self, query: Query, names: list[str], phase: Phase) -> Together | None:
        """The sums of these silos in this round, where they are asked the same and can be summed together."""
        if query.own:
            return None
        block = query.round if phase.fresh_blocks else 0
        key = (query.phase, block, tuple(names))
        found, stack = self._stacks.get(query.run, (None, None))
        if found != key:
            question = Question(query.run, query.phase, query.round, query.arrays, b"")
            parts = {name: _told(name, self._silos[name].part, question, phase) for name in names}
            stack = Stack.of(parts)
            self._stacks[query.run] = key, stack
        return None if stack is None else Together(stack, query.arrays)

    def _note(self, log: int, what: str, query: Question, silo: str) -> None:
        computed = self._silos[silo].computed
        line = f"{os.getpid()} {what} {query.run} {query.phase} {query.round} {silo} {computed}\n"
        written = False
        with contextlib.suppress(OSError):
            written = os.write(log, line.encode()) == len(line.encode())
        if not written:
            raise SiloError(silo, "log", "its site's log could not be written; nothing was sent")

    @_alone
    def accounts(self, run: str) -> list[SiloAccount]:
        """What the ledgers say of this run, silo by silo."""
        plan, _ = self._run(run)
        return [_told(silo.name, _account, silo, plan, run) for silo in self._silos.values()]

    @_alone
    def simulated(self, run: str, w: bytes) -> list[tuple[int, float, float]]:
        """NOT PRIVATE: (records, sum of losses, wrong classes) per silo, for metrics under `simulation/` only.

        Of persons, each counts once: with the means over its rows, as in training.
        `w`: the model as `arrays.pack` writes it, under the name w.
        """
        plan, _ = self._run(run)
        arrays = self._read("model", unpack, w)
        if set(arrays) != {"w"} or not is_vector(arrays["w"], plan.problem.dim) or not is_bounded(arrays["w"]):
            raise SiloError(self._first, "model", f"a model is one array w of {plan.problem.dim} values")
        found = [_told(silo.name, silo.simulated, run) for silo in self._silos.values()]
        each = _told(self._first, found[0][0].evaluate_parts, arrays["w"], [(X, y) for _, X, y, _ in found])
        return [
            _counted(silo.n, losses, wrong, weights)
            for silo, (*_, weights), (losses, wrong) in zip(self._silos.values(), found, each, strict=True)
        ]

    @_alone
    def close_run(self, run: str) -> None:
        """Ends a run for good at all silos: each is charged what its releases spent (`PrivateSilo.close_run`)."""
        self._run(run)
        for silo in self._silos.values():
            _told(silo.name, silo.close_run, run)

    @_alone
    def forget_run(self, run: str) -> None:
        """Lets go of a run at this site, if it has it; the silos stay open for the next one."""
        if type(run) is not str:
            raise SiloError(self._first, "plan", "it has not approved a run of this id")
        self._approved.pop(run, None)
        self._routes.pop(run, None)
        self._stacks.pop(run, None)
        for silo in self._silos.values():
            silo.forget_run(run)

    @_alone
    def close(self) -> None:
        for silo in self._silos.values():
            silo.ledger.close()
        if self._log is not None:
            self._closing()
            self._log = None

    def _run(self, run: str) -> tuple[Plan, list[Form]]:
        """Plan and forms of an approved run."""
        found = self._approved.get(run) if type(run) is str else None
        if found is None:
            raise SiloError(self._first, "plan", "it has not approved a run of this id")
        return found

    def _read(self, what: str, rebuild: Callable[[bytes], T], data: bytes) -> T:
        """What `rebuild` makes of bytes that arrived."""
        try:
            if type(data) is bytes:
                return rebuild(data)
            fault = "it takes bytes"
        except ValueError as error:  # of the asker's own bytes, before any record is looked at
            fault = str(error)
        except Exception:
            fault = "it cannot be read"
        raise SiloError(self._first, what, f"this is no {what}: {fault}")


def _counted(
    n: int, losses: np.ndarray, wrong: np.ndarray | None, weights: np.ndarray | None
) -> tuple[int, float, float]:
    """Of n records, or persons with weighted rows: n, sum of losses, wrong classes."""
    if weights is None:
        return n, float(np.add.reduce(losses)), 0 if wrong is None else int(np.count_nonzero(wrong))
    return n, float(weights @ losses), 0.0 if wrong is None else float(weights @ wrong)


def _opened(silo: str, log: Path) -> int:
    """The site's log, open for appending."""
    with contextlib.suppress(OSError):
        return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    raise SiloError(silo, "log", f"its site's log {log} cannot be opened for writing")


def _account(silo: PrivateSilo, plan: Plan, run: str) -> SiloAccount:
    rows = silo.ledger.rows(run)
    delta = plan.problem.budget.delta(silo.n)
    epsilon = spent((row.event for row in rows), delta)
    return SiloAccount(silo.name, silo.n, len(rows), epsilon, delta, silo.computed)


def _told(silo: str, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `act` returns. Of its failures, only public sentences pass, as SiloError; others may quote a record."""
    refused = None
    try:
        return act(*args, **kwargs)
    except ShufflerError as error:
        refused = (error.code, error.sentence)
    except SiloError as error:
        said = (error.silo, error.code, error.sentence)
    except InputError as error:  # of the agreement's public numbers
        said = (silo, "plan", str(error))
    except Exception:
        said = (silo, "failed", "it could not answer; see the log at the silo")
    # Not raised in the handler: the first error would stay as the context of this one, also with `from None`, and
    # Dask, once a task has failed on a worker, pickles contexts too. For the same reason never the first error itself.
    if refused is not None:
        raise ShufflerError(*refused)
    raise SiloError(*said)


def _planned(agreement: Agreement, noise: NoiseCache | None) -> tuple[Plan, str, list[Form]]:
    """The plan that these silos make of an agreement, its digest, and the form of its questions phase by phase.

    Raises InputError if it makes none: no record is looked at yet, so that may be said.
    """
    try:
        with noise_kept_in(noise):
            method = evaluated(agreement.method, agreement.problem)
            plan = planned(method, agreement.problem)
        return plan, plan.digest, [Form.of(method, plan, phase) for phase in plan.phases]
    except InputError:
        raise
    except Exception:
        pass
    raise InputError(f"{agreement.method.name} makes no plan of these numbers: some are too large, or too small")
