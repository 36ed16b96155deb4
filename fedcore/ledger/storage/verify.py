"""Verification of a durable ledger: the checks on opening, and the full ones of `budget verify`."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from fedcore.errors import SiloError
from fedcore.ledger.anchor import GENESIS, Anchor
from fedcore.ledger.file_lock import HeldError, hold
from fedcore.ledger.state import LedgerState, Link
from fedcore.ledger.storage.database import connect
from fedcore.ledger.storage.entry_table import (
    BrokenChainError,
    anchor_fault,
    changes,
    check_sequence,
    check_state,
    verified,
    walk,
)

NOTHING = Link(0, GENESIS)
"""The link before the first entry of a chain."""


class BehindAnchorError(ValueError):
    """The ledger is not the one that its anchor saw last; the message is a sentence."""


def opened(
    db: sqlite3.Connection, anchor: Anchor, entries: int, owner: tuple[str, str], fitting: bool
) -> tuple[LedgerState, Link]:
    """The verified state of a ledger with `entries` entries, and its last link.

    Verifies the anchor's mark, the sum of charges at the mark, each earlier entry other than a release, and each later
    entry. Verifies every entry if the ledger need not be `fitting` its anchor, or if the anchor is of an earlier
    version. `owner`: silo and data version. Raises BehindAnchorError or BrokenChainError, and other errors for a file
    that cannot be read.
    """
    mark = anchor.mark
    if mark is None and not entries:
        # It would begin again without a charge, although releases may have been made before both were lost.
        raise BrokenChainError(f"it is empty, and its anchor {anchor.path} is gone although there is a key")
    found = changes(db)
    fault = anchor_fault(db, mark, found) if fitting else None
    if fault is not None:
        raise BehindAnchorError(fault)
    # The mark's trail identifies its entries. Only the chain identifies later ones.
    known = fitting and mark is not None and mark.trail is not None
    at = Link(mark.sequence, mark.head) if mark is not None and known else NOTHING
    state = verified([each for each in found if each.entry.sequence <= at.sequence], anchor.known_key)
    for entry, mac in walk(db, anchor.known_key, at):
        at = Link(entry.sequence, mac)
        if entry.kind != "release":
            state.take(entry, mac)
    check_state(state, *owner)
    return state, at


def faults(silo: str, path: Path, anchor: Path) -> list[str]:
    """All faults of the ledger at `path`, as sentences without any released value; empty if it is whole.

    Takes the ledger's locks. Raises SiloError if another process holds it.
    """
    held, db = -1, None
    found: list[str] = []
    try:
        if not path.exists():
            return [f"its ledger {path} is gone"]
        held = hold(silo, path, anchor)
        db = connect(silo, path)
        found.extend(_faults(db, Anchor.read(silo, anchor), (silo, path.parent.name)))
    except HeldError:
        raise
    except SiloError as error:
        found.append(error.sentence)
    except Exception:
        found.append("its ledger cannot be read to its end: it is cut or damaged")
    finally:
        if db is not None:
            db.close()
        if held >= 0:
            os.close(held)
    return found


def _faults(db: sqlite3.Connection, anchor: Anchor, owner: tuple[str, str]) -> Iterator[str]:
    if [line for (line,) in db.execute("PRAGMA integrity_check(1)")] != ["ok"]:
        yield "its ledger's pages are damaged (SQLite's integrity check)"
    if anchor.key is None:
        yield f"its key {anchor.key_path} is gone, nothing in it can be checked"
        return
    try:
        entries = check_sequence(db)
    except BrokenChainError as gap:
        # The checks below would not end in a file with cyclic pages.
        yield str(gap)
        return
    broken = _chain_fault(db, anchor.key)
    if broken is not None:
        yield broken
    found = changes(db)
    lost = anchor_fault(db, anchor.mark, found)
    if lost is not None:
        yield lost
    query = "SELECT sequence, kind, payload_digest, payload FROM entries NOT INDEXED ORDER BY sequence"
    for sequence, kind, digested, payload in db.execute(query):
        if kind != "release":
            # No MAC covers bytes: a release is checked by its digest, and other entries must have none.
            if payload is not None:
                yield f"entry {sequence} is no release and holds bytes that nobody committed"
        elif type(payload) is not bytes or hashlib.sha256(payload).digest() != digested:
            yield f"the released bytes of entry {sequence} are not those that were committed"
    try:
        state = verified(found, anchor.key)
        check_state(state, *owner)
    except BrokenChainError as other:
        if str(other) != broken:
            yield str(other)
        # Keys are compared with approvals below, of which one may be wrong and the others right.
        state = LedgerState((entry, mac) for entry, mac, _ in found)
    # At most as many keys as entries, cut to length: forged rows may be of any number and size.
    query = "SELECT substr(run, 1, 256), substr(key, 1, 64) FROM keys NOT INDEXED LIMIT ?"
    keys = dict(db.execute(query, (entries,)))
    for run, approval in state.approvals.items():
        is_open, key = state.is_open(run), keys.pop(run, None)
        if not is_open and key is not None:
            yield f"the key of run {run} is still there although the run is closed"
        elif is_open and (type(key) is not bytes or hashlib.sha256(key).hexdigest() != approval.key_sha256):
            yield f"the key of run {run} is not the one that it was approved with"
    if keys:
        yield "it holds keys of runs that it does not know"


def _chain_fault(db: sqlite3.Connection, key: bytes) -> str | None:
    """The first entry that is missing or does not continue the chain, as a sentence; None if all do."""
    try:
        addresses: set[tuple[str, int, int]] = set()
        is_open: set[str] = set()
        for entry, _ in walk(db, key, NOTHING):
            if entry.kind == "release":
                address = (entry.run, entry.phase, entry.round)
                if address in addresses:
                    return f"round {entry.phase}.{entry.round} of run {entry.run} is there twice"
                if entry.run not in is_open:
                    return f"round {entry.phase}.{entry.round} of run {entry.run} was released while it was not open"
                addresses.add(address)
            elif entry.kind == "approval":
                is_open.add(entry.run)
            elif entry.kind == "closing":
                is_open.discard(entry.run)
    except BrokenChainError as broken:
        return str(broken)
    return None
