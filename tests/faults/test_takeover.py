"""Drivers killed or paused while their workers live on: a resume takes the run over within seconds.

Real commands, real processes; the ledgers are durable, and hold what was released once.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from fedcore.home import LedgerFolders
from fedcore.ledger.account import account
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.ledger.storage.verify import faults
from tasks.run_file import read_done
from tests.faults.clusters import LedgerState, own_cluster, process_ids, state
from tests.faults.federation import Federation
from tests.patience import HANGS, SLOWNESS, SOON

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.minutes]

WITHIN = 30.0 * SLOWNESS
"""Seconds from the command `resume` to the next round, on a machine that does nothing else."""
QUIET = {"tracking": {"mlflow": False}, "privacy": {"epsilon": 4, "ledger": "sqlite"}}


@pytest.fixture(scope="module", params=["up", pytest.param("own", marks=pytest.mark.hours)])
def stands(request, tmp_path_factory) -> Iterator[LedgerState]:
    with state(request.param, tmp_path_factory.mktemp(request.param)) as found:
        yield found


def kill(process: subprocess.Popen[str]) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=SOON)


def check(federation: Federation, scratch: Path, rounds: int) -> None:
    """Checks for the bits of an undisturbed run, and that every ledger is whole and has each release once."""
    np.testing.assert_array_equal(federation.weights(), federation.undisturbed(scratch))
    folders, seen = LedgerFolders.below(federation.home), 0
    for version, silo in folders.found():
        ledger = SqliteLedger(silo, *folders.of(version, silo))
        mine = [run for run in account(ledger)["runs"] if run["run"] == federation.run]
        addresses = [(row.phase, row.round) for row in ledger.rows(federation.run)]
        ledger.close()
        assert faults(silo, *folders.of(version, silo)) == []
        if mine:
            assert [(run["state"], run["releases"]) for run in mine] == [("closed", rounds)]
            assert len(set(addresses)) == len(addresses) == rounds
            seen += 1
    assert seen == 6


def resumed(federation: Federation) -> tuple[subprocess.Popen[str], float]:
    """A driver that resumes the run, and the seconds until it has done another round."""
    before, began = read_done(federation.store), time.monotonic()
    process = federation.start("resume", federation.run)
    federation.wait_for_rounds(process, before + 1)
    return process, time.monotonic() - began


def kills(stands: LedgerState, scratch: Path, name: str, rounds: int, count: int) -> list[float]:
    """Kills drivers of a run at random rounds, `count` times; returns how long each resume took."""
    drawn, took = random.Random(name), list[float]()
    federation = Federation.make(stands.home, name, (rounds, 1, 1), cluster=stands.cluster, **QUIET)
    process = federation.start("run", str(federation.config))
    at = 0
    for number in range(count):
        at = drawn.randint(at + 2, rounds * (number + 1) // (count + 1))
        federation.wait_for_rounds(process, at)
        kill(process)
        process, seconds = resumed(federation)
        at = read_done(federation.store)
        took.append(seconds)
    out, err = process.communicate(timeout=HANGS)
    assert process.returncode == 0, (out[-2000:], err[-2000:])
    check(federation, scratch, rounds + 2)
    assert max(federation.repeated_rounds().values(), default=0) <= count
    return took


def test_killed_drivers_are_resumed_while_their_workers_live_on(stands, tmp_path):
    """FEDCORE_TAKEOVERS=20 kills twenty drivers, of four runs."""
    runs, each = divmod(int(os.environ.get("FEDCORE_TAKEOVERS", "2")), 5)
    took = [seconds for number in range(runs) for seconds in kills(stands, tmp_path, f"killed-{number}", 600, 5)]
    took += kills(stands, tmp_path, "killed", 150, each) if each else []
    print(f"\n{len(took)} drivers, resumed after {sorted(round(each, 1) for each in took)} s")
    assert max(took) <= WITHIN


def pause(process: subprocess.Popen[str] | psutil.Process) -> None:
    os.kill(process.pid, signal.SIGSTOP)
    until = time.monotonic() + SOON
    while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < until
        time.sleep(0.005)


def go_on(process: subprocess.Popen[str] | psutil.Process) -> None:
    os.kill(process.pid, signal.SIGCONT)


@pytest.mark.parametrize("over", [True, False], ids=["over", "going on"])
def test_a_driver_that_comes_back_from_a_pause_is_refused(stands, tmp_path, request, over):
    """The paused driver's lock is lost, as with a network disk; the other driver is in the middle, or at its end."""
    if over == ("address" in stands.cluster) and not request.config.getoption("--fault-table"):
        pytest.skip("`make faults` pauses drivers of both clusters in both ways")
    name = f"paused-{'over' if over else 'between'}"
    federation = Federation.make(stands.home, name, (200, 1, 1), cluster=stands.cluster, **QUIET)
    paused = federation.start("run", str(federation.config))
    federation.wait_for_rounds(paused, 20)
    pause(paused)
    err = federation.call("resume", federation.run, code=75)
    assert f"is being driven by process {paused.pid}" in err
    (federation.store.parent / "lock").unlink()
    other, _ = resumed(federation)
    if over:
        out, err = other.communicate(timeout=HANGS)
        assert other.returncode == 0, (out[-2000:], err[-2000:])
    before = federation.meta()["lease"]
    go_on(paused)
    out, err = paused.communicate(timeout=HANGS)
    assert paused.returncode in (3, 75) and "Traceback" not in err, (paused.returncode, err[-2000:])
    assert "which a later driver took" in err or "was taken over by process" in err, err[-2000:]
    if not over:
        out, err = other.communicate(timeout=HANGS)
        assert other.returncode == 0, (out[-2000:], err[-2000:])
    assert federation.meta()["state"] == "FINISHED" and federation.meta()["lease"] == before
    check(federation, tmp_path, 202)


def test_a_worker_that_is_paused_is_passed_over_and_lets_go_when_it_goes_on(tmp_path):
    """A stopped process keeps its ledgers locked for all others: the refusal names the process."""
    names = ("one", "two")
    with own_cluster(tmp_path, *(["--no-nanny", "--name", name] for name in names)) as cluster:
        federation = Federation.make(tmp_path / "home", "stopped-worker", (300, 1, 1), cluster=cluster, **QUIET)
        driver = federation.start("run", str(federation.config))
        federation.wait_for_rounds(driver, 20)
        pids = process_ids(cluster)
        assert set(pids) == set(names)
        stopped = psutil.Process(pids["two"])
        pause(stopped)
        try:
            kill(driver)
            began = time.monotonic()
            err = federation.call("resume", federation.run, code=3)
            assert f"is held by another process ({stopped.pid}, for run {federation.run})" in err
            assert "Traceback" not in err
            assert time.monotonic() - began < 2 * WITHIN
        finally:
            go_on(stopped)
        last, _ = resumed(federation)
        out, err = last.communicate(timeout=HANGS)
        assert last.returncode == 0, (out[-2000:], err[-2000:])
        check(federation, tmp_path, 302)
