"""What can be wrong with a durable ledger, found by its chain, its anchor and its bytes."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from fedcore.errors import SiloError
from fedcore.privacy.anchor import GENESIS, Anchor, Mark, Totals
from fedcore.privacy.chain import Entry, charges_of
from fedcore.privacy.ledger_file import connect

ENTRY = ", ".join(Entry._fields)


def anchor_fault(db: sqlite3.Connection, mark: Mark | None) -> str | None:
    """Why the ledger is not the one that its anchor saw last, as a sentence; None if it is that one or ahead of it."""
    (last,) = db.execute("SELECT COALESCE(MAX(sequence), 0) FROM entries").fetchone()
    if mark is None:
        return "its ledger's anchor is gone or damaged" if last else None
    if last < mark.sequence:
        return f"its ledger ends at entry {last}, its anchor saw {mark.sequence}: it lost its end or is an old copy"
    if mark.sequence == 0:
        return None
    found = db.execute("SELECT mac FROM entries WHERE sequence = ?", (mark.sequence,)).fetchone()
    if found is None or found[0] != mark.head:
        return f"entry {mark.sequence} of its ledger is not the one that its anchor saw: another copy was written to"
    changes = "SELECT kind, run, body FROM entries WHERE kind != 'release' AND sequence <= ? ORDER BY sequence"
    if Totals.of(charges_of(list(db.execute(changes, (mark.sequence,)))).values()) != mark.totals:
        return "the charges in its ledger do not add up to what its anchor saw"
    return None


def chain_fault(db: sqlite3.Connection, key: bytes, first: int = 1, before: bytes = GENESIS) -> str | None:
    """The first entry from `first` on that does not continue the chain, as a sentence; None if all do.

    `before`: the MAC of the entry that precedes `first`.
    """
    expected = first
    for *fields, mac in db.execute(f"SELECT {ENTRY}, mac FROM entries WHERE sequence >= ? ORDER BY sequence", (first,)):
        entry = Entry(*fields)
        if entry.sequence != expected:
            return f"entry {expected} is missing"
        if not _sound(entry, key, before, mac):
            return f"entry {entry.sequence} was changed, or is not where it was written"
        before, expected = mac, expected + 1
    return None


def run_fault(db: sqlite3.Connection, key: bytes, run: str) -> str | None:
    """As `chain_fault`, for the entries of one run only."""
    fields = ", ".join(f"mine.{name}" for name in Entry._fields)
    query = (
        f"SELECT {fields}, mine.mac, earlier.mac FROM entries mine JOIN entries earlier "
        "ON earlier.sequence = mine.sequence - 1 WHERE mine.kind IN ('release', 'approval', 'closing') AND mine.run = ?"
    )
    for *found, mac, before in db.execute(query, (run,)):
        if not _sound(Entry(*found), key, before, mac):
            return f"entry {found[0]} was changed, or is not where it was written"
    return None


def faults(silo: str, path: Path, anchor: Path) -> list[str]:
    """All that is wrong with the ledger at `path`, as sentences without any released value; none if it is whole.

    Takes the ledger's lock. Raises SiloError if another process holds it.
    """
    if not path.exists():
        return [f"its ledger {path} is gone"]
    try:
        db = connect(silo, path)
    except SiloError as error:
        if "held by another process" in error.sentence:
            raise
        return [error.sentence]
    try:
        kept = Anchor(anchor)
    except OSError:
        db.close()
        return [f"its ledger's anchor {anchor} cannot be read"]
    said: list[str] = []
    try:
        said.extend(_faults(db, kept))
    except (sqlite3.Error, ValueError, TypeError, KeyError):
        said.append("its ledger cannot be read to its end: it is cut or damaged")
    finally:
        db.close()
    return said


def _faults(db: sqlite3.Connection, anchor: Anchor) -> Iterator[str]:
    said = [line for (line,) in db.execute("PRAGMA integrity_check(1)")]
    if said != ["ok"]:
        yield "its ledger's pages are damaged (SQLite's integrity check)"
    if anchor.key is None:
        yield f"its key {anchor.key_path} is gone, nothing in it can be checked"
        return
    broken = chain_fault(db, anchor.key)
    if broken is not None:
        yield broken
    lost = anchor_fault(db, anchor.mark)
    if lost is not None:
        yield lost
    query = "SELECT sequence, payload_digest, payload FROM entries WHERE kind = 'release' ORDER BY sequence"
    for sequence, digested, payload in db.execute(query):
        if payload is None or hashlib.sha256(payload).digest() != digested:
            yield f"the released bytes of entry {sequence} are not those that were committed"
    keys = dict(db.execute("SELECT run, key FROM keys"))
    for run, body in db.execute("SELECT run, body FROM entries WHERE kind = 'approval' ORDER BY sequence"):
        closed = db.execute("SELECT 1 FROM entries WHERE kind = 'closing' AND run = ?", (run,)).fetchone()
        key = keys.pop(run, None)
        if closed and key is not None:
            yield f"the key of run {run} is still there although the run is closed"
        elif not closed and (key is None or hashlib.sha256(key).hexdigest() != json.loads(body)["key_sha256"]):
            yield f"the key of run {run} is not the one that it was approved with"
    if keys:
        yield "it holds keys of runs that it does not know"


def _sound(entry: Entry, key: bytes, before: bytes, mac: bytes) -> bool:
    try:
        return entry.mac(key, before) == mac
    except Exception:
        return False  # a damaged field has another type
