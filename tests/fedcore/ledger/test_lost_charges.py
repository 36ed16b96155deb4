"""Charges for approvals that a ledger has lost: never less than the anchor's sums, in any filter's measure."""

from __future__ import annotations

import math
import shutil
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from fedcore.accounting.composition import worst_mu_squared
from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.filters import Cap, Charge, Divergence
from fedcore.errors import SiloError
from fedcore.ledger.anchor import Anchor, Totals
from fedcore.ledger.ledger import payload_digest
from fedcore.ledger.operator.account_lock import key_digest
from fedcore.ledger.operator.accounts import head_of
from fedcore.ledger.operator.register import Draft, Register
from fedcore.ledger.operator.registered import RegisteredLedger
from fedcore.ledger.operator.repair import reconcile
from fedcore.ledger.reconciliation import lost_charge, of_order
from fedcore.ledger.rows import Row
from fedcore.ledger.sqlite import SqliteLedger

DELTA = 1e-5
RDP, GDP = Cap(8.0, DELTA, "rdp"), Cap(1e6, DELTA, "gdp")
VERSION = "1" * 32
SAMPLE = GaussianRelease(0, 1000, 1.0, 1.2, sampling="poisson", rate=0.01)
"""An answer about a sample: 1,000 of these have a mu^2 in the hundreds, and cost a fraction of that."""
SAMPLES = Charge.of([replace(SAMPLE, count=1000)], DELTA)
ORDERS = (1.5, 3.0, RDP.order, 40.0)


def now():
    return datetime.now(UTC)


class Account:
    """A silo's ledger, by itself or in a register, whose copies are stored and restored; its anchor stays."""

    def __init__(self, folder: Path, registered: bool) -> None:
        self.files = folder / VERSION / "a.sqlite", folder / "anchors" / "a.anchor"
        self.folder, self.registered, self._kept = folder, registered, folder / "kept"
        if registered:
            register = Register(folder / "register", "ash")
            register.make()
            with closing(SqliteLedger("ash", *self.files)) as ledger:
                body = {"ledger": str(self.files[0]), "anchor": str(self.files[1]), "records": 9, "digests": None}
                body |= {"key": key_digest(register, ledger.key), "disjoint": False, "head": head_of(ledger.end)}
            begun = Draft("silo", "ash", "", {"at": now().isoformat()})
            register.append([begun, Draft("version", "ash", VERSION, body)])

    @property
    def register(self) -> Register:
        return Register(self.folder / "register", "ash")

    def open(self, fitting: bool = True) -> SqliteLedger:
        if self.registered:
            return RegisteredLedger(self.register, "ash", VERSION, now)
        return SqliteLedger("ash", *self.files, fitting)

    def keep(self, *parts: str) -> None:
        shutil.rmtree(self._kept, ignore_errors=True)
        for part in parts:
            shutil.copytree(self.folder / part, self._kept / part)

    def restore(self, *parts: str) -> None:
        for part in parts:
            shutil.rmtree(self.folder / part)
            shutil.copytree(self._kept / part, self.folder / part)

    def repair(self) -> None:
        if self.registered:
            reconcile(self.register, "ash", now)
            return
        try:
            self.open().close()
        except SiloError:
            with closing(self.open(fitting=False)) as ledger:
                ledger.reconcile()


def approve(ledger, run, charge, cap) -> bool:
    try:
        ledger.open_run(run, "plan", b"k" * 32, charge, cap)
    except SiloError as error:
        assert error.code == "cap"
        return False
    return True


def answer(ledger, run, count, event) -> None:
    for round in range(count):
        payload, sha = payload_digest(np.zeros(1))
        ledger.commit(run, Row(1, round + 1, b"q" * 32, event, sha, payload))


BACK = {"plain": (False, (VERSION,)), "registered": (True, (VERSION,)), "both": (True, (VERSION, "register"))}
"""Cases of a restore: whether the silo is registered, and the restored files."""


@pytest.mark.parametrize(("registered", "parts"), BACK.values(), ids=BACK)
def test_a_run_of_full_batches_is_not_hidden_by_the_samples_of_another(tmp_path, registered, parts):
    """The samples' run closes after one answer: mu^2 falls by hundreds, in which the second run's was lost."""
    silo = Account(tmp_path, registered)
    full = Charge(1 / 0.8**2, 4.0, DELTA)
    with closing(silo.open()) as ledger:
        assert approve(ledger, "a", SAMPLES, RDP)
        answer(ledger, "a", 1, SAMPLE)
    silo.keep(*parts)
    with closing(silo.open()) as ledger:
        ledger.close_run("a", worst_mu_squared([SAMPLE]))
        assert approve(ledger, "b", full, RDP)
        rho = full.rho(RDP.order)
        assert 2 * rho > RDP.room(RDP.order) > rho + SAMPLES.rho(RDP.order), "b fits once, and not twice"
        assert not approve(ledger, "b again", full, RDP)
    silo.restore(*parts)
    with pytest.raises(SiloError):
        silo.open()
    silo.repair()
    with closing(silo.open()) as ledger:
        assert math.fsum(charge.rho(RDP.order) for charge in ledger.charges().values()) >= rho
        assert not approve(ledger, "c", full, RDP)
        assert registered or ledger.caps.claimed == RDP


@pytest.mark.parametrize("seed", range(32))
def test_whatever_is_lost_no_filter_counts_less_than_before(tmp_path, seed):
    """Runs of samples and of full batches, open and closed, with and without a cap; copies of any moment come back,
    once and again, and a repair may be killed between ledger and register."""
    rng = np.random.default_rng([41, seed])
    silo, capped, step, order = Account(tmp_path, bool(seed % 2)), rng.random() < 0.7, 0, None
    silo.open().close()
    for _ in range(3):
        parts = (VERSION, "register")[: 1 + (silo.registered and rng.random() < 0.5)]
        steps = int(rng.integers(1, 5))
        keep_at = step + int(rng.integers(0, steps))
        for number in range(step, step + steps):
            if number == keep_at:
                silo.keep(*parts)
            with closing(silo.open()) as ledger:
                cap = GDP if capped and number >= 2 else None
                event = SAMPLE if rng.random() < 0.6 else GaussianRelease(0, 1000, 1.0, float(rng.uniform(5.0, 50.0)))
                assert approve(ledger, f"run {number}", Charge.of([replace(event, count=40)], DELTA), cap)
                answer(ledger, f"run {number}", int(rng.integers(0, 3)), event)
                for run in [run for run in ledger.charges() if ledger.is_run(run) and not ledger.is_closed(run)]:
                    if rng.random() < 0.4:
                        ledger.close_run(run, worst_mu_squared(ledger.events(run)))
                before, order = list(ledger.charges().values()), ledger.caps.order
        step += steps
        silo.restore(*parts)
        if rng.random() < 0.4:
            with closing(SqliteLedger("ash", *silo.files, fitting=False)) as ledger:
                ledger.reconcile(order if silo.registered and len(parts) == 1 else None)
        silo.repair()
        with closing(silo.open()) as ledger:
            after = list(ledger.charges().values())
            assert ledger.caps.order in (None, order) and ledger.runs >= step
        there, here = (Totals.of(charges) for charges in (before, after))
        assert all(a >= b * (1 - 1e-12) for a, b in zip(here[:3], there[:3], strict=True))
        # An account without a cap takes any order later.
        for each in (order,) if order is not None else ORDERS:
            now_charged, charged = (math.fsum(charge.rho(each) for charge in charges) for charges in (after, before))
            assert now_charged >= charged * (1 - 1e-12)


def test_what_was_lost_before_is_not_taken_off_again(tmp_path):
    """By hand: 2 of mu^2 are lost and found; then 1.5 more, with the register's word for them: 3.5 in all."""
    silo = Account(tmp_path, registered=True)
    for run, mu_squared, parts in (("a", 2.0, (VERSION,)), ("b", 1.5, (VERSION, "register"))):
        silo.keep(*parts)
        with closing(silo.open()) as ledger:
            assert approve(ledger, run, Charge(mu_squared, 4.0, DELTA), GDP)
        silo.restore(*parts)
        silo.repair()
    with closing(silo.open()) as ledger:
        assert math.fsum(charge.mu_squared for charge in ledger.charges().values()) == pytest.approx(3.5, rel=1e-12)
        assert ledger.runs == 2


def test_the_anchor_of_a_registered_ledger_knows_order_and_divergences(tmp_path):
    silo = Account(tmp_path, registered=True)
    with closing(silo.open()) as ledger:
        assert approve(ledger, "a", SAMPLES, RDP)
    mark = Anchor(silo.files[1]).mark
    assert mark.order == RDP.order and mark.totals.rho == SAMPLES.rho(RDP.order) < SAMPLES.mu_squared * RDP.order / 20


def test_a_ledger_that_lost_nothing_is_charged_nothing(tmp_path):
    """Only the register comes back from before: its ledger proves all, and mu^2 of samples is not charged again."""
    silo = Account(tmp_path, registered=True)
    silo.keep("register")
    with closing(silo.open()) as ledger:
        assert approve(ledger, "a", SAMPLES, None) and approve(ledger, "b", SAMPLES, RDP)
    silo.restore("register")
    silo.repair()
    account = silo.register.accounts.find("ash")
    assert Totals.of(account.versions[VERSION].charges, RDP.order)[:3] == Totals.of([SAMPLES, SAMPLES])[:3]
    assert account.caps.order == RDP.order
    assert account.caps.claimed is None, "the register has not seen these admitted"


def test_sums_at_another_order_take_no_samples_off():
    """By hand: 5 of mu^2 known, 2 of them in full batches that are there, and samples of mu^2 100: 3 at the order."""
    kept = [Charge(2.0, 1.0, DELTA), Charge(100.0, 1.0, DELTA, SAMPLES.pieces)]
    known = Totals(5.0, 3.0, 2 * DELTA, 7.0)
    assert lost_charge(known, None, kept, None) == Charge(3.0, 1.0, 0.0)
    assert lost_charge(known, 2.0, kept, 4.0).divergence.rho == pytest.approx(4.0 * 3.0 / 2, rel=1e-9)
    assert lost_charge(known, 2.0, kept[:1], 2.0).divergence.rho == pytest.approx(7.0 - 2.0, rel=1e-9)
    lost = Charge(0.0, 1.0, 0.0, (), Divergence(2.0, 3.0))
    assert of_order(lost, 2.0) == of_order(lost, None) == lost
    assert of_order(lost, 4.0).rho(4.0) == math.inf
