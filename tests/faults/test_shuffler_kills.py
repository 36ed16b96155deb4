"""SIGKILL of a shuffler, of its driver and of a site in a shuffled round: the same bits, and no message twice."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from fedcore.errors import InputError
from flows.carriers.http import listening
from tasks.shuffling.calls import check_listening
from tests.faults.federation import Federation
from tests.faults.planted_shuffled_driver import STEPS as DRIVER
from tests.patience import HANGS, SOON
from tests.selection import some_in_make_test

pytestmark = [pytest.mark.faults, pytest.mark.slow]

ROUNDS, SILOS = 8, 6
STEPS = {
    "take": "before a message is kept",
    "commit": "all messages there, before the batch is committed",
    "committed": "batch committed, before it is handed on",
}
PROGRAM = Path(__file__).with_name("planted_shuffler.py")


def shuffled(home: Path, name: str, rounds: int = ROUNDS, **sections: object) -> Federation:
    return Federation.make(
        home,
        name,
        **{
            "privacy": {"epsilon": 4, "delta": 1e-6, "trust": "shuffler", "ledger": "sqlite"},
            "algorithm": {"name": "mbsgd", "rounds": rounds, "step": 1},
            "cluster": {"backend": "in-process"},
            "tracking": {"mlflow": False},
            **sections,
        },
    )


def released(home: Path, run: str) -> dict[str, list[tuple[int, int, bytes]]]:
    """By silo (phase, round, payload) of every release that its ledger has of the run."""
    found = {}
    for path in (home / "ledgers").glob("*/*.sqlite"):
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            sql = "SELECT phase, round, payload FROM entries WHERE kind = 'release' AND run = ? ORDER BY phase, round"
            rows = db.execute(sql, (run,)).fetchall()
        if rows:
            found[path.stem] = rows
    return found


def check(federation: Federation, undisturbed: Federation, rounds: int = ROUNDS) -> None:
    """The same model as if nothing had happened, and every ledger shows each of the same releases once."""
    np.testing.assert_array_equal(federation.weights(), undisturbed.weights())
    mine, theirs = (released(each.home, each.run) for each in (federation, undisturbed))
    assert len(mine) == SILOS and mine == theirs
    assert all([row[:2] for row in rows] == [(1, round) for round in range(1, rounds + 1)] for rows in mine.values())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Federation:
    federation = shuffled(tmp_path_factory.mktemp("undisturbed"), "killed")
    federation.drive()
    return federation


class Manager:
    """Keeps a shuffler running as a service manager does; only its first process has the planted kill."""

    def __init__(self, folder: Path, step: str, count: int) -> None:
        self.folder, self.ends, self.starts = folder, threading.Event(), 0
        self.socket = listening("127.0.0.1", 0)
        self.socket.set_inheritable(True)
        self.address = f"127.0.0.1:{self.socket.getsockname()[1]}"
        self._plan = step, str(count)
        self._thread = threading.Thread(target=self._keep)

    def __enter__(self) -> Manager:
        self._thread.start()
        until = time.monotonic() + HANGS
        while True:  # a busy machine takes long to start it, and a run does not begin without one
            try:
                check_listening(f"http://{self.address}")
                return self
            except InputError:
                if time.monotonic() > until:
                    self.__exit__()
                    raise

    def __exit__(self, *_: object) -> None:
        self.ends.set()
        self._thread.join()
        self.socket.close()

    def _keep(self) -> None:
        while not self.ends.is_set():
            plan = self._plan if self.starts == 0 else ("none", "0")
            descriptor = self.socket.fileno()
            command = [sys.executable, str(PROGRAM), str(self.folder), str(descriptor), "2", *plan]
            root = str(Path(__file__).parents[2])
            process = subprocess.Popen(command, pass_fds=[descriptor], env={**os.environ, "PYTHONPATH": root})
            self.starts += 1
            while process.poll() is None and not self.ends.wait(0.02):
                pass
            if process.poll() is None:
                process.kill()
            process.wait()


KILLS = [("take", 1), ("take", 3 * SILOS + 4), ("commit", 1), ("commit", 5), ("committed", 1), ("committed", ROUNDS)]


@pytest.mark.parametrize(("step", "count"), some_in_make_test(KILLS, [("commit", 5)]))
def test_a_shuffler_killed_in_a_round_changes_nothing(tmp_path, undisturbed, fault_table, step, count):
    with Manager(tmp_path / "shuffler", step, count) as manager:
        federation = shuffled(tmp_path / "home", "killed", shuffler={"address": manager.address})
        federation.drive()
        assert manager.starts == 2  # it was hit
    check(federation, undisturbed)
    with contextlib.closing(sqlite3.connect(tmp_path / "shuffler" / "batches.sqlite")) as db:
        committed = db.execute("SELECT phase, round FROM batches ORDER BY round").fetchall()
    assert committed == [(1, round) for round in range(1, ROUNDS + 1)]
    fault_table.add("shuffler", STEPS[step], "sqlite", count)


@pytest.mark.minutes
def test_a_runs_own_shuffler_is_started_again(tmp_path, undisturbed):
    federation = shuffled(tmp_path / "home", "killed")
    killed: list[int] = []

    def kill() -> None:
        until = time.monotonic() + HANGS
        while len(killed) < 2 and time.monotonic() < until:
            for child in psutil.Process().children():
                with contextlib.suppress(psutil.Error):
                    if "flows.carriers.shuffler" in child.cmdline() and child.pid not in killed:
                        time.sleep(0.5 * len(killed))
                        os.kill(child.pid, signal.SIGKILL)
                        killed.append(child.pid)
            time.sleep(0.01)

    thread = threading.Thread(target=kill)
    thread.start()
    federation.drive()
    thread.join()
    assert len(killed) == 2
    check(federation, undisturbed)


@pytest.mark.minutes
@pytest.mark.parametrize("step", DRIVER)
def test_a_driver_killed_at_a_step_of_a_shuffled_round_changes_nothing(tmp_path, undisturbed, fault_table, step):
    federation, count = shuffled(tmp_path / "home", "killed"), DRIVER[step][1]
    program, root = Path(__file__).with_name("planted_shuffled_driver.py"), str(Path(__file__).parents[2])
    killed = subprocess.run(
        [sys.executable, str(program), str(federation.home), str(federation.config), step, str(count)],
        env={**os.environ, "PYTHONPATH": root, "FAULT_FILE": str(tmp_path / "hit")},
        timeout=HANGS,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL and (tmp_path / "hit").read_text().startswith(step)
    federation.drive()
    check(federation, undisturbed)
    fault_table.add("driver with silos, shuffled", step, "sqlite", count)


def shufflers(home: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if "flows.carriers.shuffler" in process.cmdline() and any(str(home) in word for word in process.cmdline()):
                found.append(process)
    return found


@pytest.mark.minutes
@pytest.mark.parametrize("backend", [pytest.param("in-process", marks=pytest.mark.hours), "dask"])
def test_a_driver_killed_in_a_shuffled_run_goes_on_to_the_same_bits(home, tmp_path, backend):
    rounds = 60
    sections: dict[str, object] = {"cluster": {"backend": backend}, "tracking": {"mlflow": True}}
    undisturbed = shuffled(tmp_path / "undisturbed", f"driver-{backend}", rounds)
    undisturbed.drive()
    federation = shuffled(home, f"driver-{backend}", rounds, **sections)
    process = federation.start("run", str(federation.config))
    federation.wait_for_rounds(process, 20)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=SOON)
    until = time.monotonic() + SOON
    while shufflers(home / "runs" / federation.run):
        assert time.monotonic() < until, "the shuffler outlived its driver"
        time.sleep(0.1)
    federation.resume()
    check(federation, undisturbed, rounds)
    assert max(federation.repeated_rounds().values(), default=0) <= 1


@pytest.mark.minutes
def test_a_site_killed_in_a_shuffled_run_changes_nothing(home, tmp_path):
    rounds = 60
    undisturbed = shuffled(tmp_path / "undisturbed", "site", rounds)
    undisturbed.drive()
    federation = shuffled(home, "site", rounds, cluster={"backend": "dask"})
    process = federation.start("run", str(federation.config))
    federation.wait_for_rounds(process, 10)
    for _ in range(2):
        before = federation.log.read_text().splitlines()
        os.kill(int(before[-1].split()[0]), signal.SIGKILL)  # the worker that was the last to write
        until = time.monotonic() + HANGS
        while len(federation.log.read_text().splitlines()) < len(before) + 4 * SILOS and process.poll() is None:
            assert time.monotonic() < until
            time.sleep(0.01)
    out, err = process.communicate(timeout=HANGS)
    assert process.returncode == 0, (out, err)
    check(federation, undisturbed, rounds)


def found_in(files: list[Path], federation: Federation) -> dict[str, set[str]]:
    """Traces of the silos' answers in files, by file: payloads, parts and digests of them, as bytes or as hex."""
    hits: dict[str, set[str]] = {}
    traces = []
    for silo, rows in released(federation.home, federation.run).items():
        for _, round, payload in rows:
            digest = hashlib.sha256(payload).digest()
            for what, data in (("payload", payload[:16]), ("payload's end", payload[-16:]), ("digest", digest)):
                traces += [(f"{what} of {silo} in {round}", form) for form in (data, data.hex().encode())]
    assert traces
    for path in files:
        data = path.read_bytes()
        for what, form in traces:
            if form in data:
                hits.setdefault(path.name, set()).add(what)
    return hits


@pytest.mark.minutes
def test_nothing_of_an_answer_is_anywhere_at_the_driver(home, tmp_path):
    """Every file of the home except the silos' own: run folder, MLflow, Prefect, logs."""
    found = []
    for trust in ("shuffler", "inter-silo"):
        privacy = {"epsilon": 4, "delta": 1e-6, "trust": trust, "ledger": "sqlite"}
        place = tmp_path / trust
        federation = shuffled(place, "leaves", 5, privacy=privacy, tracking={"mlflow": True})
        federation.call("run", str(federation.config))
        own = [place / name for name in ("ledgers", "anchors", "silos")]
        every = [path for path in place.rglob("*") if path.is_file()]
        files = [path for path in every if not any(path.is_relative_to(each) for each in own)]
        assert {"checkpoint.sqlite", "result.json", "mlflow.db", "prefect.db"} <= {path.name for path in files}
        found.append(found_in(files, federation))
    shuffled_run, plain = found
    assert shuffled_run == {}
    assert any("digest" in what for what in plain["checkpoint.sqlite"])  # a control: the driver's receipts are seen
