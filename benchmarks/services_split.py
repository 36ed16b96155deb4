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
from fedcore.process.import_path import safe_environment

WARM_UP, SEEN = 10, 0.7
"""Rounds before the measured ones, and seconds after which every sampler has written its report."""
KINDS = ("relay", "silo")


def services_split(silos: int, rounds: int, folder: Path) -> dict[str, Any]:
    """CPU ms per round by (process, part), and the median of the wall clock, over `rounds` rounds."""
    samples = folder / "samples"
    samples.mkdir(parents=True)
    paths = [str(SAMPLING), *safe_environment(os.environ).get("PYTHONPATH", "").split(os.pathsep)]
    own = {"PYTHONPATH": os.pathsep.join(paths), "FEDCORE_BENCH_SAMPLES": str(samples), "FEDCORE_BENCH_PARTIES": "1"}
    before = {key: os.environ.get(key) for key in own}
    parties = Parties.made(folder / "home", silos, together=False)
    os.environ.update(own)
    try:
        with parties.relay(), parties.services():
            command = [sys.executable, "-m", "benchmarks.services_split", str(parties.folder), str(parties.port)]
            environment = {**safe_environment(os.environ), "FEDCORE_HOME": str(parties.folder)}
            numbers = [str(silos), str(rounds), str(samples)]
            done = subprocess.run([*command, *numbers], env=environment, stdout=subprocess.PIPE, check=True)
            return dict(json.loads(done.stdout.splitlines()[-1]))
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
            parts=[row for row in rows if row[2] >= 0.05],
        )

    planned = experiment(parties, WARM_UP + rounds)
    serve_rounds(serve, planned, federated(planned, parties.home, int(time.time() * 1000), lambda line: None))
    return found


def _reports(samples: Path) -> dict[tuple[str, str], float]:
    """CPU-seconds until now by (process, part)."""
    found: dict[tuple[str, str], float] = {}
    for path in samples.glob("*.json"):
        report = json.loads(path.read_text())
        process = next((kind for kind in KINDS if kind in report["argv"]), "driver")
        for part, seconds in report["parts"].items():
            found[process, part] = found.get((process, part), 0.0) + seconds
    return found


if __name__ == "__main__":
    _folder, _port, _silos, _rounds, _samples = sys.argv[1:]
    _names = tuple(f"silo-{index:04d}" for index in range(int(_silos)))
    print(json.dumps(drive(Parties(Path(_folder), _names, False, int(_port)), int(_rounds), Path(_samples))))
