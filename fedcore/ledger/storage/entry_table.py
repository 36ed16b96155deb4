"""The table of entries, read so that only the chain and the anchor are trusted, and no index, kind or count.

Every query reads the table itself (NOT INDEXED). A forged index could leave out a row, and so hide a release.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

from fedcore.ledger.anchor import GENESIS, Mark, Totals
from fedcore.ledger.chain import Entry, event_of, sound
from fedcore.ledger.rows import Row, Rows
from fedcore.ledger.state import LedgerState, Link

ENTRY = ", ".join(Entry._fields)
MOST_FIELD = 2**20
"""Bytes or characters in a field of an entry other than a release: a small file can hold many that share pages."""


class BrokenChainError(ValueError):
    """Entries are not those that were written; the message is a sentence."""


class Change(NamedTuple):
    """An entry that is no release, its MAC, and the MAC of the entry before it (None if that is gone)."""

    entry: Entry
    mac: bytes
    before: bytes | None


def check_sequence(db: sqlite3.Connection) -> int:
    """The number of entries. Raises BrokenChainError unless they are numbered from 1 on without a gap."""
    count = 0
    # One after the other: a small file with cyclic pages has endless rows.
    for count, (number,) in enumerate(db.execute("SELECT sequence FROM entries NOT INDEXED ORDER BY sequence"), 1):
        if number != count:
            raise BrokenChainError(f"entry {count} is missing")
    return count


def changes(db: sqlite3.Connection) -> list[Change]:
    """All entries whose kind is not `release`, in order; not verified. The anchor identifies them.

    Raises BrokenChainError for entries that no ledger holds.
    """
    fields = ", ".join(f"mine.{name}" for name in Entry._fields)
    # IS NOT: != would leave out a kind that is NULL. LEFT: an inner join would leave out an entry without predecessor.
    query = (
        f"SELECT {fields}, mine.mac, earlier.mac FROM entries mine NOT INDEXED LEFT JOIN entries earlier NOT INDEXED "
        "ON earlier.sequence = mine.sequence - 1 WHERE mine.kind IS NOT 'release' ORDER BY mine.sequence"
    )
    found, last = [], 0
    for *of_entry, mac, before in db.execute(query):
        entry = Entry(*of_entry)
        wide = any(isinstance(field, str | bytes) and len(field) > MOST_FIELD for field in (*entry, mac, before))
        # Cyclic pages repeat an entry; an entry that is no release to SQL may be one in Python.
        if entry.sequence <= last or entry.kind == "release" or wide:
            raise BrokenChainError(f"entry {entry.sequence} was changed, or is not where it was written")
        last = entry.sequence
        found.append(Change(entry, mac, GENESIS if entry.sequence == 1 else before))
    return found


def verified(found: list[Change], key: bytes) -> LedgerState:
    """The state that these entries make. Raises BrokenChainError for one that was changed."""
    for entry, mac, before in found:
        if before is None or not sound(entry, key, before, mac):
            raise BrokenChainError(f"entry {entry.sequence} was changed, or is not where it was written")
    return LedgerState((entry, mac) for entry, mac, _ in found)


def check_state(state: LedgerState, silo: str, version: str) -> None:
    """Raises BrokenChainError for entries of another ledger, and unless each run is approved once and closed once."""
    approved: set[str] = set()
    is_open: set[str] = set()
    for entry in state.entries:
        if entry.kind == "approval" and entry.run in approved:
            raise BrokenChainError(f"entry {entry.sequence} approves a run for the second time")
        if entry.kind == "approval":
            approved.add(entry.run)
            is_open.add(entry.run)
        elif entry.kind == "closing":
            if entry.run not in is_open:
                raise BrokenChainError(f"entry {entry.sequence} ends a run that is not open: its approval is gone")
            is_open.remove(entry.run)
    if state.entries:
        first = state.entries[0]
        if (first.sequence, first.kind) != (1, "opening"):
            raise BrokenChainError("entry 1 was changed, or is not where it was written")
        if json.loads(first.body) != {"silo": silo, "data_version": version}:
            raise BrokenChainError("it is the ledger of another silo or of another version of its data")


def anchor_fault(db: sqlite3.Connection, mark: Mark | None, found: list[Change]) -> str | None:
    """The difference between a ledger and its anchor, as a sentence; None if the ledger equals it or is ahead."""
    (last,) = db.execute("SELECT COALESCE(MAX(sequence), 0) FROM entries NOT INDEXED").fetchone()
    if mark is None:
        return "its ledger's anchor is gone or damaged"
    if last < mark.sequence:
        return f"its ledger ends at entry {last}, its anchor saw {mark.sequence}: it lost its end or is an old copy"
    if mark.sequence == 0:
        return None
    if _mac(db, mark.sequence) != mark.head:
        return f"entry {mark.sequence} of its ledger is not the one that its anchor saw: another copy was written to"
    seen = LedgerState((entry, mac) for entry, mac, _ in found if entry.sequence <= mark.sequence)
    if mark.trail is not None and seen.trail != mark.trail:
        return "approvals, closings and other entries of its ledger that are no releases are not those its anchor saw"
    # Divergences follow from the same charges. The register records the order of a registered silo.
    sums_differ = Totals.of(seen.charges.values())[:3] != mark.totals[:3]
    if sums_differ or (mark.order is None and seen.caps.order is not None):
        return "the charges in its ledger do not add up to what its anchor saw"
    return None


def walk(db: sqlite3.Connection, key: bytes, after: Link, to: Link | None = None) -> Iterator[tuple[Entry, bytes]]:
    """Entries and MACs after `after`, each verified by the one before; the last one is `to` (None: any).

    Raises BrokenChainError where the chain does not go on, or does not end in `to`.
    """
    if after.sequence and _mac(db, after.sequence) != after.mac:
        raise BrokenChainError(f"entry {after.sequence} is not the one that was verified")
    query = f"SELECT {ENTRY}, mac FROM entries NOT INDEXED WHERE sequence > ? AND sequence <= ? ORDER BY sequence"
    last, before = after
    for *fields, mac in db.execute(query, (after.sequence, 2**62 if to is None else to.sequence)):
        entry = Entry(*fields)
        if entry.sequence != last + 1:
            raise BrokenChainError(f"entry {last + 1} is missing")
        if not sound(entry, key, before, mac):
            raise BrokenChainError(f"entry {entry.sequence} was changed, or is not where it was written")
        yield entry, mac
        last, before = entry.sequence, mac
    if to is not None and (last, before) != to:
        gone = last < to.sequence
        raise BrokenChainError(f"entry {last + 1} is missing" if gone else f"entry {last} is not the one it was")


def committed(entry: Entry) -> Row:
    """The row of a verified release, without its bytes."""
    return Row(entry.phase, entry.round, entry.query_digest, event_of(entry.body), entry.payload_digest, None)


def releases(db: sqlite3.Connection, key: bytes, run: str, after: Link, to: Link) -> Rows:
    """The releases of a run; verifies all entries between two verified ones, whatever their kind.

    Raises BrokenChainError if an entry was changed, moved or deleted, or if an address was answered twice.
    """
    found = Rows()
    for entry, _ in walk(db, key, after, to):
        if entry.kind == "release" and entry.run == run:
            if found.place(entry.phase, entry.round) is not None:
                raise BrokenChainError(f"round {entry.phase}.{entry.round} of run {run} is there twice")
            found.put(committed(entry), entry.sequence)
    return found


def _mac(db: sqlite3.Connection, sequence: int) -> bytes | None:
    found = db.execute("SELECT mac FROM entries NOT INDEXED WHERE sequence = ?", (sequence,)).fetchone()
    return None if found is None else found[0]
