"""A kill, or an error of the anchor's disk, between the COMMIT of an entry that changes charges and its anchor.

The next call brings the anchor up to the ledger, with that entry in its sums. Otherwise an honest crash would look like
a tampered file, and an adversary who rolls the file back would remove a charge.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fedcore.accounting.filters import Charge
from fedcore.errors import SiloError
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.ledger.storage.verify import faults
from tests.faults.one_silo import KINDS
from tests.faults.tampering import copy, put
from tests.faults.test_ledger_attacks import Silo
from tests.faults.test_ledger_kills import killed_at, row
from tests.selection import some_in_make_test

pytestmark = pytest.mark.usefixtures("impatient")

CHARGE = Charge(0.25, 1.0, 1e-6)


def approve(ledger: SqliteLedger, run: str) -> None:
    ledger.open_run(run, "plan", run.encode() * 4, CHARGE, None)


def approve_run(ledger: SqliteLedger) -> None:
    approve(ledger, "run")


def answer(ledger: SqliteLedger, run: str, round: int) -> None:
    """Answers as a silo does: repeats a committed row, and commits a new one unless the run is closed."""
    approve(ledger, run)
    if ledger.find(run, 1, round) is None and not ledger.is_closed(run):
        ledger.commit(run, row(round))


DONE: dict[str, Callable[[SqliteLedger], object]] = {
    "approval": lambda ledger: answer(ledger, "second", 1),
    "closing": lambda ledger: ledger.close_run("first", 0.01),
    "policy": lambda ledger: ledger.record_policy("d" * 64, "{}"),
}
THEN: dict[str, Callable[[SqliteLedger], object]] = {
    "an answer again": lambda ledger: answer(ledger, "first", 1),
    "a new answer": lambda ledger: (answer(ledger, "first", 2), answer(ledger, "second", 1)),
    "a closing": lambda ledger: ledger.close_run("first", 0.01),
    "another policy": lambda ledger: ledger.record_policy("e" * 64, "{}"),
}


def use(paths: tuple[Path, Path], act: Callable[[SqliteLedger], object]) -> None:
    ledger = SqliteLedger("ash", *paths)
    try:
        act(ledger)
    finally:
        ledger.close()


STRIDE = 3
"""Between the steps at which `make test` kills; `make slow` kills at all of them."""
PAIRS = [(done, then, STRIDE) for done, then in zip(DONE, THEN, strict=False)]


@pytest.mark.parametrize(
    ("done", "then", "stride"), some_in_make_test([*PAIRS, *itertools.product(DONE, THEN, [1])], PAIRS)
)
def test_a_kill_is_no_false_alarm_whatever_comes_next(tmp_path, done, then, stride):
    step, killed = 1, True
    while killed:
        folder = tmp_path / str(step)
        paths = folder / "ledgers" / "ash.sqlite", folder / "anchors" / "ash.anchor"
        use(paths, lambda ledger: answer(ledger, "first", 1))
        killed = killed_at(step, lambda p=paths: use(p, DONE[done]))
        assert faults("ash", *paths) == [], step
        use(paths, THEN[then])
        assert faults("ash", *paths) == [], f"after a kill at step {step}, and then {then}"
        use(paths, lambda ledger: answer(ledger, "first", 1))
        step += stride
    assert step > 10


@pytest.mark.parametrize("stride", some_in_make_test([STRIDE, 1], [STRIDE]))
def test_what_was_answered_after_a_kill_is_charged_when_the_file_is_rolled_back(tmp_path, stride):
    """A rollback to a copy without any run, then a reconciliation: the anchor has the charge, wherever the kill was."""
    step, killed = 1, True
    while killed:
        folder = tmp_path / str(step)
        paths = folder / "ledgers" / "ash.sqlite", folder / "anchors" / "ash.anchor"
        use(paths, lambda ledger: None)
        empty = copy(paths[0], folder / "empty")
        killed = killed_at(step, lambda p=paths: use(p, approve_run))
        use(paths, lambda ledger: [answer(ledger, "run", round) for round in (1, 2, 3)])
        put(paths[0], empty)
        assert "its anchor saw" in faults("ash", *paths)[0]
        ledger = SqliteLedger("ash", *paths, fitting=False)
        _, lost = ledger.reconcile()
        ledger.close()
        assert lost == CHARGE, f"after a kill at step {step} three answers cost {lost}"
        step += stride
    assert step > 10


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_an_anchor_that_could_not_be_written_once_knows_all_later(tmp_path, monkeypatch, kind, restarted, written):
    """The disk fails before the marks of an approval and of a closing are written, or reports an error afterwards."""
    (tmp_path / "plan").mkdir()
    silo, real = Silo(tmp_path / "version", kind), os.pwrite
    silo.open("before")
    silo.ask(1)

    def failing(*arguments):
        if written:
            real(*arguments)
        raise OSError(5, "planted")

    def approve() -> None:
        silo.one.site.approve(replace(silo.one.agreement, run="next").to_bytes())

    for act in (approve, lambda: silo.one.site.close_run("before")):
        with monkeypatch.context() as disk:
            disk.setattr(os, "pwrite", failing)
            with pytest.raises(SiloError, match="its anchor could not be written; nothing was sent"):
                act()
        if restarted:
            silo.close()
            silo.open("before")
            assert silo.refusals == []
        silo.one.run = "before"
        silo.ask(1)
        approve()
        silo.one.run = "next"
        silo.ask(1, 2)
    charged = silo.one.ledger.charges()
    silo.close()
    assert silo.refusals == [] and silo.most() == 1 and len(silo.answers) == 3
    assert sum(charge.mu_squared for charge in charged.values()) >= silo.spent() * (1 - 1e-9)
    assert silo.faults() == []
    silo.open("next")
    silo.ask(1, 2)
    silo.close()
    assert silo.refusals == [] and silo.most() == 1
