"""Sweeps over a federation whose parties are killed and cut off at random: `resume` ends each with equal bits.

FEDCORE_KILLS is the number of kills and cuts: 300, or 20 in the shorter test. FEDCORE_CUT_FACTOR scales the cuts of
60 s and 10 min: 0.1, or 1 in full. FEDCORE_FUZZ_SEED repeats a course. All of it:

    FEDCORE_CUT_FACTOR=1 python -m pytest tests/flows/federations/test_kills.py -m hours -rP

Run keys follow from the secrets in the silos' ledgers. So copies of the parties' folders from before the first run, in
the same places, give the bits of an undisturbed sweep.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tasks.relay.calls import AGAIN
from tasks.relay.client import LONGEST
from tests.flows.federations.cut_network import CutNetwork
from tests.flows.federations.parties import CONFIG, Heart
from tests.fuzzing import fuzz_seed
from tests.patience import HANGS, SLOWNESS

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.minutes]
NAMES = ("cleveland", "hungary", "virginia")
ROUNDS = 120
SWEEP = f"""name: heart-sweep
base: heart.yaml
grid: {{seed: [0, 1]}}
variants:
  - set: {{privacy: {{epsilon: 1.0}}, algorithm: {{name: mbsgd, step: 1.0, rounds: {ROUNDS}}}}}
  - set: {{privacy: {{epsilon: 0.5}}, algorithm: {{name: mbsgd, step: 0.5, rounds: {ROUNDS}}}}}
"""
CELLS = 4
VICTIMS = {"driver": 30, "relay": 20, "silo": 28, "Prefect": 12, "cut of 60 s": 7, "cut of 600 s": 3}
"""Victims of kills and cuts, each with its weight."""
DEADLINE = (AGAIN + LONGEST) * SLOWNESS
"""Seconds within which a lost envelope is sent again, and within which a party that lost the relay comes back."""
STUCK = 2 * DEADLINE
FACTOR = float(os.environ.get("FEDCORE_CUT_FACTOR", "0.1"))


@dataclass
class Course:
    """A sweep's federation and its disturbances. `gaps`: seconds without a new answer, and the disturbances.

    Cuts do not count as seconds without an answer.
    """

    heart: Heart
    network: CutNetwork
    rng: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    codes: Counter[int] = field(default_factory=Counter)
    gaps: list[tuple[float, str]] = field(default_factory=list)
    driver: subprocess.Popen[str] | None = None
    answered: int = 0
    since: list[str] = field(default_factory=list)
    progressed: float = field(default_factory=time.monotonic)

    def run(self, kills: int) -> int:
        """Runs the sweep to its end among at most `kills` disturbances; returns their number."""
        done, fails = 0, 0
        self._drive()
        self.progressed = time.monotonic()
        while True:
            if self._ended_within(self.rng.uniform(0.0, 4.0)):
                code = self.driver.wait()
                self.codes[code] += 1
                if code == 0:
                    return done
                fails += 1
                assert fails <= 5, f"{fails} failures in a row:\n{self.heart.coordinator.log('sweep')[-3000:]}"
                self._drive()
            if done < kills:
                self._disturb()
                done, fails = done + 1, 0

    def _drive(self) -> None:
        sweeps = list((self.heart.coordinator.folder / "home" / "sweeps").glob("*/sweep.yaml"))
        command = ("resume", sweeps[0].parent.name) if sweeps else ("sweep", "sweep.yaml", "--yes")
        self.driver = self.heart.coordinator.start(*command)

    def _ended_within(self, seconds: float) -> bool:
        """True if the driver ended. Fails if nothing was answered for too long."""
        until = time.monotonic() + seconds
        while self.driver.poll() is None:
            now, answered = time.monotonic(), self._answers()
            if answered > self.answered:
                self.gaps.append((now - self.progressed, ", ".join(self.since)))
                self.answered, self.progressed, self.since = answered, now, []
            assert now - self.progressed < STUCK, f"no answer for {STUCK:g} s:\n{self._logs()}"
            if now >= until:
                return False
            time.sleep(0.05)
        return True

    def _answers(self) -> int:
        """Bytes of the silos' logs, which grow with every answer."""
        logs = [party.folder / "silo.log" for party in self.heart.silos.values()]
        return sum(path.stat().st_size for path in logs if path.exists())

    def _logs(self) -> str:
        ends = [self.heart.silos[name].log("silo")[-700:] for name in NAMES]
        drivers = [path.read_text()[-1500:] for path in self.heart.coordinator.folder.glob("*.log")]
        return "\n---\n".join([*ends, *drivers])

    def _disturb(self) -> None:
        (victim,) = self.rng.choices(list(VICTIMS), list(VICTIMS.values()))
        self.counts[victim] += 1
        self.since.append(victim)
        if victim == "driver":
            self.driver.kill()
            self.driver.wait(timeout=HANGS)
            time.sleep(self.rng.uniform(0.0, 1.0))
            self._drive()
        elif victim == "relay":
            self.heart.kill("relay")
            time.sleep(self.rng.uniform(0.0, 3.0))
            self.heart.carry()
        elif victim == "silo":
            name = self.rng.choice(NAMES)
            self.heart.kill(name)
            time.sleep(self.rng.uniform(0.0, 3.0))
            self.heart.serve(name)
        elif victim == "Prefect":
            for pid in servers(self.heart.coordinator.folder / "home"):
                os.kill(pid, signal.SIGKILL)
        else:
            self._cut(float(victim.split()[2]) * FACTOR)

    def _cut(self, seconds: float) -> None:
        name, began = self.rng.choice([None, *NAMES]), time.monotonic()
        pids = None if name is None else {self.heart.processes[name].pid}
        self.network.cut(pids, silent=self.rng.random() < 0.5)
        while time.monotonic() < began + seconds:
            time.sleep(0.05)
        self.network.mend()
        self.progressed += time.monotonic() - began


def servers(home: Path) -> list[int]:
    """Processes of this home's Prefect server."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        try:
            mine = "flows.services.supervisor" in (process.info["cmdline"] or ())
            if mine and process.environ().get("FEDCORE_HOME") == str(home):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def released(heart: Heart) -> dict[str, list[tuple]]:
    """Run, phase, round and digest of each release in the silos' ledgers, whose services are ended first."""
    found = {}
    for name in NAMES:
        heart.stop(name)
        (ledger,) = (heart.silos[name].folder / "home" / "ledgers").glob(f"*/{name}.sqlite")
        with sqlite3.connect(f"file:{ledger}?mode=ro", uri=True) as db:
            columns = "run, phase, round, payload_digest"
            found[name] = db.execute(
                f"SELECT {columns} FROM entries WHERE kind = 'release' ORDER BY 1, 2, 3"
            ).fetchall()
    return found


def models(heart: Heart) -> dict[str, bytes]:
    return {
        path.parent.name: path.read_bytes() for path in (heart.coordinator.folder / "home/runs").glob("*/model.json")
    }


@pytest.fixture
def heart(tmp_path):
    found = Heart(tmp_path / "federation", NAMES)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        found.relay_port = free.getsockname()[1]
    pids = lambda: [process.pid for name, process in list(found.processes.items()) if name in NAMES]  # noqa: E731
    network = CutNetwork(found.port, found.relay_port, pids)
    try:
        yield found, network
    finally:
        found.close()
        network.close()


def kept(heart: Heart, base: Path) -> None:
    """Ends relay and services of the coordinator, and puts the copy `base` of all folders in the place of these."""
    heart.kill("relay")
    heart.coordinator.run("down")
    shutil.rmtree(heart.root)
    shutil.copytree(base, heart.root)


def disturbed(heart: Heart, network: CutNetwork, base: Path, kills: int) -> None:
    seed, began = fuzz_seed(), time.monotonic()
    print(f"{kills} kills and cuts; cuts of {60 * FACTOR:g} and {600 * FACTOR:g} s (FEDCORE_CUT_FACTOR = {FACTOR:g})")
    heart.carry()
    for name in NAMES:
        heart.join(name)
    heart.config(ROUNDS)
    config = CONFIG % ROUNDS + "cluster: {backend: federation}\ntracking: {mlflow: false}\n"
    (heart.coordinator.folder / "heart.yaml").write_text(config)
    (heart.coordinator.folder / "sweep.yaml").write_text(SWEEP)
    heart.kill("relay")
    shutil.copytree(heart.root, base)

    heart.carry()
    heart.serve()
    heart.coordinator.run("sweep", "sweep.yaml", "--yes")
    expected, releases = models(heart), released(heart)
    assert len(expected) == CELLS and all(len(found) == CELLS * ROUNDS for found in releases.values())

    rng, done, sweeps, counts, codes, gaps = random.Random(seed), 0, 0, Counter(), Counter(), [(0.0, "")]
    while done < kills:
        kept(heart, base)
        heart.carry()
        heart.serve()
        course = Course(heart, network, rng, counts, codes, gaps)
        done += course.run(kills - done)
        sweeps += 1
        print(f"sweep {sweeps}: {done} kills, {time.monotonic() - began:.0f} s", flush=True)
        assert models(heart) == expected
        assert released(heart) == releases
    print(f"{dict(counts)}; drivers' exit codes {dict(codes)}; {len(expected) * sweeps} runs")
    for gap, why in sorted(gaps)[-3:]:
        print(f"{gap:.1f} s without an answer, after: {why}")
    assert max(gaps)[0] < STUCK


def test_a_sweep_ends_with_equal_bits_after_twenty_kills(heart, tmp_path):
    disturbed(*heart, tmp_path / "base", int(os.environ.get("FEDCORE_KILLS", "20")))


@pytest.mark.hours
def test_sweeps_end_with_equal_bits_after_three_hundred_kills(heart, tmp_path):
    disturbed(*heart, tmp_path / "base", int(os.environ.get("FEDCORE_KILLS", "300")))
