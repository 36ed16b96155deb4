"""CPU time of a round over silo services, by process and part: sampled, and summed over all silos' processes.

The parties run as in `benchmarks.services`, each with a sampler (`benchmarks/sampling`). CPU time hardly depends on
what else the machine does, so two versions of the code compare by it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.parties import Parties
from benchmarks.processes import SAMPLING
from benchmarks.workload import RECORDS
from fedcore.process.import_path import safe_environment

WARM_UP, SEEN = 10, 0.7
"""Rounds before the measured ones, and seconds after which every sampler has written its report."""
KINDS, PLAYER = ("relay", "silo"), "benchmarks.light_silos"
LIGHT = 50
"""Records of a light silo."""


def services_split(silos: int, rounds: int, folder: Path, players: int | None = None) -> dict[str, Any]:
    """CPU ms per round by (process, part), the median of the wall clock, and the memory of relay and driver (MB).

    `players`: processes that play all silos (`benchmarks.light_silos`), in place of a service for each.
    """
    samples = folder / "samples"
    samples.mkdir(parents=True)
    paths = [str(SAMPLING), *safe_environment(os.environ).get("PYTHONPATH", "").split(os.pathsep)]
    own = {"PYTHONPATH": os.pathsep.join(paths), "FEDCORE_BENCH_SAMPLES": str(samples), "FEDCORE_BENCH_PARTIES": "1"}
    before = {key: os.environ.get(key) for key in own}
    records = RECORDS if players is None else LIGHT
    parties = Parties.made(folder / "home", silos, together=False, records=records)
    os.environ.update(own)
    try:
        running = parties.services() if players is None else parties.players(players)
        with parties.relay() as relay, running:
            command = [sys.executable, "-m", "benchmarks.services_split", str(parties.folder), str(parties.port)]
            environment = {**safe_environment(os.environ), "FEDCORE_HOME": str(parties.folder)}
            numbers = [str(silos), str(rounds), str(samples)]
            done = subprocess.run([*command, *numbers], env=environment, stdout=subprocess.PIPE, check=True)
            found = dict(json.loads(done.stdout.splitlines()[-1]))
            return found | {"relay_mb": _peak(relay.pid)}
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


def drive(parties: Parties, rounds: int, samples: Path) -> dict[str, Any]:
    """The driver's side: rounds, and the growth of all samplers' reports over them."""
    from benchmarks.services import experiment
    from benchmarks.variants import serve_rounds
    from flows.driver.federated import federated

    found: dict[str, Any] = {}

    def serve(step: Any) -> None:
        for _ in range(WARM_UP):
            step()
        time.sleep(SEEN)
        before, walls = _reports(samples), []
        for _ in range(rounds):
            began = time.perf_counter()
            step()
            walls.append(time.perf_counter() - began)
        time.sleep(SEEN)
        parts = {key: (value - before.get(key, 0.0)) * 1e3 / rounds for key, value in _reports(samples).items()}
        rows = [[process, part, ms] for (process, part), ms in sorted(parts.items(), key=lambda each: -each[1])]
        found.update(
            silos=len(parties.silos),
            rounds=rounds,
            wall_median_ms=statistics.median(walls) * 1e3,
            cpu_ms={kind: sum(row[2] for row in rows if row[0] == kind) for kind in ("driver", *KINDS)},
            driver_mb=_peak(os.getpid()),
            parts=[row for row in rows if row[2] >= 0.05],
        )

    planned = experiment(parties, WARM_UP + rounds)
    serve_rounds(serve, planned, federated(planned, parties.home, int(time.time() * 1000), lambda line: None))
    return found


def _peak(pid: int) -> float:
    """Largest resident MB of a process until now."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def _reports(samples: Path) -> dict[tuple[str, str], float]:
    """CPU-seconds until now by (process, part)."""
    found: dict[tuple[str, str], float] = {}
    for path in samples.glob("*.json"):
        report = json.loads(path.read_text())
        argv = report["argv"]
        process = "silo" if PLAYER in argv else next((kind for kind in KINDS if kind in argv), "driver")
        for part, seconds in report["parts"].items():
            found[process, part] = found.get((process, part), 0.0) + seconds
    return found


if __name__ == "__main__":
    _folder, _port, _silos, _rounds, _samples = sys.argv[1:]
    _names = tuple(f"silo-{index:04d}" for index in range(int(_silos)))
    print(json.dumps(drive(Parties(Path(_folder), _names, False, int(_port)), int(_rounds), Path(_samples))))
