"""Ledgers that were there before the register: their charges become the account's, their caps claim nothing of sums."""

from __future__ import annotations

import math
from contextlib import closing
from datetime import UTC, datetime

import pytest

from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.filters import Cap, Charge
from fedcore.data.silo_file import SiloSource
from fedcore.home import LedgerFolders
from fedcore.ledger.operator.register import Register
from fedcore.ledger.operator.registered import RegisteredLedger
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.silo.registration import register_silos

DELTA = 1e-5
SMALL, LARGE = Cap(4.0, DELTA, "rdp"), Cap(8.0, DELTA, "rdp")
SAMPLES = Charge.of([GaussianRelease(0, 1000, 1.0, 1.2, 1000, sampling="poisson", rate=0.01)], DELTA)
FIRST, SECOND = "1" * 32, "2" * 32


@pytest.fixture
def folders(tmp_path, monkeypatch) -> LedgerFolders:
    monkeypatch.setenv("FEDCORE_REGISTER", str(tmp_path / "register"))
    return LedgerFolders.below(tmp_path)


def source(folder, version, shift=0) -> SiloSource:
    path = folder / f"{version[:4]}.csv"
    path.write_text("x,y\n" + "".join(f"{row + shift},{row % 2}\n" for row in range(9)))
    return SiloSource("ash", str(path), "csv", ("x",), "y", (0, 1), True, 1.0, 1.0, version)


def charged(folders, version, cap, runs=1) -> None:
    with closing(SqliteLedger("ash", *folders.of(version, "ash"))) as ledger:
        for run in range(runs):
            ledger.open_run(f"{version[:1]}.{run}", "plan", b"k" * 32, SAMPLES, cap)


def account(folders, *sources):
    for each in sources:
        register_silos([each], folders, True, lambda *_: False, lambda: datetime.now(UTC))
    return Register.current("ash").accounts.find("ash")


def test_of_one_ledger_the_claim_goes_on(tmp_path, folders):
    charged(folders, FIRST, SMALL)
    caps = account(folders, source(tmp_path, FIRST)).caps
    assert (caps.order, caps.claimed) == (SMALL.order, SMALL)


@pytest.mark.parametrize("joined", ["with the account", "later"])
@pytest.mark.parametrize("other", [SMALL, LARGE, None], ids=["the same", "another", "none"])
def test_of_several_ledgers_nothing_is_claimed(tmp_path, folders, joined, other):
    """Each stayed below its own cap, and both together above either."""
    charged(folders, FIRST, SMALL)
    sources = [source(tmp_path, FIRST), source(tmp_path, SECOND, 100)]
    if joined == "later":
        account(folders, sources.pop(0))
    charged(folders, SECOND, other)
    found = account(folders, *sources[-1:])
    assert found.caps.order == SMALL.order and found.caps.claimed is None
    rho = math.fsum(each.rho(SMALL.order) for version in found.versions.values() for each in version.charges)
    assert rho == pytest.approx(2 * SAMPLES.rho(SMALL.order), rel=1e-9)


def test_a_loss_at_another_order_counts_without_bound(tmp_path, folders):
    charged(folders, FIRST, SMALL)
    account(folders, source(tmp_path, FIRST))
    charged(folders, SECOND, LARGE)
    path, _ = folders.of(SECOND, "ash")
    before = path.read_bytes()
    charged(folders, SECOND, LARGE, runs=2)
    path.write_bytes(before)
    for suffix in ("-wal", "-shm"):
        path.with_name(f"ash.sqlite{suffix}").unlink(missing_ok=True)
    with closing(SqliteLedger("ash", *folders.of(SECOND, "ash"), fitting=False)) as ledger:
        _, lost = ledger.reconcile()
    assert lost.divergence is not None and lost.divergence.order == LARGE.order
    assert lost.divergence.rho == pytest.approx(SAMPLES.rho(LARGE.order), rel=1e-9)
    found = account(folders, source(tmp_path, SECOND, 100))
    assert found.versions[SECOND].lost[0].rho(SMALL.order) == math.inf


def test_a_repair_that_was_killed_is_found_also_where_runs_were_lost_before_the_register(tmp_path, folders):
    """Lost, repaired, registered, two more lost; then the ledger's reconciliation, which the register never saw."""
    path, _ = folders.of(FIRST, "ash")
    charged(folders, FIRST, None)
    for runs, registered in ((2, False), (3, True)):
        if registered:
            account(folders, source(tmp_path, FIRST))
        kept = [each.read_bytes() for each in (path, tmp_path / "register" / "register") if each.exists()]
        anchor = [each.read_bytes() for each in (tmp_path / "register").glob("register.anchor")]
        charged(folders, FIRST, None, runs=runs)
        for each, data in zip((path, tmp_path / "register" / "register"), kept, strict=False):
            each.write_bytes(data)
        for each, data in zip((tmp_path / "register").glob("register.anchor"), anchor, strict=True):
            each.write_bytes(data)
        for suffix in ("-wal", "-shm"):
            path.with_name(f"ash.sqlite{suffix}").unlink(missing_ok=True)
        with closing(SqliteLedger("ash", *folders.of(FIRST, "ash"), fitting=False)) as ledger:
            ledger.reconcile()
    register = Register.current("ash")
    RegisteredLedger(register, "ash", FIRST, lambda: datetime.now(UTC)).close()
    found = register.accounts.find("ash").versions[FIRST]
    assert math.fsum(each.mu_squared for each in found.charges) >= 4 * SAMPLES.mu_squared and found.count == 4
