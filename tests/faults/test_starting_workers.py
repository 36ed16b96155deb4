"""Workers of the local cluster that are killed while it starts: made again, or a sentence; never a traceback."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

import dask
import distributed  # noqa: F401  (its defaults must be there before a test sets one of its keys)
import numpy as np
import psutil
import pytest
import yaml
from distributed.process import AsyncProcess

from tasks.run_file import read_done
from tests.faults.federation import Federation
from tests.selection import some_in_make_test

pytestmark = [pytest.mark.faults, pytest.mark.slow]

DIGITS = Path(__file__).parents[2] / "conf" / "experiment" / "digits.yaml"
PRELOAD = """
import os, pathlib, signal, threading, time
DELAY, LIVES, DEATHS = {delay!r}, {lives}, pathlib.Path({deaths!r})

def die():
    with open(DEATHS, "a") as file:
        file.write("+")
    if len(DEATHS.read_text()) <= LIVES:
        os.kill(os.getpid(), signal.SIGKILL)

def wait_and_die(worker):
    while worker.status.name != "running":
        time.sleep(0.0005)
    time.sleep(DELAY)
    die()

def dask_setup(worker):
    if worker.name == "site-1" and DELAY is None:
        die()
    elif worker.name == "site-1":
        threading.Thread(target=wait_and_die, args=(worker,), daemon=True).start()
"""


def digits(home: Path, folder: Path, rounds: int = 2, **cluster: float) -> Federation:
    """The digits in few rounds, on two workers."""
    values = yaml.safe_load(DIGITS.read_text())
    values["algorithm"] |= {"rounds": [rounds, 1, 1], "max_phases": 3}
    values |= {"name": folder.name, "cluster": {"workers": 2, **cluster}, "tracking": {"mlflow": False}}
    config = folder / "digits.yaml"
    config.write_text(yaml.safe_dump(values))
    return Federation(home, config, folder / "log")


def plant(folder: Path, patch: pytest.MonkeyPatch, delay: float | None, lives: int) -> Path:
    """Kills site-1 before it joins (None), or this many seconds after it has joined, for a number of its lives."""
    preload, deaths = folder / "dying.py", folder / "deaths"
    preload.write_text(PRELOAD.format(delay=delay, lives=lives, deaths=str(deaths)))
    patch.setenv("DASK_DISTRIBUTED__WORKER__PRELOAD", repr([str(preload)]))  # for commands, which read it; and for us:
    patch.setitem(dask.config.config["distributed"]["worker"], "preload", [str(preload)])
    return deaths


def fork_server() -> psutil.Process | None:
    """The process that workers of this one are forked from, where it runs."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process().children():
            if "multiprocessing.forkserver" in " ".join(child.cmdline()):
                return child
    return None


def workers() -> list[psutil.Process]:
    """The Dask workers of this process."""
    server = fork_server()
    with contextlib.suppress(psutil.Error):
        return [] if server is None else server.children()
    return []


def drive_beside(federation: Federation, kill: Callable[[threading.Event], None]) -> None:
    """The whole run, with `kill` in a thread until it is over."""
    over = threading.Event()
    killing = threading.Thread(target=kill, args=(over,))
    killing.start()
    try:
        federation.drive()
    finally:
        over.set()
        killing.join()


def check(federation: Federation, scratch: Path) -> None:
    np.testing.assert_array_equal(federation.weights(), federation.undisturbed(scratch))
    assert federation.meta()["state"] == "FINISHED"


@pytest.mark.minutes
def test_a_worker_that_is_killed_while_a_command_starts_its_cluster_is_made_again(home, tmp_path, monkeypatch):
    deaths = plant(tmp_path, monkeypatch, None, lives=1)
    federation = digits(home, tmp_path)
    federation.call("run", str(federation.config), "--json")
    assert deaths.exists()
    check(federation, tmp_path)


# Before the worker's own word that it has started, right after it, to its silos' first use and beyond.
@pytest.mark.parametrize("delay", some_in_make_test([None, 0.0, 0.005, 0.03, 0.3], [None]))
def test_a_worker_that_is_killed_while_the_cluster_starts_is_made_again(home, tmp_path, monkeypatch, delay):
    deaths = plant(tmp_path, monkeypatch, delay, lives=1)
    federation = digits(home, tmp_path, 200)  # in two rounds a run is over in less than the longest delay
    federation.drive()
    assert deaths.exists()
    check(federation, tmp_path)


@pytest.mark.minutes
def test_a_worker_that_dies_whenever_it_starts_ends_the_run_with_a_sentence(home, tmp_path, monkeypatch):
    deaths = plant(tmp_path, monkeypatch, None, lives=99)
    federation = digits(home, tmp_path)
    err = federation.call("run", str(federation.config), code=2)
    assert "the local cluster did not start (worker site-1 died 3 times before it had joined)" in err
    assert "cluster.workers = 2" in err and "Traceback" not in err and "RuntimeError" not in err
    assert deaths.read_text() == "+++"
    assert federation.state() == "FAILED"
    monkeypatch.undo()
    federation.resume()
    check(federation, tmp_path)


@pytest.mark.minutes
@pytest.mark.parametrize("age", [0.0, 0.05, 0.2, 0.5])
def test_workers_that_are_killed_at_this_age_from_outside_are_made_again(home, tmp_path, age):
    """Both, once: from right after they are forked to after they have joined. Nothing of theirs helps to find the
    moment."""
    federation = digits(home, tmp_path, 200)
    first_seen: dict[int, float] = {}
    killed: set[int] = set()

    def kill(over: threading.Event) -> None:
        while not over.is_set():
            for worker in workers():
                with contextlib.suppress(psutil.Error):
                    born = first_seen.setdefault(worker.pid, time.monotonic())
                    if worker.pid in killed or time.monotonic() < born + age:
                        continue
                    worker.kill()
                    killed.add(worker.pid)
                    if len(killed) == 2:
                        return
            time.sleep(0.001)

    drive_beside(federation, kill)
    assert len(killed) == 2
    check(federation, tmp_path)


@pytest.mark.minutes
@pytest.mark.parametrize("failing", [(1, 2), (2, 3), (3, 4)])  # both of the beginning, one twice, one later
@pytest.mark.parametrize("error", [EOFError("whom it was forked from"), ConnectionResetError("the same, earlier")])
def test_a_worker_that_cannot_be_forked_at_once_is_forked_later(home, tmp_path, monkeypatch, error, failing):
    """The process that workers are forked from was killed as it forked: Dask's nanny would end, and never come back."""
    federation, started, real = digits(home, tmp_path, 100, deadline=30.0), [], AsyncProcess.start

    async def start(process: AsyncProcess) -> None:
        started.append(process)
        if len(started) in failing:
            raise error
        await real(process)

    def kill(over: threading.Event) -> None:
        while not over.is_set():
            if len(workers()) == 2 and read_done(federation.store) > 0:
                workers()[0].kill()
                return
            time.sleep(0.001)

    monkeypatch.setattr(AsyncProcess, "start", start)
    drive_beside(federation, kill)
    assert len(started) >= 5
    check(federation, tmp_path)


@pytest.mark.minutes
@pytest.mark.parametrize("when", ["workers join", "rounds go on"])
def test_the_process_that_workers_are_forked_from_is_made_again(home, tmp_path, when):
    """Its workers would live on, but their exit codes could no longer be read."""
    federation = digits(home, tmp_path, 200)
    killed: list[int] = []

    def kill(over: threading.Event) -> None:
        while not over.is_set() and not killed:
            server = fork_server()
            begun = len(workers()) == 2 and (when == "workers join" or read_done(federation.store) > 0)
            if server is not None and begun:
                server.kill()
                killed.append(server.pid)
            time.sleep(0.001)

    drive_beside(federation, kill)
    assert killed
    check(federation, tmp_path)
