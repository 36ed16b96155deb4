"""Drivers and workers killed in the middle of a phase: the run goes on to the same bits, and nothing is doubled."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from fedcore.experiment.experiment import make_plan
from fedcore.experiment.loading import load_experiment
from tasks.run_file import read_done, read_progress
from tasks.run_store import RunStore
from tests.faults.federation import Federation
from tests.patience import HANGS, SOON
from tests.selection import some_in_make_test

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.minutes]


def descendants(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def servers(home: Path) -> list[psutil.Process]:
    """Detached processes that serve this home."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("FEDCORE_HOME") == str(home) and "flows.commands.app" not in process.cmdline():
                found.append(process)
        except psutil.Error:
            continue
    return found


def wait_until_stopped(pid: int) -> None:
    """A signal to stop reaches each thread by itself."""
    until, states = time.monotonic() + HANGS, {""}
    while states != {"T"}:
        assert time.monotonic() < until
        time.sleep(0.001)
        with contextlib.suppress(OSError):  # a thread that ended meanwhile
            stats = [(task / "stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
            states = {stat.rpartition(")")[2].split()[0] for stat in stats}


DIFF2 = {
    "diff2": {"name": "diff2", "rounds": 300, "period": 150, "split": 0.5, "step": 0.1},
    "diff2-bvr": {
        "name": "diff2-bvr",
        "rounds": 150,
        "period": 75,
        "split": 0.5,
        "step": 0.05,
        "local_steps": 3,
        "batch": 16,
    },
}


@pytest.mark.parametrize("trust", ["inter-silo", pytest.param("central", marks=pytest.mark.hours)])
@pytest.mark.parametrize("method", ["diff2", pytest.param("diff2-bvr", marks=pytest.mark.hours)])
def test_a_driver_killed_in_a_difference_round_goes_on_to_the_same_bits(home, tmp_path, method, trust):
    """The estimate, both models and the aggregator's sums are in the checkpoint, or are computed again."""
    privacy = {"epsilon": 4, "ledger": "sqlite", "trust": trust}
    federation = Federation.make(home, f"killed-{method}-{trust}", privacy=privacy, algorithm=DIFF2[method])
    process = federation.start("run", str(federation.config))
    federation.wait_for_rounds(process, 45)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=SOON)
    phase, round = read_progress(federation.store)
    assert (
        make_plan(load_experiment(federation.config)).phases[phase - 1].at(round).question.kind == "gradient-difference"
    )
    federation.resume()
    federation.check_complete(tmp_path)
    assert max(federation.repeated_rounds().values()) <= 1


NEWTON = {
    "noised-newton": {"name": "noised-newton", "rounds": 150, "period": 100},
    "dp-fcrn": {"name": "dp-fcrn", "rounds": 150, "local_steps": 4, "kept": 0.2},
}


@pytest.mark.parametrize("method", some_in_make_test(NEWTON, [], ["dp-fcrn"]))
def test_a_driver_killed_between_newton_steps_goes_on_to_the_same_bits(home, tmp_path, method):
    """Hessians are in the checkpoint, or are read from ledgers again; masks follow from the address of a round."""
    privacy = {"epsilon": 4, "ledger": "sqlite"}
    federation = Federation.make(home, f"killed-{method}", privacy=privacy, algorithm=NEWTON[method])
    process = federation.start("run", str(federation.config))
    federation.wait_for_rounds(process, 25)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=SOON)
    assert 25 <= read_progress(federation.store)[1] < 150
    federation.resume()
    federation.check_complete(tmp_path)
    assert max(federation.repeated_rounds().values()) <= 1


@pytest.mark.parametrize("ledger", [pytest.param("memory", marks=pytest.mark.hours), "sqlite"])
def test_a_driver_killed_in_a_phase_goes_on_to_the_same_bits(home, tmp_path, ledger):
    name, privacy = f"killed-driver-{ledger}", {"epsilon": 4, "ledger": ledger}
    federation = Federation.make(home, name, (400, 20, 10), privacy=privacy)
    process = federation.start("run", str(federation.config))
    federation.wait_for_rounds(process, 25)
    children = descendants(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    killed_at = time.monotonic()
    # No pipe is held: the caller's end closes although the detached server may live on for a moment.
    process.communicate(timeout=SOON)
    assert federation.state() == "KILLED"

    while alive(children) or servers(home):
        assert time.monotonic() < killed_at + SOON, (alive(children), servers(home))
        time.sleep(0.2)

    result = federation.resume()
    assert result["run"] == federation.run
    federation.check_complete(tmp_path)
    assert federation.state() == "FINISHED"
    assert max(federation.repeated_rounds().values()) <= 1
    # Once more: a finished run is not run again.
    before = federation.computed()
    assert federation.resume() == result
    assert federation.computed() == before

    # MLflow lost everything, or the driver ended before MLflow had it: a resume sends it again and queries no silo.
    for run in [*federation.mlflow_runs("phase"), *federation.mlflow_runs("experiment")]:
        federation.mlflow_client().delete_run(run.info.run_id)
    store = RunStore(federation.store)
    store.set_meta(tracked=None)
    store.close()
    assert federation.resume() == result
    assert federation.computed() == before
    federation.check_complete(tmp_path)


@pytest.mark.hours
def test_control_variates_come_back_with_a_killed_drivers_checkpoint(home, tmp_path):
    algorithm = {"name": "scaffold", "rounds": 40, "local_steps": 4, "sampling_rate": 0.3, "warm": True}
    federation = Federation.make(
        home,
        "killed-scaffold",
        privacy={"epsilon": 4, "ledger": "sqlite"},
        algorithm=algorithm,
        participation={"silos_per_round": [1, 2, 4]},
    )
    process = federation.start("run", str(federation.config))
    federation.wait_for_rounds(process, 12)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=SOON)
    result = federation.resume()
    assert max(federation.repeated_rounds().values()) <= 1
    np.testing.assert_array_equal(federation.weights(), federation.undisturbed(tmp_path))
    assert 0.999 * 4 <= result["epsilon_accounted"] <= 4  # of a silo that is asked in every round
    assert result["epsilon_spent"] <= result["epsilon_accounted"] and result["epsilon_honest_sampling"] < 4


def test_a_killed_driver_blocks_nobody_and_its_states_are_closed(home, tmp_path):
    federation = Federation.make(home, "stale", phases=[900, 20, 10])
    process = federation.start("run", str(federation.config))
    federation.wait_for_rounds(process, 5)
    # Training does not wait for a slow MLflow: rounds go on before it has the run.
    until = time.monotonic() + HANGS
    while not ((home / "mlflow.db").exists() and federation.mlflow_runs("experiment")):
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=SOON)

    other = Federation.make(home, "next", algorithm={"name": "mbsgd", "rounds": 2})
    began = time.monotonic()
    process = other.start("run", str(other.config))
    other.wait_for_rounds(process, 1)
    assert time.monotonic() - began < SOON
    out, err = process.communicate(timeout=HANGS)
    assert process.returncode == 0, (out, err)

    assert federation.state() == "KILLED"
    assert [run.info.status for run in federation.mlflow_runs("experiment")] == ["KILLED"]
    db = sqlite3.connect(f"file:{home / 'prefect' / 'prefect.db'}?mode=ro", uri=True)
    states = dict(db.execute("SELECT name, state_type FROM flow_run WHERE tags LIKE ?", (f"%{federation.run}%",)))
    assert set(states.values()) == {"CRASHED"}


def test_a_worker_killed_while_it_computes_changes_nothing(home, tmp_path):
    federation = Federation.make(
        home,
        "killed-worker",
        data={"source": "synthetic", "silos": 4, "records": 60_000, "features": 60, "test_records": 200},
    )
    process = federation.start("run", str(federation.config))
    federation.wait_for_rounds(process, 10)

    def computing() -> dict[str, list[str]]:
        """Places of computations that have begun and not ended, by process."""
        open_calls: dict[str, list[str]] = {}
        for line in federation.log.read_text().splitlines():
            pid, what, *place, _ = line.split()
            if what == "begin":
                open_calls[pid] = place
            else:
                open_calls.pop(pid, None)
        return open_calls

    hit = None
    while hit is None:
        assert process.poll() is None, "no kill hit a computation"
        for pid in computing():
            # Stopped first, however late this process comes: what has not ended then is hit in its middle.
            os.kill(int(pid), signal.SIGSTOP)
            wait_until_stopped(int(pid))
            if pid in (begun := computing()):
                hit = pid, begun[pid]
                os.kill(int(pid), signal.SIGKILL)
                break
            os.kill(int(pid), signal.SIGCONT)
        time.sleep(0.002)
    out, err = process.communicate(timeout=HANGS)
    assert process.returncode == 0, (out, err)
    ended = [line.split() for line in federation.log.read_text().splitlines() if line.split()[1] == "end"]
    assert not any((line[0], line[2:-1]) == hit for line in ended)
    federation.check_complete(tmp_path)
    assert max(federation.repeated_rounds().values()) <= 20


def test_a_stopped_run_is_killed_and_can_be_resumed(home, tmp_path):
    federation = Federation.make(home, "stopped", phases=[240, 20, 10])
    process = federation.start("run", str(federation.config))
    federation.wait_for_rounds(process, 5)
    process.send_signal(signal.SIGSTOP)  # so that it is not over however long the other takes to start
    err = federation.call("run", str(federation.config), code=75)
    process.send_signal(signal.SIGCONT)
    assert f"run {federation.run} is being driven by process {process.pid}" in err
    assert "Traceback" not in err

    # Once as a service manager ends it, and the resumed run as a person does.
    _stop(federation, process, signal.SIGTERM)
    _stop(federation, federation.start("resume", federation.run), signal.SIGINT)
    federation.resume()
    federation.check_complete(tmp_path)


def _stop(federation, process, number):
    federation.wait_for_rounds(process, read_done(federation.store) + 10)
    process.send_signal(number)
    out, err = process.communicate(timeout=HANGS)
    assert process.returncode == 130, (out, err)
    assert "Traceback" not in out + err and err.endswith("stopped; `fedcore runs` lists what can be resumed\n")
    assert federation.state() == "KILLED"
    assert [run.info.status for run in federation.mlflow_runs("experiment")] == ["KILLED"]
