"""A site: one process that keeps one or many silos open and answers a round for all of them in one call.

Everything that comes in and goes out is plain data, so that a guarded silo's own service can take the site's place by a
change of address.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np

from fedcore.algorithms import Agreed
from fedcore.arrays import Vector, is_vector
from fedcore.errors import InputError, SiloError
from fedcore.models import Objective
from fedcore.plan import Plan
from fedcore.privacy.composition import spent
from fedcore.privacy.release import BOUND, Query, Receipt, Release, is_bounded
from fedcore.privacy.silo import PrivateSilo
from fedcore.problem import Problem

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Agreement:
    """What a run asks silos to agree to: public facts and hyperparameters, from which each makes the plan itself."""

    run: str
    problem: Problem
    method: Agreed
    loss: Objective
    plan: str


class SiloAccount(NamedTuple):
    """What a silo's ledger says of one run: releases, the epsilon they spend at its delta, and answers computed."""

    silo: str
    n: int
    releases: int
    epsilon: float
    delta: float
    computed: int


class Site:
    """Holds silos by name. `log`: a file at the site that gets a line as each answer begins and as it ends."""

    def __init__(self, silos: Iterable[PrivateSilo], log: Path | None = None) -> None:
        self._silos = {silo.name: silo for silo in silos}
        self._plans: dict[str, Plan] = {}
        self._log = None if log is None else os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        if self._log is not None:
            self._closing = weakref.finalize(self, os.close, self._log)

    def approve(self, agreement: Agreement) -> list[str]:
        """Makes the plan anew and has every silo approve it; returns their names. Raises SiloError if refused."""
        plan = agreement.method.plan(agreement.problem)
        if plan.digest != agreement.plan:
            raise SiloError(
                next(iter(self._silos)),
                "plan",
                f"its own plan for run {agreement.run} is {plan.digest[:12]}, not {agreement.plan[:12]} as sent",
            )
        for silo in self._silos.values():
            _told(silo.name, silo.approve, agreement.run, plan, agreement.method, agreement.loss)
        self._plans[agreement.run] = plan
        return list(self._silos)

    def restore(self, run: str, receipts: Iterable[Receipt]) -> None:
        """Gives memory ledgers the receipts that the driver kept; durable ledgers ignore them."""
        plan = self._plans[run]
        by_silo: dict[str, list[Receipt]] = {}
        for receipt in receipts:
            by_silo.setdefault(receipt.silo, []).append(receipt)
        for name, mine in by_silo.items():
            if name in self._silos:
                events = (plan.phases[r.phase - 1].event(name, r.round) for r in mine)
                self._silos[name].ledger.restore(run, zip(mine, events, strict=True))

    def answer(self, query: Query) -> list[Release]:
        """One release per participant that lives here, in the query's order.

        The query is checked before any record is looked at. Raises SiloError with a constant sentence.
        """
        names = [name for name in query.participants if name in self._silos]
        if not names:
            return []
        plan = self._plans.get(query.run)
        if plan is None or plan.digest != query.plan:
            raise SiloError(names[0], "plan", f"it has not approved run {query.run} with this plan")
        if not _planned(plan, query.phase, query.round):
            raise SiloError(names[0], "plan", f"round {query.phase}.{query.round} is not in the approved plan")
        for array in _arrays(query, names):
            if not is_vector(array, plan.problem.dim) or not is_bounded(array):
                raise SiloError(
                    names[0], "query", f"a query needs float64 arrays of {plan.problem.dim} values below {BOUND:g}"
                )
        phase = plan.phases[query.phase - 1]
        releases = []
        # A warning turned into an exception would be an outcome that depends on records.
        with np.errstate(all="ignore"):
            for name in names:
                if self._log is not None:
                    self._note(self._log, "begin", query, name)
                releases.append(_told(name, self._silos[name].answer, query, phase))
                if self._log is not None:
                    self._note(self._log, "end", query, name)
        return releases

    def _note(self, log: int, what: str, query: Query, silo: str) -> None:
        computed = self._silos[silo].computed
        line = f"{os.getpid()} {what} {query.run} {query.phase} {query.round} {silo} {computed}\n"
        os.write(log, line.encode())

    def accounts(self, run: str) -> list[SiloAccount]:
        """What the ledgers say of this run, silo by silo."""
        plan, accounts = self._plans[run], []
        for silo in self._silos.values():
            rows = silo.ledger.rows(run)
            delta = plan.problem.budget.delta(silo.n)
            epsilon = spent((row.event for row in rows), delta)
            accounts.append(SiloAccount(silo.name, silo.n, len(rows), epsilon, delta, silo.computed))
        return accounts

    def simulated(self, run: str, w: Vector) -> list[tuple[int, float, int]]:
        """NOT PRIVATE: (records, sum of losses, wrong classes) per silo, for metrics under `simulation/` only."""
        return [silo.simulated(run, w) for silo in self._silos.values()]

    def close_run(self, run: str) -> None:
        """Ends a run for good at all silos: each is charged what its releases spent (`PrivateSilo.close_run`)."""
        for silo in self._silos.values():
            silo.close_run(run)

    def forget_run(self, run: str) -> None:
        """Lets go of a run at this site; the silos stay open for the next one."""
        self._plans.pop(run, None)
        for silo in self._silos.values():
            silo.forget_run(run)

    def close(self) -> None:
        for silo in self._silos.values():
            silo.ledger.close()
        if self._log is not None:
            self._closing()
            self._log = None


def _told(silo: str, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `act` returns. Of its failures, only errors with a public sentence pass; others may quote a record."""
    try:
        return act(*args, **kwargs)
    except (SiloError, InputError):
        raise
    except Exception:
        pass
    # Not raised in the handler: the first error would stay as the context of this one, also with `from None`, and
    # Dask, once a task has failed on a worker, pickles contexts too.
    raise SiloError(silo, "failed", "it could not answer; see the log at the silo")


def _planned(plan: Plan, phase: Any, round: Any) -> bool:
    """Whether this is a round of the plan: two whole numbers, since 1.5 would be an address of its own."""
    if type(phase) is not int or type(round) is not int:
        return False
    return 1 <= phase <= len(plan.phases) and 1 <= round <= plan.phases[phase - 1].rounds


def _arrays(query: Query, names: list[str]) -> list[Any]:
    """All arrays that these silos would receive; what is not a dictionary of some counts as one, a wrong one."""
    if type(query.own) is not dict:
        return [query.own]
    sections = [query.arrays, *(query.own[name] for name in names if name in query.own)]
    return [array for one in sections for array in (one.values() if type(one) is dict else [one])]
