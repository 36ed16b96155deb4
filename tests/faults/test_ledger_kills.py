"""A process killed between any two operations on a ledger: the next one begins, or goes on, with all charges."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.filters import Charge
from fedcore.errors import SiloError
from fedcore.ledger import chained_file
from fedcore.ledger.anchor import Anchor
from fedcore.ledger.ledger import Row, payload_digest
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.ledger.storage.verify import faults
from tests.faults.tampering import copy, put

FIRST, SECOND = Charge(0.25, 1.0, 1e-6), Charge(1.5, 3.0, 1e-6)


class Countdown:
    """Kills this process at the n-th operation: before it, or, of a write, in its middle."""

    def __init__(self, left: int) -> None:
        self._left = left

    def plant(self) -> None:
        for name in ("open", "fsync", "replace", "unlink"):
            setattr(os, name, self._before(getattr(os, name)))
        for name in ("write", "pwrite"):
            setattr(os, name, self._within(getattr(os, name)))
        connect = chained_file.connect

        def traced(silo: str, path: Path) -> sqlite3.Connection:
            self._step()
            db = connect(silo, path)
            db.set_trace_callback(lambda _: self._step())
            return db

        chained_file.connect = traced

    def _step(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def _before(self, real: Callable) -> Callable:
        def wrapped(*arguments, **options):
            self._step()
            return real(*arguments, **options)

        return wrapped

    def _within(self, real: Callable) -> Callable:
        def wrapped(file, data, *place):
            self._step()
            if self._left == 1:
                real(file, data[: len(data) // 2], *place)
            self._step()
            return real(file, data, *place)

        return wrapped


def killed_at(step: int, act: Callable[[], object]) -> bool:
    """True if a child process that did `act` was killed at this step; False if it had fewer steps."""
    child = os.fork()
    if child == 0:
        try:
            Countdown(step).plant()
            act()
            os._exit(0)
        except BaseException:
            os._exit(3)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def row(round: int) -> Row:
    payload, digested = payload_digest(np.array([float(round), -1.0]))
    return Row(1, round, (b"query %d" % round).ljust(32), GaussianRelease(0, 9, 0.25, 0.3), digested, payload)


def begun(paths: tuple[Path, Path]) -> None:
    SqliteLedger("ash", *paths).close()


def test_a_ledger_that_was_half_made_is_completed(tmp_path):
    left, step = set(), 1
    while True:
        folder = tmp_path / str(step)
        paths = folder / "ledgers" / "ash.sqlite", folder / "anchors" / "ash.anchor"
        killed = killed_at(step, lambda p=paths: begun(p))
        found = {path.name for path in paths[1].parent.glob("*")} if paths[1].parent.exists() else set()
        left.add(frozenset(found - {"ash.lock"}))
        begun(paths)
        assert {path.name for path in paths[1].parent.iterdir()} == {"ash.lock", "ash.anchor", "ash.key"}, step
        assert len((folder / "anchors" / "ash.key").read_bytes()) == 32 and faults("ash", *paths) == [], step
        ledger = SqliteLedger("ash", *paths)
        ledger.open_run("run", "plan", b"k" * 32, FIRST, None)
        ledger.close()
        assert faults("ash", *paths) == [], step
        if not killed:
            break
        step += 1
    # A key has its name only where there is an anchor, and each state between nothing and all was seen.
    assert left == {
        frozenset(),
        frozenset({"ash.key.new"}),
        frozenset({"ash.key.new", "ash.anchor.new"}),
        frozenset({"ash.key.new", "ash.anchor"}),
        frozenset({"ash.key", "ash.anchor"}),
    }
    assert step > 20


@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.minutes)])
@pytest.mark.parametrize("deleted", [False, True])
def test_a_ledger_that_was_half_reconciled_is_charged_all_that_its_anchor_knew(tmp_path, deleted, stride):
    """Its file is an older copy, or gone; the anchor is there at every moment. Killed at every `stride`-th step."""
    step, killed = 1, True
    while killed:
        folder = tmp_path / str(step)
        paths = folder / "version" / "ash.sqlite", folder / "anchors" / "ash.anchor"
        ledger = SqliteLedger("ash", *paths)
        ledger.open_run("run", "plan", b"k" * 32, FIRST, None)
        ledger.commit("run", row(1))
        copied = copy(paths[0], folder / "copy")
        for round in range(2, 4 + step % 2):  # the last mark is in either slot of the anchor
            ledger.commit("run", row(round))
        ledger.open_run("second", "plan", b"s" * 32, SECOND, None)
        ledger.close()
        if deleted:
            paths[0].unlink()
        else:
            put(paths[0], copied)

        killed = killed_at(step, lambda p=paths: SqliteLedger("ash", *p, fitting=False).reconcile())
        assert Anchor(paths[1]).mark is not None, step
        try:
            begun(paths)
        except SiloError as error:
            assert killed and error.code == "ledger-lost", step
            ledger = SqliteLedger("ash", *paths, fitting=False)
            ledger.reconcile()
            ledger.close()
        ledger = SqliteLedger("ash", *paths)
        charges = ledger.charges().values()
        assert sum(charge.mu_squared for charge in charges) == 1.75, step
        assert sum(charge.epsilon for charge in charges) == 4.0, step
        assert ledger.is_closed("run") and ledger.is_closed("second")
        ledger.close()
        assert faults("ash", *paths) == [], step
        step += stride
    assert step > 15
