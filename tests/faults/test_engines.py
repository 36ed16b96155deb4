"""SIGKILL of Dask workers and of the Prefect server at the steps of the release path.

Without a resume, the run itself must go on to the same bits (tests/faults/test_matrix.py kills drivers).
"""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

import dask
import distributed  # noqa: F401  (its defaults must be there before a test sets one of its keys)
import pytest

from fedcore.home import LedgerFolders
from fedcore.ledger.account import account
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.ledger.storage.verify import faults
from tests.faults.federation import Federation
from tests.faults.planted import DRIVER, RELEASE, STEPS
from tests.patience import HANGS

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.minutes]
PLANTED = str(Path(__file__).with_name("planted.py"))
SILOS, ROUNDS = 6, 70


def cells(steps, ledgers):
    return [(step, ledger) for step in steps for ledger in ledgers if STEPS[step].ledger in ("both", ledger)]


def check(federation: Federation, scratch: Path, ledger: str, step: str, pid: int | None) -> None:
    """Checks that the kill happened at its step, and that every record is there once, as in an undisturbed run."""
    hit_step, hit_pid = (scratch / "hit").read_text().split("|")
    assert hit_step == step and (pid is None or int(hit_pid) != pid)
    federation.check_complete(scratch)
    digests = defaultdict(set)
    for line in (scratch / "sent").read_text().splitlines():
        silo, phase, round, digest = line.split()
        digests[silo, phase, round].add(digest)
    assert len(digests) == SILOS * ROUNDS and all(len(each) == 1 for each in digests.values())
    if ledger == "sqlite":
        folders = LedgerFolders.below(federation.home)
        for version, silo in folders.found():
            assert faults(silo, *folders.of(version, silo)) == []
            opened = SqliteLedger(silo, *folders.of(version, silo))
            mine = [run for run in account(opened)["runs"] if run["run"] == federation.run]
            opened.close()
            if mine:
                assert [(run["state"], run["releases"]) for run in mine] == [("closed", ROUNDS)]


def disturb(monkeypatch, scratch: Path, step: str, **environment: str) -> None:
    places = {"FAULT_FILE": str(scratch / "hit"), "FAULT_SENT": str(scratch / "sent"), "FAULT_STEP": step}
    for name, value in (places | environment).items():
        monkeypatch.setenv(name, value)


ENGINES = [("after the commit in memory", "memory"), ("in the transaction, before COMMIT", "sqlite")]
"""Killed under the command line too, with Prefect and MLflow; the others of Dask's workers under Dask alone."""


def at_worker(
    home: Path, scratch: Path, monkeypatch, step: str, ledger: str, driver: str, **sections: object
) -> Federation:
    """A federation whose worker is killed at this step. Named after `driver` too: a run that is there is not made."""
    disturb(monkeypatch, scratch, step, FAULT_COUNT="2" if "cap" in step or "approv" in step else "50")
    name = f"worker-of-{driver}-" + step.replace(" ", "-").replace(",", "") + f"-{ledger}"
    return Federation.make(home, name, privacy={"epsilon": 4, "ledger": ledger}, **sections)


@pytest.mark.parametrize("step, ledger", cells([step for step in RELEASE if "grid" not in step], ("memory", "sqlite")))
def test_a_worker_killed_at_a_step_is_replaced(home, tmp_path, monkeypatch, fault_table, step, ledger):
    federation = at_worker(home, tmp_path, monkeypatch, step, ledger, "dask", tracking={"mlflow": False})
    with dask.config.set({"distributed.worker.preload": [PLANTED]}):
        federation.drive()
    check(federation, tmp_path, ledger, step, os.getpid())
    fault_table.add("Dask worker", step, ledger, int(os.environ["FAULT_COUNT"]))


@pytest.mark.parametrize("step, ledger", ENGINES)
def test_a_worker_killed_under_the_command_line_is_replaced(home, tmp_path, monkeypatch, step, ledger):
    federation = at_worker(home, tmp_path, monkeypatch, step, ledger, "command")
    monkeypatch.setenv("DASK_DISTRIBUTED__WORKER__PRELOAD", repr([PLANTED]))
    process = federation.start("run", str(federation.config))
    out, err = process.communicate(timeout=HANGS)
    assert process.returncode == 0, (out[-2000:], err[-2000:])
    check(federation, tmp_path, ledger, step, process.pid)


@pytest.mark.parametrize(
    "step, ledger",
    [
        pytest.param(*cell, marks=() if cell[0] in ("before the send", "after the fold") else pytest.mark.hours)
        for cell in cells(
            (
                "run approved by one silo",
                "after the noise",
                "after COMMIT, before the anchor",
                "before the send",
                "in the checkpoint, before COMMIT",
                "after the fold",
                "before the run is closed",
            ),
            ("sqlite",),
        )
    ],
)
def test_a_prefect_server_killed_at_a_step_changes_nothing(home, tmp_path, monkeypatch, fault_table, step, ledger):
    count = "1" if step in ("run approved by one silo", "before the run is closed") else "30"
    disturb(monkeypatch, tmp_path, step, FAULT_COUNT=count, FAULT_VICTIM="prefect", FAULT_ROLE="driver")
    name = "prefect-" + step.replace(" ", "-").replace(",", "")
    federation = Federation.make(
        home, name, privacy={"epsilon": 4, "ledger": ledger}, cluster={"backend": "in-process"}
    )
    process = federation.start("run", str(federation.config), program=(PLANTED,))
    out, err = process.communicate(timeout=HANGS)
    assert process.returncode == 0, (out[-2000:], err[-2000:])
    check(federation, tmp_path, ledger, step, None)
    fault_table.add("Prefect server", step, ledger, int(count))


def test_every_step_is_killed_somewhere():
    assert set(STEPS) == set(RELEASE) | set(DRIVER)
