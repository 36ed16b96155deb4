"""The ledger of one silo: charge and released bytes, committed together before anything is sent.

Two forms behind one interface: `memory.MemoryLedger` for simulated silos (the driver's checkpoint keeps its receipts)
and `sqlite.SqliteLedger`, one file per silo for life.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

import numpy as np

from fedcore.accounting.divergences.pieces import pieces_of
from fedcore.accounting.divergences.renyi import FORMULA
from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.filters import Cap, Charge, Divergence
from fedcore.arrays import Vector
from fedcore.ledger.caps import Caps
from fedcore.ledger.rows import Row
from fedcore.messages import Receipt


class Ledger(Protocol):
    """What a silo needs of its ledger."""

    def open_run(
        self,
        run: str,
        plan: str,
        key: bytes,
        charge: Charge,
        cap: Cap | None,
        person: str | None = None,
        lease: int = 0,
        policy: Cap | None = None,
    ) -> bytes:
        """Reserves the run's full charge and keeps its plan digest and key, or finds the run; returns its key.

        `person`: what the charge is for, as `Problem.person`. `lease`: the number of the driver's lease of the run,
        which is kept; from then on only this one counts (`check_lease`). `policy`: the cap of the silo's policy, which
        has admitted the charge; where caps are kept with the account (`caps`) it comes before `cap`. Raises SiloError
        on another plan, if the cap does not admit the charge, if a durable ledger was charged for another unit, or if a
        newer lease is known: then nothing is kept.
        """
        ...

    def check_lease(self, run: str, lease: int) -> None:
        """Raises SiloError unless this is the newest lease of the run."""
        ...

    def find(self, run: str, phase: int, round: int) -> Row | None:
        """The committed row of this address."""
        ...

    def commit(self, run: str, row: Row, lease: int = 0) -> None:
        """Charge and bytes in one transaction. Raises SiloError if the address is committed already, the run is
        closed, or another lease of it is the newest."""
        ...

    def close_run(self, run: str, mu_squared: float, lease: int | None = None) -> None:
        """Ends a run for good: from here on it is charged `mu_squared`, what its releases have spent, and its key is
        forgotten. Committed releases can still be sent again. Nothing happens to a run that is closed already.

        `lease`: as for `commit`; None: it is the silo's own operator who ends it.
        """
        ...

    def forget_run(self, run: str) -> None:
        """Says that nobody will ask about this run soon: what is only in memory of a closed run may go, but charges."""
        ...

    def is_closed(self, run: str) -> bool:
        """Whether `close_run` or a reconciliation ended the run."""
        ...

    def is_run(self, run: str) -> bool:
        """Whether a run of this id was ever approved."""
        ...

    @property
    def runs(self) -> int:
        """How many runs were ever approved, with those whose approvals were lost before a reconciliation."""
        ...

    @property
    def caps(self) -> Caps:
        """The caps that the account has had, and the order of its Renyi filter."""
        ...

    @property
    def disjoint(self) -> bool:
        """Whether charges of other data versions do not count here: an operator declared that persons are disjoint."""
        ...

    def charges(self) -> dict[str, Charge]:
        """The charge in force of every run, in order of approval, and of whatever else was charged."""
        ...

    def record_policy(self, digest: str, text: str) -> None:
        """Keeps the silo's policy as canonical text with its SHA-256, unless it is the one that was kept last."""
        ...

    def restore(self, run: str, receipts: Iterable[tuple[Receipt, GaussianRelease]]) -> None:
        """Makes rows of receipts that the driver kept, where the ledger itself does not outlive its process."""
        ...

    def rows(self, run: str) -> list[Row]:
        """All rows of the run, in order of commit."""
        ...

    def events(self, run: str) -> list[GaussianRelease]:
        """The events of these rows; equal ones are one object."""
        ...

    def fence(self, run: str, lease: int) -> None:
        """Takes note of a newer lease of the run, without waiting for who uses the ledger: no
        other commits any more."""
        ...

    def close(self) -> None: ...


def payload_digest(message: Vector) -> tuple[bytes, bytes]:
    """Bytes of a message and their SHA-256."""
    payload = np.ascontiguousarray(message).tobytes()
    return payload, hashlib.sha256(payload).digest()


def settled(charge: Charge, mu_squared: float, events: Iterable[GaussianRelease], order: float | None) -> Charge:
    """What a closed run is charged: what its releases, of these events, spent, and never more than its plan.

    Epsilon stays the plan's: for `basic` composition, an epsilon of answers that stopped at a chosen moment has no
    proof. `order`: that of the account, or None; filters by it or by mu^2 are over single answers.
    """
    pieces = pieces_of(events) if charge.pieces else ()
    ended = replace(charge, mu_squared=min(charge.mu_squared, mu_squared), pieces=pieces, divergence=None)
    if order is None:
        return ended
    known = charge.divergence
    if known is not None and known.formula > FORMULA:
        return replace(ended, divergence=known)  # what a newer version charged, this one cannot lower
    return replace(ended, divergence=Divergence(order, min(charge.rho(order), ended.rho(order))))
