"""Commits of releases, as every ledger makes them."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from fedcore.ledger.memory import MemoryLedger
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.silo.columns import members


class Commit(NamedTuple):
    """A release that a ledger has committed."""

    run: str
    silo: str
    phase: int
    round: int


def noted(monkeypatch: pytest.MonkeyPatch) -> list[Commit]:
    """A list that grows with each commit from now on."""
    seen: list[Commit] = []
    for kind in (MemoryLedger, SqliteLedger):
        commit = kind.commit

        def counted(self, run, row, lease=0, commit=commit):
            commit(self, run, row, lease)
            seen.append(Commit(run, getattr(self, "silo", None) or self._silo, row.phase, row.round))

        monkeypatch.setattr(kind, "commit", counted)
    of_all = members.commit_round

    def counted_round(ledgers, run, rows, *rest):
        of_all(ledgers, run, rows, *rest)
        seen.extend(Commit(run, ledger._silo, rows.phase, rows.round) for ledger in ledgers)

    monkeypatch.setattr(members, "commit_round", counted_round)
    return seen
