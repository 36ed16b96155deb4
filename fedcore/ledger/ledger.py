"""The ledger of one silo: charge and released bytes, committed in one transaction before anything is sent.

Two classes implement the interface: `memory.MemoryLedger` for simulated silos (the driver's checkpoint stores the
receipts) and `sqlite.SqliteLedger`, one file per silo for life.
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
    """The interface of a silo to its ledger."""

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
        """Reserves the run's full charge and stores its plan digest and key, or finds the run; returns its key.

        `person`: unit of the charge, as `Problem.person`. `lease`: the number of the driver's lease of the run; it is
        stored, and from then on only this one is accepted (`check_lease`). `policy`: the cap of the silo's policy,
        which has admitted the charge; where caps are recorded with the account (`caps`) it comes before `cap`.

        Raises SiloError, and stores nothing, for another plan, a charge that the cap does not admit or an older lease.
        A durable ledger also refuses another unit than that of its charges.
        """
        ...

    def check_lease(self, run: str, lease: int) -> None:
        """Raises SiloError unless this is the newest lease of the run."""
        ...

    def find(self, run: str, phase: int, round: int) -> Row | None:
        """The committed row of this address; None if there is none."""
        ...

    def commit(self, run: str, row: Row, lease: int = 0) -> None:
        """Commits charge and bytes in one transaction.

        Raises SiloError if the address is committed already, the run is closed, or another lease is the newest.
        """
        ...

    def close_run(self, run: str, mu_squared: float, lease: int | None = None) -> None:
        """Ends a run for good: its charge becomes `mu_squared`, spent by its releases, and its key is deleted.

        Committed releases can still be sent again. A run that is closed already does not change. `lease`: as for
        `commit`; None: the silo's operator ends the run.
        """
        ...

    def forget_run(self, run: str) -> None:
        """Frees the memory of a closed run that no driver needs soon; its charges stay."""
        ...

    def is_closed(self, run: str) -> bool:
        """True once `close_run` or a reconciliation ended the run."""
        ...

    def is_run(self, run: str) -> bool:
        """True if a run of this id was ever approved."""
        ...

    @property
    def runs(self) -> int:
        """Number of runs ever approved, with those whose approvals were lost before a reconciliation."""
        ...

    @property
    def caps(self) -> Caps:
        """The caps that the account has had, and the order of its Renyi filter."""
        ...

    @property
    def disjoint(self) -> bool:
        """True if an operator declared persons disjoint, so that charges of other data versions do not count here."""
        ...

    def charges(self) -> dict[str, Charge]:
        """The charge in force of every run, in order of approval, and all other charges."""
        ...

    def record_policy(self, digest: str, text: str) -> None:
        """Records the silo's policy (canonical text and its SHA-256), unless it is the one recorded last."""
        ...

    def restore(self, run: str, receipts: Iterable[tuple[Receipt, GaussianRelease]]) -> None:
        """Makes rows from the driver's receipts, for a ledger that does not outlive its process."""
        ...

    def rows(self, run: str) -> list[Row]:
        """All rows of the run, in order of commit."""
        ...

    def events(self, run: str) -> list[GaussianRelease]:
        """The events of these rows; equal ones are the same object."""
        ...

    def fence(self, run: str, lease: int) -> None:
        """Records a newer lease of the run without waiting for users of the ledger; no older lease commits again."""
        ...

    def close(self) -> None: ...


def payload_digest(message: Vector) -> tuple[bytes, bytes]:
    """Bytes of a message and their SHA-256."""
    payload = np.ascontiguousarray(message).tobytes()
    return payload, hashlib.sha256(payload).digest()


def settled(charge: Charge, mu_squared: float, events: Iterable[GaussianRelease], order: float | None) -> Charge:
    """Charge of a closed run: spent by its releases (`events`), and never more than its plan.

    Epsilon stays the plan's: under `basic` composition there is no proof for the epsilon of answers that stopped at a
    chosen moment. `order`: the account's, or None. Filters by order or mu^2 hold at any stop: they add single answers.
    """
    pieces = pieces_of(events) if charge.pieces else ()
    ended = replace(charge, mu_squared=min(charge.mu_squared, mu_squared), pieces=pieces, divergence=None)
    if order is None:
        return ended
    known = charge.divergence
    if known is not None and known.formula > FORMULA:
        return replace(ended, divergence=known)  # this version cannot lower the charge of a newer one
    return replace(ended, divergence=Divergence(order, min(charge.rho(order), ended.rho(order))))
