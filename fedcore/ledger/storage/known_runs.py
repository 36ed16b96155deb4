"""Whether a silo's durable ledger may know a run: asked of its file, before anybody holds it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from fedcore.home import LedgerFolders


def may_be_known(folders: LedgerFolders, silos: Iterable[str], run: str) -> bool:
    """Whether one of these silos' ledgers, of any version of its data, has an entry of the run, or cannot be read.

    An anchor whose ledger is gone may have known it, too.
    """
    return any(
        _may_know(folders.of(version, name)[0], run) for silo in silos for version, name in folders.found(silo)
    )


def _may_know(ledger: Path, run: str) -> bool:
    # A reader makes a log, and leaves it there: without one, the file is all there is.
    is_whole = not Path(f"{ledger}-wal").exists()
    address = f"file:{quote(str(ledger))}?mode=ro{'&immutable=1' if is_whole else ''}"
    try:
        with closing(sqlite3.connect(address, uri=True, timeout=1.0)) as db:
            return db.execute("SELECT 1 FROM entries WHERE run = ? LIMIT 1", (run,)).fetchone() is not None
    except sqlite3.Error:
        return True
