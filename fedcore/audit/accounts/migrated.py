"""Test that a migrated ledger still has all charges; part of the instrument `accounts`."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np

from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.filters import Charge
from fedcore.audit.accounts.cost import squared
from fedcore.audit.accounts.known_account import SLACK, KnownAccount
from fedcore.ledger.migration import migrate
from fedcore.ledger.sqlite import SqliteLedger


def migrated(known: KnownAccount, _: np.random.Generator, folder: Path) -> None:
    """Checks that a ledger of version 2 has all charges after migration.

    That version had charges and no chain. Its runs must be closed and paid in full.
    """
    audited = known.audited
    path, anchor = folder / "ledger.sqlite", folder / "ledger.anchor"
    folder.mkdir()
    events = [GaussianRelease(0, 5, 0.5, 2.0), GaussianRelease(0, 5, 0.5, 1.0)]
    planned = {"whole": 3.0 * squared(events), "spent": squared(events)}
    with closing(sqlite3.connect(path)) as db:
        db.executescript(
            "PRAGMA user_version = 2; CREATE TABLE runs (run, plan, key, mu_squared, epsilon, delta);"
            "CREATE TABLE releases (id INTEGER PRIMARY KEY, run, phase, round, query_digest, start, stop, sensitivity,"
            " sigma, payload_digest, payload);"
        )
        for run, mu_squared in planned.items():
            values = (run, "0" * 64, hashlib.sha256(run.encode()).digest(), mu_squared, 3.0, audited.delta)
            db.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?)", values)
            for round, event in enumerate(events, 1):
                payload = np.full(2, float(round)).tobytes()
                head = (run, 1, round, bytes(32), event.start, event.stop, event.sensitivity, event.sigma)
                row = (*head, hashlib.sha256(payload).digest(), payload)
                db.execute(f"INSERT INTO releases VALUES (NULL{', ?' * len(row)})", row)
        db.commit()
    migrate(audited.silo, path, anchor)
    with closing(SqliteLedger(audited.silo, path, anchor)) as ledger:
        charges = ledger.charges()
        for run, mu_squared in planned.items():
            charge = charges.get(run, Charge(0.0, 0.0, 1.0))
            enough = charge.mu_squared * SLACK >= mu_squared and charge.epsilon * SLACK >= 3.0
            known.holds(f"a migrated ledger charges {charge}", enough and charge.delta <= audited.delta)
            known.holds(f"a migrated run {run} is open", ledger.is_run(run) and ledger.is_closed(run))
