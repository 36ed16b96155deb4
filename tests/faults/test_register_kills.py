"""A process killed between any two operations on register and ledger: the charge covers everything that was sent."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.filters import Cap, Charge
from fedcore.data.silo_file import SiloSource
from fedcore.errors import SiloError
from fedcore.home import LedgerFolders
from fedcore.ledger.ledger import Row, payload_digest
from fedcore.ledger.operator.accounts import total
from fedcore.ledger.operator.register import Register
from fedcore.ledger.operator.register_check import faults
from fedcore.ledger.operator.registered import RegisteredLedger
from fedcore.silo.registration import register_silos
from tests.faults.test_ledger_kills import killed_at

CHARGE, CAP = Charge(0.25, 1.0, 1e-6), Cap(3.0, 1e-5)
EVENT = GaussianRelease(0, 4, 0.2, 1.0)


def now() -> datetime:
    return datetime.now(UTC)


def silo(folder: Path) -> tuple[SiloSource, LedgerFolders]:
    folder.mkdir(exist_ok=True)
    pa.csv.write_csv(pa.table({"x": [1.0, 2.0, 3.0, 4.0], "y": [0, 1, 0, 1]}), folder / "ash.csv")
    source = SiloSource("ash", str(folder / "ash.csv"), "csv", ("x",), "y", (0, 1), False, 1.0, 1.0, "v" * 32)
    return source, LedgerFolders.below(folder)


def played(folder: Path) -> None:
    """An approval, a release with a record beside the ledger before it is sent, and a closing."""
    ledger = RegisteredLedger(Register.current("ash"), "ash", "v" * 32, now)
    ledger.open_run("run", "plan", b"k" * 32, CHARGE, CAP)
    payload, digested = payload_digest(np.array([1.0]))
    ledger.commit("run", Row(1, 1, b"q" * 32, EVENT, digested, payload))
    with open(folder / "sent", "ab", buffering=0) as file:
        file.write(payload)
    ledger.close_run("run", 0.04)
    ledger.close()


STRIDES = [4, pytest.param(1, marks=pytest.mark.minutes)]
"""Between the steps at which a process is killed; `make slow` and `make faults` kill at all of them."""


@pytest.mark.faults
@pytest.mark.parametrize("stride", STRIDES)
def test_what_was_sent_is_charged_wherever_a_process_is_killed(tmp_path, monkeypatch, stride):
    step = 0
    while True:
        step += stride
        folder = tmp_path / str(step)
        monkeypatch.setenv("FEDCORE_REGISTER", str(folder / "register"))
        source, folders = silo(folder)
        register_silos([source], folders, True, lambda *_: False, now)
        if not killed_at(step, lambda f=folder: played(f)):
            break
        register = Register.current("ash")
        account = register.accounts.find("ash")
        charged = total(account.versions["v" * 32].charges)
        sent = (folder / "sent").exists()
        assert charged.mu_squared >= 0.04 * sent, step
        ledger = RegisteredLedger(register, "ash", "v" * 32, now)
        # A run without an answer is not charged.
        assert ledger.is_run("run") == ("run" in ledger.charges())
        assert not sent or ledger.charges()["run"].mu_squared >= 0.04
        try:
            assert ledger.open_run("run", "plan", b"k" * 32, CHARGE, CAP) == b"k" * 32
            assert len(ledger.charges()) == 1  # once
        except SiloError as error:
            assert error.code == "closed", step
        ledger.close()
        assert [found for *_, found in faults(Register.current("ash"), None, None)] == [[], []], step
    assert step > 40


@pytest.mark.faults
@pytest.mark.parametrize("stride", STRIDES)
def test_a_registration_that_was_killed_can_be_made_again(tmp_path, monkeypatch, stride):
    step = 0
    while True:
        step += stride
        folder = tmp_path / str(step)
        monkeypatch.setenv("FEDCORE_REGISTER", str(folder / "register"))
        source, folders = silo(folder)
        killed = killed_at(step, lambda s=source, f=folders: register_silos([s], f, True, lambda *_: False, now))
        if not killed:
            break
        register_silos([source], folders, True, lambda *_: False, now)
        ledger = RegisteredLedger(Register.current("ash"), "ash", "v" * 32, now)
        ledger.open_run("run", "plan", b"k" * 32, CHARGE, CAP)
        ledger.close()
    assert step > 20


def test_two_versions_of_a_silo_are_not_open_at_once(tmp_path, monkeypatch, impatient):
    """The cap is over both: two processes would each see what is left."""
    monkeypatch.setenv("FEDCORE_REGISTER", str(tmp_path / "register"))
    source, folders = silo(tmp_path)
    register_silos([source], folders, True, lambda *_: False, now)
    pa.csv.write_csv(pa.table({"x": [1.0, 2.0, 3.0, 5.0], "y": [0, 1, 0, 1]}), tmp_path / "more.csv")
    values = {**vars(source), "path": str(tmp_path / "more.csv"), "version": "w" * 32}
    register_silos([SiloSource(**values)], folders, False, lambda *_: False, now)
    first = RegisteredLedger(Register.current("ash"), "ash", "v" * 32, now)
    with pytest.raises(SiloError, match="held by another process"):
        RegisteredLedger(Register.current("ash"), "ash", "w" * 32, now)
    first.open_run("run", "plan", b"k" * 32, Charge(0.25, 1.0, 1e-6), None)
    first.close()
    second = RegisteredLedger(Register.current("ash"), "ash", "w" * 32, now)
    with pytest.raises(SiloError, match=r"cap of epsilon 1\.5"):
        second.open_run("other", "plan", b"k" * 32, CHARGE, Cap(1.5, 1e-5, "basic"))
    with pytest.raises(SiloError, match="for good"):
        second.open_run("other", "plan", b"k" * 32, CHARGE, None, "patient")
    assert second.runs == 1
    second.close()
