"""With `fedcore up`: a sweep by cron on its Dask cluster. Silos refuse three of its cells, and Retry on the page and
`fedcore retry` run only these."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from fedcore.home import Home
from flows.services.machine import down, up
from flows.services.secret import basic, secret
from tests.flows.test_deployments import KNOWN, call, wait_until_over
from tests.patience import HANGS
from tests.policies import write_policy
from tests.ports import ports_to_oneself

pytestmark = [pytest.mark.slow, pytest.mark.minutes, pytest.mark.faults]

CELLS, ALLOWED = 20, 17


class Machine:
    """A home with its services, and the folder of the silos' policies."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home, self.policies, self.log = root / "home", root / "policies", root / "silos.log"
        self.register = root / "register"
        self.api = ""

    def fedcore(self, *words: str, code: int = 0) -> str:
        environment = {
            **os.environ,
            "FEDCORE_HOME": str(self.home),
            "FEDCORE_SILO_LOG": str(self.log),
            "FEDCORE_REGISTER": str(self.register),
        }
        command = [sys.executable, "-m", "flows.commands.app", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANGS)
        assert done.returncode == code, (done.stdout, done.stderr)
        return done.stdout + done.stderr

    def register_silos(self, config: Path) -> None:
        """Registers the data of a sweep, as the silos' operators do once."""
        output = self.fedcore("budget", "register", "--new", str(config))
        assert output.count("has an account from here on") == 2, output

    def allow(self, runs: int) -> None:
        """Replaces the silos' policies by ones with another number of runs, as their operators do."""
        write_policy(self.policies, runs=runs)

    def write(self, name: str, scheduled: str) -> Path:
        values = {
            "name": name,
            "base": {
                "data": {"source": "synthetic", "silos": 2, "records": 60, "features": 3, "test_records": 50},
                "privacy": {"ledger": "sqlite", "noise": "guarded", "epsilon": 1},
                "algorithm": {"name": "mbsgd", "step": 1, "rounds": 3},
                "orchestration": {"scheduled": scheduled},
            },
            "grid": {"privacy.epsilon": [1, 2, 4, 8], "algorithm.step": [0.25, 0.5, 1, 2, 4]},
        }
        path = self.root / f"{name}.yaml"
        path.write_text(yaml.safe_dump(values))
        return path

    def firings(self, name: str) -> list[dict[str, Any]]:
        """Due flow runs that schedules made of a config."""
        return self._fired(name, {"not_any_": ["SCHEDULED", "PENDING"]})

    def _fired(self, name: str, states: dict[str, list[str]]) -> list[dict[str, Any]]:
        wanted = {"flow_runs": {"state": {"type": states}}, "sort": "START_TIME_ASC"}
        found = call(f"{self.api}/flow_runs/filter", wanted)
        return [each for each in found if each["auto_scheduled"] and each["parameters"]["name"] == name]

    def settle(self, name: str) -> None:
        """Waits for firings of a paused schedule that were started before: a start may take a minute."""
        until = time.monotonic() + HANGS
        while self._fired(name, {"any_": ["PENDING", "RUNNING"]}):
            assert time.monotonic() < until
            time.sleep(0.5)

    def answered(self) -> list[str]:
        """Runs in the order of their first answers."""
        lines = self._lines()
        return list(dict.fromkeys(words[2] for words in lines if words[1] == "end"))

    def rounds(self) -> int:
        return sum(words[1] == "end" for words in self._lines())

    def _lines(self) -> list[list[str]]:
        """Lines of the silos' log, which the first answer creates."""
        return [line.split() for line in self.log.read_text().splitlines()] if self.log.exists() else []


@pytest.fixture(scope="module")
def machine(tmp_path_factory) -> Iterator[Machine]:
    root = tmp_path_factory.mktemp("scheduled")
    with ports_to_oneself():
        home, made = Home(root / "home"), Machine(root)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PREFECT_RUNNER_POLL_FREQUENCY", "1")
            patch.setenv("FEDCORE_SILO_LOG", str(made.log))
            patch.setenv("FEDCORE_REGISTER", str(made.register))
            # The services' workers have policies that a command's process lacks.
            patch.setenv("FEDCORE_POLICIES", str(made.policies))
            made.allow(ALLOWED)
            started = up(home, workers=2)
    made.api = started.addresses["prefect"]
    KNOWN[urlsplit(made.api).netloc] = basic(secret(home))
    made.register_silos(made.write("registered", "unfinished"))
    yield made
    down(home)


@pytest.mark.hours
def test_a_cron_runs_a_sweep_and_retry_only_what_was_refused(machine):
    machine.allow(ALLOWED)
    nightly = machine.write("nightly", "unfinished")
    output = machine.fedcore("schedule", "add", str(nightly), "--cron", "* * * * *")
    assert "sweep nightly" in output and f"{CELLS} runs" in output and "paused once a silo's cap or policy" in output
    until = time.monotonic() + HANGS
    while not (fired := machine.firings("nightly")):
        assert time.monotonic() < until
        time.sleep(0.5)
    flow_run = f"{machine.api}/flow_runs/{fired[0]['id']}"
    over = wait_until_over(flow_run)
    assert over["state"]["type"] == "FAILED", over["state"]
    assert f"runs = {ALLOWED}" in over["state"]["message"] and "3 of 20 cells" in over["state"]["message"]
    assert len(machine.answered()) == ALLOWED
    rounds = machine.rounds()
    assert rounds == ALLOWED * 2 * 3
    (schedule,) = json.loads(machine.fedcore("schedule", "list", "--json"))
    assert not schedule["active"] and schedule["next"] is None, "the next firing would be refused as well"

    machine.settle("nightly")
    assert machine.rounds() == rounds, "a second firing is refused as well, or skipped"
    machine.allow(ALLOWED + 1)
    state = {"type": "SCHEDULED", "name": "AwaitingRetry", "message": "Retry from the UI"}
    assert call(f"{flow_run}/set_state", {"state": state, "force": True})["status"] == "ACCEPT"
    until = time.monotonic() + HANGS
    while (again := call(flow_run))["run_count"] < 2 or again["state"]["type"] != "FAILED":
        assert time.monotonic() < until and again["state"]["type"] != "COMPLETED", again["state"]
        time.sleep(0.5)
    assert "2 of 20 cells" in again["state"]["message"]
    assert machine.rounds() == rounds + 2 * 3, "of the 17 others no silo was asked again"

    machine.allow(1000)
    sweep = next(tag.removeprefix("sweep:") for tag in again["tags"] if tag.startswith("sweep:"))
    assert "20" in machine.fedcore("retry", sweep)
    assert machine.rounds() == CELLS * 2 * 3
    assert len(machine.answered()) == CELLS

    before = {each["id"] for each in machine.firings("nightly")}
    assert "fires again" in machine.fedcore("schedule", "resume", "nightly")
    until = time.monotonic() + HANGS
    while not (fired := [each for each in machine.firings("nightly") if each["id"] not in before]):
        assert time.monotonic() < until
        time.sleep(0.5)
    assert wait_until_over(f"{machine.api}/flow_runs/{fired[0]['id']}")["state"]["type"] == "COMPLETED"
    assert machine.rounds() == CELLS * 2 * 3, "a firing of what is finished asks nobody"
    machine.fedcore("schedule", "remove", "nightly")
    assert "no schedules" in machine.fedcore("schedule", "list")


def test_each_firing_of_repetitions_runs_the_next_one_and_a_second_in_the_meantime_is_skipped(machine):
    machine.allow(1000)
    before = machine.rounds()
    output = machine.fedcore("schedule", "add", str(machine.write("again", "repetition")), "--every", "10s")
    assert "each firing is a new repetition" in output
    until = time.monotonic() + HANGS

    def completed() -> list[dict[str, Any]]:
        return [each for each in machine.firings("again") if each["state_type"] == "COMPLETED"]

    while len(completed()) < 3:
        states = {each["state_type"] for each in machine.firings("again")}
        assert time.monotonic() < until and "FAILED" not in states and "CRASHED" not in states, states
        time.sleep(0.5)
    machine.fedcore("schedule", "remove", "again")
    tags = [tag for each in completed()[:3] for tag in each["tags"] if tag.startswith("repetition:")]
    assert tags == ["repetition:0", "repetition:1", "repetition:2"]
    for each in machine.firings("again"):
        wait_until_over(f"{machine.api}/flow_runs/{each['id']}")
    over = machine.firings("again")
    whole = sum(each["state_type"] == "COMPLETED" for each in over)
    skipped = [each for each in over if each["state_type"] == "CANCELLED"]
    assert all(each["run_count"] == 0 for each in skipped), "no process was started for what runs nothing"
    assert machine.rounds() - before == whole * CELLS * 2 * 3
