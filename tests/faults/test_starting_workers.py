"""Workers of the local cluster that are killed while it starts: made again, or a sentence; never a traceback."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import yaml

from tests.faults.federation import Federation
from tests.patience import HANGS

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


def digits(home: Path, folder: Path) -> Federation:
    """The digits in few rounds, on two workers."""
    values = yaml.safe_load(DIGITS.read_text())
    values["algorithm"] |= {"rounds": [2, 1, 1], "max_phases": 3}
    values |= {"name": folder.name, "cluster": {"workers": 2}, "tracking": {"mlflow": False}}
    config = folder / "digits.yaml"
    config.write_text(yaml.safe_dump(values))
    return Federation(home, config, folder / "log")


def plant(folder: Path, patch: pytest.MonkeyPatch, delay: float | None, lives: int) -> Path:
    """Has site-1 killed before it joins (None), or this many seconds after it has, as long as it has lives to lose."""
    preload, deaths = folder / "dying.py", folder / "deaths"
    preload.write_text(PRELOAD.format(delay=delay, lives=lives, deaths=str(deaths)))
    patch.setenv("DASK_DISTRIBUTED__WORKER__PRELOAD", repr([str(preload)]))
    return deaths


def check(federation: Federation, scratch: Path) -> None:
    np.testing.assert_array_equal(federation.weights(), federation.undisturbed(scratch))
    assert federation.state() == "FINISHED"


# What comes before and right after the worker's own word that it has started, to its silos' first use and beyond.
LATER = [pytest.param(delay, marks=pytest.mark.minutes) for delay in (0.0, 0.005, 0.03, 0.3)]


@pytest.mark.parametrize("delay", [None, *LATER])
def test_a_worker_that_is_killed_while_the_cluster_starts_is_made_again(home, tmp_path, monkeypatch, delay):
    deaths = plant(tmp_path, monkeypatch, delay, lives=1)
    federation = digits(home, tmp_path)
    process = federation.start("run", str(federation.config), "--json")
    _, err = process.communicate(timeout=HANGS)
    assert process.returncode == 0 and "Traceback" not in err, err
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
    monkeypatch.delenv("DASK_DISTRIBUTED__WORKER__PRELOAD")
    federation.resume()
    check(federation, tmp_path)


@pytest.mark.minutes
@pytest.mark.parametrize("age", [0.0, 0.5, 1.0])
def test_workers_that_are_killed_at_this_age_from_outside_are_made_again(home, tmp_path, age):
    """Both, once: from before they are Python to after they have joined. Nothing of theirs helps to find the moment."""
    federation = digits(home, tmp_path)
    process = federation.start("run", str(federation.config), "--json")
    first_seen: dict[int, float] = {}
    killed: set[int] = set()

    def kill() -> None:
        driver = psutil.Process(process.pid)
        while process.poll() is None:
            children = []
            with contextlib.suppress(psutil.Error):  # the driver may end at this moment
                children = driver.children()
            for child in children:
                with contextlib.suppress(psutil.Error):
                    born = first_seen.setdefault(child.pid, time.monotonic())
                    if child.pid in killed or time.monotonic() < born + age:
                        continue
                    if "multiprocessing.spawn" in " ".join(child.cmdline()):
                        child.kill()
                        killed.add(child.pid)
                        if len(killed) == 2:
                            return
            time.sleep(0.001)

    killing = threading.Thread(target=kill)
    killing.start()
    _, err = process.communicate(timeout=HANGS)
    killing.join()
    assert process.returncode == 0 and "Traceback" not in err, err
    assert len(killed) == 2
    check(federation, tmp_path)
