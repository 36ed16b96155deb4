"""Search for a run in silos' durable ledgers, by reading their files without a lock."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from fedcore.home import LedgerFolders


class KnownRun:
    """Tests if a ledger of one of these silos may have an entry of the run.

    True also for a ledger that cannot be read, for an anchor whose ledger is gone, and for unknown `folders` (None).
    """

    def __init__(self, folders: LedgerFolders | None, silos: Iterable[str], run: str) -> None:
        self._folders, self._silos, self._run = folders, tuple(silos), run

    def at(self, versions: Mapping[str, str]) -> bool:
        """Tests one version of each silo's data."""
        if (folders := self._folders) is None:
            return True
        return any(self._may_be_in(*folders.of(versions[silo], silo)) for silo in self._silos)

    def elsewhere(self, versions: Mapping[str, str]) -> bool:
        """Tests all other versions of each silo's data."""
        if (folders := self._folders) is None:
            return True
        found = ((version, silo) for silo in self._silos for version, _ in folders.found(silo))
        return any(
            self._may_be_in(*folders.of(version, silo)) for version, silo in found if versions.get(silo) != version
        )

    def anywhere(self) -> bool:
        return self.elsewhere({})

    def _may_be_in(self, ledger: Path, anchor: Path) -> bool:
        try:
            if not any(path.exists() for path in (ledger, anchor, anchor.with_suffix(".key"))):
                return False
        except OSError:
            return True
        # A reader of a file in write-ahead form makes a log, and leaves it behind. Without a log, the file is complete.
        is_whole = not Path(f"{ledger}-wal").exists()
        address = f"file:{quote(str(ledger))}?mode=ro{'&immutable=1' if is_whole else ''}"
        try:
            with closing(sqlite3.connect(address, uri=True, timeout=1.0)) as db:
                return db.execute("SELECT 1 FROM entries WHERE run = ? LIMIT 1", (self._run,)).fetchone() is not None
        except sqlite3.Error:
            return True
