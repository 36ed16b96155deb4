"""Migration of a ledger of an older version to this one: charges are carried over, and no run goes on.

Every run of the older ledger is closed at its full charge, since the older file does not record closings. None of its
rounds is answered again. The older file stays beside the new one.

Version 2 had charges and no chain. Version 1 had no charges; its runs are charged for their releases, at a delta that
the operator gives. Neither has a MAC. Migration verifies that the file is whole, and that each release has the bytes of
its digest and fits the charge of its run.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedcore.accounting.composition import worst_mu_squared
from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.filters import Charge
from fedcore.accounting.gaussian import epsilon_of
from fedcore.directed_rounding import in_full
from fedcore.errors import InputError, SiloError
from fedcore.ledger.anchor import sync_folder, write_new
from fedcore.ledger.file_lock import hold
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.ledger.storage.database import VERSION, is_elsewhere

_ROUNDING = 1 + 1e-9
_TABLES = {
    1: {
        "runs": ["run", "plan", "key"],
        "releases": [
            "id",
            "run",
            "phase",
            "round",
            "query_digest",
            "start",
            "stop",
            "sensitivity",
            "sigma",
            "payload_digest",
            "payload",
        ],
    }
}
_TABLES[2] = {**_TABLES[1], "runs": [*_TABLES[1]["runs"], "mu_squared", "epsilon", "delta"]}


@dataclass(frozen=True)
class OlderRun:
    """A run of an older ledger, with its charge from now on and its number of releases."""

    run: str
    plan: str
    charge: Charge
    releases: int


def version_of(path: Path) -> int:
    """The version of a ledger's tables. Raises InputError if the file is no ledger."""
    with _read(path) as db:
        return int(db.execute("PRAGMA user_version").fetchone()[0])


def older_runs(path: Path, delta: float | None = None) -> list[OlderRun]:
    """Every run of the ledger of version 1 or 2 in `path`, in order, verified as far as possible.

    `delta`: for the charges of version 1; None for version 2, which has its own. Raises InputError for another version,
    a damaged or changed file, and a missing or superfluous delta.
    """
    with _read(path) as db:
        version = int(db.execute("PRAGMA user_version").fetchone()[0])
        # Version 1 did not record its version.
        version = 1 if version == 0 else version
        if version not in _TABLES:
            raise InputError(f"ledger {path} has version {version}: 1 and 2 can be migrated, {VERSION} is this one")
        if (delta is None) == (version == 1):
            wanted = "needs a delta to state its charges at" if version == 1 else "has charges at deltas of their own"
            raise InputError(f"ledger {path} of version {version} {wanted}")
        if delta is not None and not 0 < delta < 1:
            raise InputError(f"delta = {in_full(delta)} must lie strictly between 0 and 1")
        for table, columns in _TABLES[version].items():
            if [row[1] for row in db.execute(f"PRAGMA table_info({table})")] != columns:
                raise InputError(f"ledger {path} is no ledger of version {version}: its table {table} is another one")
        if [row[0] for row in db.execute("PRAGMA integrity_check")] != ["ok"]:
            raise InputError(f"ledger {path} is damaged; restore a copy of it")
        found = [_run(path, db, row, delta) for row in db.execute("SELECT * FROM runs ORDER BY rowid").fetchall()]
        (stray,) = db.execute("SELECT COUNT(*) FROM releases WHERE run NOT IN (SELECT run FROM runs)").fetchone()
        if stray:
            raise InputError(f"ledger {path} has {stray} releases of runs that it does not know")
        return found


def migrate(silo: str, path: Path, anchor: Path, delta: float | None = None) -> list[OlderRun]:
    """Replaces the older ledger in `path` by one of this version with the same charges; returns its runs.

    The older file stays as `<name>.version-N`. Raises InputError as `older_runs`, and where there is an anchor or a
    key. No older version made these, so the file in `path` is not the account of the ledger that had them. Raises
    SiloError if another process holds the ledger or a file cannot be written. The older ledger is then in its place,
    and migration may be tried again.
    """
    release = hold(silo, path, anchor)
    try:
        runs = older_runs(path, delta)
        made = _workshop(path, anchor)
        if not _is_begun(silo, path, anchor, made):
            shutil.rmtree(made[0].parent.parent, ignore_errors=True)
            ledger = SqliteLedger(silo, *made)
            try:
                for each in runs:
                    key = hashlib.sha256(each.run.encode()).digest()  # of a run that gets no new answer
                    ledger.open_run(each.run, each.plan, key, each.charge, None)
                    ledger.close_run(each.run, each.charge.mu_squared)
            finally:
                ledger.close()
        older = path.with_name(f"{path.name}.version-{max(1, version_of(path))}")
        if not older.exists():
            os.link(path, older)
        # The anchor and the key first: until the new ledger is in place, the older one is there and is refused.
        for suffix in (".anchor", ".key"):
            _put(made[1].with_suffix(suffix).read_bytes(), anchor.with_suffix(suffix))
        for extra in ("-wal", "-shm"):
            path.with_name(path.name + extra).unlink(missing_ok=True)
        os.replace(made[0], path)
        sync_folder(path)
        shutil.rmtree(made[0].parent.parent, ignore_errors=True)
        return runs
    except OSError as error:
        raise SiloError(silo, "ledger", f"its ledger {path} cannot be migrated: {error.strerror}") from None
    finally:
        os.close(release)


def _workshop(path: Path, anchor: Path) -> tuple[Path, Path]:
    """Paths of ledger and anchor while they are made; the folder's name is the data version of the first entry."""
    folder = path.parent / ".migration" / path.parent.name
    return folder / path.name, folder / anchor.name


def _is_begun(silo: str, path: Path, anchor: Path, made: tuple[Path, Path]) -> bool:
    """True if a migration was cut off after its anchor or key was in place.

    Raises InputError where an anchor or key is in place that does not belong to the ledger that was being made.
    """
    taken = [place for suffix in (".anchor", ".key") if os.path.lexists(place := anchor.with_suffix(suffix))]
    if not taken:
        return False
    if all(
        (mine := made[1].with_suffix(place.suffix)).is_file()
        and place.is_file()
        and mine.read_bytes() == place.read_bytes()
        for place in taken
    ):
        with suppress(SiloError):
            SqliteLedger(silo, *made).close()
            return True
    raise InputError(
        f"silo {silo}: there is {taken[0]}, which no older version made: its ledger is of this version, and "
        f"another file was put in the place of {path}; restore a copy of the ledger, nothing is migrated"
    )


def _put(data: bytes, place: Path) -> None:
    """Writes a new file, whole or not at all. Raises OSError if another one is there."""
    coming = place.with_name(place.name + ".migration")
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_new(coming, data)
    if not (place.exists() and place.read_bytes() == data):
        os.link(coming, place)  # unlike a rename, a link does not replace an existing file
    coming.unlink()
    sync_folder(place)


def _run(path: Path, db: sqlite3.Connection, row: tuple[Any, ...], delta: float | None) -> OlderRun:
    run, plan = row[:2]
    events = []
    query = "SELECT phase, round, start, stop, sensitivity, sigma, payload_digest, payload FROM releases WHERE run = ?"
    for phase, round, start, stop, sensitivity, sigma, digested, payload in db.execute(query, (run,)):
        if hashlib.sha256(payload).digest() != digested:
            raise InputError(f"ledger {path}: the bytes of round {phase}.{round} of run {run} are not those committed")
        events.append(GaussianRelease(start, stop, sensitivity, sigma))
    spent = worst_mu_squared(events)
    if delta is not None:
        charge = Charge(spent, epsilon_of(math.sqrt(spent), delta) if spent < math.inf else math.inf, delta)
    else:
        mu_squared, epsilon, at = map(float, row[3:6])
        charge = Charge(mu_squared, epsilon, at)
    if not spent <= charge.mu_squared * _ROUNDING:
        raise InputError(f"ledger {path}: run {run} released more than it was charged for")
    return OlderRun(run, plan, charge, len(events))


@contextmanager
def _read(path: Path) -> Iterator[sqlite3.Connection]:
    """The database, with its write-ahead file, for reading only. Raises InputError if it cannot be read."""
    if not path.is_file() or is_elsewhere(path):
        raise InputError(f"ledger {path} is not there, or it or a file beside it is a link, or a journal")
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("PRAGMA trusted_schema = OFF")
            db.execute("PRAGMA query_only = ON")
            yield db
    except sqlite3.Error as error:
        raise InputError(f"ledger {path} cannot be read: {error}") from None
