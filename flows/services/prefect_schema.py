"""Writes `prefect_schema.sql`: an empty Prefect database as Prefect's own migrations make it.

    python -m flows.services.prefect_schema MIGRATED.db > flows/prefect_schema.sql

after a server of the new Prefect version has made MIGRATED.db from zero. Needed only after a change of the
pinned version, and only for speed: an older schema is brought up to date by Prefect when the server starts.
"""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from importlib.metadata import version
from pathlib import Path


def schema(path: Path) -> str:
    """SQL that makes the tables and indexes of a Prefect database, with its revision and none of its rows."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        (revision,) = database.execute("SELECT version_num FROM alembic_version").fetchone()
        statements = [
            sql
            for (sql,) in database.execute(
                "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' "
                "ORDER BY type = 'index', rowid"
            )
        ]
    head = f"-- prefect {version('prefect')}, revision {revision} ; written by flows/services/prefect_schema.py"
    stamp = f"INSERT INTO alembic_version VALUES ('{revision}')"
    return "\n".join([head, "BEGIN;", *(f"{sql};" for sql in [*statements, stamp]), "COMMIT;", ""])


if __name__ == "__main__":
    sys.stdout.write(schema(Path(sys.argv[1])))
