"""Attacks on a ledger's SQLite file by an adversary without its key and anchor: SQL statements and copies."""

from __future__ import annotations

import os
import shutil
import sqlite3
import struct
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

COLUMNS = "kind, run, phase, round, query_digest, body, payload_digest, payload, mac"
DELETES_RELEASES = (
    "CREATE TRIGGER gone AFTER INSERT ON entries WHEN NEW.kind = 'release' "
    "BEGIN DELETE FROM entries WHERE sequence = NEW.sequence; END"
)


def change(path: Path, *statements: str) -> None:
    """Runs statements on a closed ledger, and leaves one file without a write-ahead file."""
    with closing(sqlite3.connect(path)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def shadow_index(path: Path) -> None:
    """Empties the index of addresses: its text stays, and its root becomes that of an empty tree."""
    change(
        path,
        "CREATE UNIQUE INDEX empty ON entries (run, phase, round) WHERE kind = 'never'",
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET rootpage = (SELECT rootpage FROM sqlite_master WHERE name = 'empty') "
        "WHERE name = 'addresses'",
        "DELETE FROM sqlite_master WHERE name = 'empty'",
    )


def not_null(path: Path, statement: str) -> None:
    """A statement for which columns may be NULL: the table's text is changed before it and put back after it."""
    with closing(sqlite3.connect(path)) as db:
        (text,) = db.execute("SELECT sql FROM sqlite_master WHERE name = 'entries'").fetchone()
    loose = text.replace(" NOT NULL", "")
    for wanted, then in ((loose, statement), (text, "SELECT 1")):
        with closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA writable_schema = ON")
            db.execute("UPDATE sqlite_master SET sql = ? WHERE name = 'entries'", (wanted,))
            db.commit()
        change(path, then)


def copy(path: Path, to: Path) -> Path:
    """A copy of a ledger, also of an open one, with all committed rows, as one file."""
    for extra in ("", "-wal"):
        if (source := path.with_name(path.name + extra)).exists():
            shutil.copy(source, to.with_name(to.name + extra))
    change(to)
    return to


def put(path: Path, instead: Path) -> None:
    """Replaces a ledger's file by `instead`; a process that has the old one open keeps a file without a name."""
    for extra in ("-wal", "-shm", "-journal"):
        path.with_name(path.name + extra).unlink(missing_ok=True)
    os.replace(instead, path)
    for extra in ("-wal", "-shm"):
        instead.with_name(instead.name + extra).unlink(missing_ok=True)


def super_journal(path: Path, victim: Path) -> None:
    """A hot rollback journal of no pages that names `victim` as its super-journal, which SQLite deletes after it."""
    data = path.read_bytes()
    page = int.from_bytes(data[16:18], "big")
    magic, name = bytes.fromhex("d9d505f920a163d7"), str(victim).encode()
    header = magic + struct.pack(">IIIII", 0, 0x1234, len(data) // page, 512, page)
    end = struct.pack(">I", 0x40000000 // page + 1) + name + struct.pack(">II", len(name), sum(name)) + magic
    path.with_name(path.name + "-journal").write_bytes(header.ljust(512, b"\0") + end)


def rollback_mode(path: Path) -> None:
    """The header of a file that has a rollback journal and no write-ahead file."""
    data = bytearray(path.read_bytes())
    if len(data) >= 100:
        data[18:20] = b"\1\1"
    path.write_bytes(data)


def utf16(path: Path, *statements: str, odd: Sequence[int] = ()) -> None:
    """The same ledger with its texts in UTF-16, then changed by `statements`.

    The kinds of the releases `odd` (by number) get half a character more: SQL finds them different from 'release', and
    Python reads 'release'.
    """
    new, kind = path.with_name("utf16"), "release".encode("utf-16le") + b"\0"
    new.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as db:
        schema = [sql for (sql,) in db.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid")]
        entries = db.execute("SELECT * FROM entries NOT INDEXED ORDER BY sequence").fetchall()
        keys = db.execute("SELECT * FROM keys NOT INDEXED").fetchall()
        (version,) = db.execute("PRAGMA user_version").fetchone()
    with closing(sqlite3.connect(new)) as db:
        for statement in ("PRAGMA encoding = 'UTF-16le'", f"PRAGMA user_version = {version}", *schema):
            db.execute(statement)
        for sequence, *rest in entries:
            row = sequence, kind if sequence in odd else rest[0], *rest[1:]
            db.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        db.executemany("INSERT INTO keys VALUES (?, ?)", keys)
        for statement in statements:
            db.execute(statement)
        db.commit()
    if odd:
        # In the header of such a row, and in those of indexes, a blob of 15 bytes (42) becomes a text of 15 (43).
        data = bytearray(new.read_bytes())
        at = data.find(kind)
        while at >= 0:
            data[data.rindex(42, at - 40, at)] = 43
            at = data.find(kind, at + 1)
        new.write_bytes(data)
        change(new, "REINDEX")
    put(path, new)


TOP = "(SELECT MAX(sequence) FROM entries)"
STATEMENTS = {
    "delete": "DELETE FROM entries WHERE sequence = {a}",
    "delete from": "DELETE FROM entries WHERE sequence >= {a}",
    "delete releases": "DELETE FROM entries WHERE kind = 'release' AND sequence NOT IN ({a}, {top})",
    "update": "UPDATE entries SET {column} = (SELECT {column} FROM entries WHERE sequence = {b}) WHERE sequence = {a}",
    "move": "UPDATE entries SET run = 'elsewhere' WHERE kind = 'release' AND sequence != {a}",
    "bytes": "UPDATE entries SET payload = zeroblob(32) WHERE kind = 'release' AND sequence != {a}",
    "approvals hidden": "UPDATE entries SET kind = 'release', phase = 1000 + sequence WHERE kind = 'approval'",
    "closings hidden": "UPDATE entries SET kind = 'release', phase = 1000 + sequence WHERE kind = 'closing'",
    "releases out of the way": "UPDATE entries SET phase = 1000 + sequence WHERE kind = 'release'",
    "reorder": "UPDATE entries SET sequence = {top} + {a} + 1 WHERE sequence = {a}",
    "insert": "INSERT INTO entries SELECT {top} + 1, kind, run, phase, round + 50, query_digest, body, payload_digest, "
    "payload, mac FROM entries WHERE sequence = {a}",
    "key": "UPDATE keys SET key = zeroblob(32)",
    "key of another run": "UPDATE keys SET key = (SELECT key FROM keys ORDER BY run LIMIT 1)",
    "keys deleted": "DELETE FROM keys",
    "trigger": DELETES_RELEASES,
    "index dropped": "DROP INDEX addresses",
    "other index dropped": "DROP INDEX others",
    "index added": "CREATE INDEX more ON entries (round)",
    "view": "CREATE VIEW more AS SELECT * FROM entries",
}
TAMPERINGS = sorted(
    [*STATEMENTS, "swap two rows", "shadow index", "truncate", "flip", "remove", "utf16", "journal", "rollback mode"]
)


def rows_of(path: Path) -> Any:
    """The content of a ledger's file, as values; None if it cannot be read."""
    if not path.exists():
        return None
    try:
        with closing(sqlite3.connect(path)) as db:
            if db.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
                return None
            schema = db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name").fetchall()
            version = db.execute("PRAGMA user_version").fetchone()
            entries = db.execute("SELECT * FROM entries NOT INDEXED ORDER BY sequence").fetchall()
            return schema, version, entries, sorted(db.execute("SELECT * FROM keys NOT INDEXED"))
    except (sqlite3.Error, ValueError):
        return None


def tamper(path: Path, name: str, a: int, b: int, column: str) -> None:
    """One of `TAMPERINGS`; a statement that SQLite refuses, or refuses in words that are no UTF-8, changes nothing.

    A journal that was planted before is taken away: here, too, SQLite would play it back.
    """
    path.with_name(path.name + "-journal").unlink(missing_ok=True)
    with suppress(sqlite3.Error, UnicodeDecodeError):
        if name in STATEMENTS:
            change(path, STATEMENTS[name].format(a=a, b=b, column=column, top=TOP))
        elif name == "swap two rows":
            change(
                path,
                f"UPDATE entries SET sequence = -{a} WHERE sequence = {a}",
                f"UPDATE entries SET sequence = {a} WHERE sequence = {b}",
                f"UPDATE entries SET sequence = {b} WHERE sequence = -{a}",
            )
        elif name == "shadow index":
            shadow_index(path)
        elif name == "utf16":
            utf16(path, odd=[a] if a > b else [])
        elif name == "journal":
            super_journal(path, path.with_suffix(".key" if a > b else ".anchor"))
        elif name == "rollback mode":
            rollback_mode(path)
        elif name == "truncate":
            os.truncate(path, path.stat().st_size * a // 12)
        elif name == "remove":
            path.unlink()
        else:
            data = bytearray(path.read_bytes())
            if data:
                data[len(data) * (12 * (a - 1) + b - 1) // 144] ^= 1 << (a + b) % 8
            path.write_bytes(data)
