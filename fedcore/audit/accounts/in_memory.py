"""Test that a simulated silo's account covers all releases; part of the instrument `accounts`.

Runs are closed, forgotten, approved again and restored from receipts, and a ledger refuses to write.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedcore.audit.accounts.known_account import KnownAccount, chosen, no_more
from fedcore.audit.audit_session import AuditSession
from fedcore.audit.scenes import equal_records
from fedcore.errors import SiloError
from fedcore.ledger.ledger import Row
from fedcore.ledger.memory import MemoryLedger
from fedcore.messages import Receipt


class _Unwilling(MemoryLedger):
    """A ledger that refuses every commit."""

    def commit(self, run: str, row: Row, lease: int = 0) -> None:
        raise SiloError(self._silo, "ledger", "nothing can be written to it")


def in_memory(known: KnownAccount, rng: np.random.Generator, _: Path) -> None:
    """Compares the charges of simulated silos, whose ledger ends with its process, with the releases."""
    ledger = MemoryLedger(known.audited.silo)
    session = AuditSession(known.audited, equal_records(known.audited, rng), ledger)
    addresses = chosen(known.audited)
    for run, some in (("closed", addresses), ("open", addresses[:1])):
        known.ask(session, run, some)
    known.charged("in memory", ledger.charges())
    known.close(session, "closed")
    known.charged("in memory, after closing", ledger.charges())
    no_more(known, session, "closed", set(addresses))
    session.forget("closed")
    known.charged("in memory, after forgetting", ledger.charges())
    no_more(known, session, "closed", set(addresses))
    known.ask(session, "forgotten", addresses)
    session.forget("forgotten")
    session.silo.close_run("forgotten")
    known.closed.add("forgotten")
    known.charged("in memory, after closing what was forgotten", ledger.charges())
    _restored(known, session, addresses)
    _unwritten(known, AuditSession(known.audited, session.records, _Unwilling(known.audited.silo)), addresses)


def _restored(known: KnownAccount, before: AuditSession, addresses: list[tuple[int, int]]) -> None:
    """Checks that an answered address gets no other answer in a new process.

    The process makes its ledger of receipts, under a newer lease.
    """
    known.ask(before, "restored", addresses)
    name, rows = known.audited.silo, before.written("restored")
    receipts = [(Receipt(name, row.phase, row.round, row.query_digest, row.payload_digest), row.event) for row in rows]
    session = AuditSession(known.audited, before.records, lease=7)
    session.approved("restored")
    session.ledger.restore("restored", receipts)
    recorded = {(row.phase, row.round): row.payload_digest for row in rows}
    known.holds("answers were sent that are in no ledger", set(recorded) >= set(addresses))
    for address in addresses:  # another question first: the same one would be recorded again
        for sent in filter(None, (session.queries.other(address), session.queries.first(address))):
            known.holds(
                f"a restored run answers round {address[0]}.{address[1]} anew",
                session.payload("restored", address, sent) in (None, recorded.get(address)),
            )


def _unwritten(known: KnownAccount, session: AuditSession, addresses: list[tuple[int, int]]) -> None:
    """Checks that no payload is sent that was not committed."""
    session.approved("unwritten")
    known.silent("a run whose ledger refuses to write", session, "unwritten", addresses)
