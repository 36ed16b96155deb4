"""CPU-seconds of a command and of all processes that it starts, by process and by part of the project.

The command's descendants, also those that outlive it, become children of a reaper process, which waits for them
(prctl(2), PR_SET_CHILD_SUBREAPER). The kernel's total for them is compared with the sum of the sampled parts.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.process.import_path import safe_environment

PR_SET_CHILD_SUBREAPER = 36
SAMPLING = Path(__file__).parent / "sampling"


@dataclass(frozen=True)
class Cost:
    """Cost of a command. `wall`: its seconds; `cpu`: CPU-seconds of all processes, also those that ended later.

    `peak`: MB of the largest process; `parts`: CPU-seconds by (process, part).
    """

    wall: float
    cpu: float
    peak: float
    parts: dict[tuple[str, str], float]

    @property
    def seen(self) -> float:
        return sum(self.parts.values())


def cost(command: Sequence[str], home: Path, after: Sequence[str] | None = None) -> Cost:
    """Runs the command, waits for all that it started, and returns the cost. Raises RuntimeError if it fails.

    `after`: a second command, not counted in `wall`, that ends processes which the first one leaves running.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "cost.json")
        subprocess.run(
            [sys.executable, "-P", "-m", "benchmarks.processes", str(report), json.dumps([command, after])],
            env=safe_environment(os.environ) | {"FEDCORE_HOME": str(home)},
            check=True,
            stdin=subprocess.DEVNULL,
        )
        whole = json.loads(report.read_text())
        parts: dict[tuple[str, str], float] = {}
        for path in Path(folder).glob("*.json"):
            found = json.loads(path.read_text())
            if path == report or "parts" not in found:
                continue
            process = _process(found["argv"])
            for part, seconds in found["parts"].items():
                parts[process, part] = parts.get((process, part), 0.0) + seconds
    if whole["code"] != 0:
        raise RuntimeError(f"{' '.join(command)} ended with exit code {whole['code']}")
    return Cost(whole["wall"], whole["cpu"], whole["peak"], parts)


def machine() -> dict[str, Any]:
    """Versions and cores of this machine, and its load before a benchmark."""
    versions = {"python": platform.python_version(), "numpy": np.__version__}
    return versions | {"cores": len(os.sched_getaffinity(0)), "load": os.getloadavg(), "blas_threads": 1}


def _process(argv: Sequence[str]) -> str:
    """A short name of the process with this command line."""
    line = " ".join(argv)
    if "flows.services.supervisor" in line:
        return "Prefect server"
    if "multiprocessing" in line:
        return "Dask workers"
    return "driver"


def _reap(report: str, commands: list[list[str] | None]) -> None:
    """Runs the first command, then the second, waits for all descendants, and writes their cost to `report`."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    command, after = commands
    if command is None:
        raise SystemExit("no command")
    paths = [str(SAMPLING), *safe_environment(os.environ).get("PYTHONPATH", "").split(os.pathsep)]
    sampled = safe_environment(os.environ) | {"PYTHONPATH": os.pathsep.join(paths)}
    sampled["FEDCORE_BENCH_SAMPLES"] = str(Path(report).parent)
    began = time.monotonic()
    code = subprocess.run(command, env=sampled, stdout=subprocess.DEVNULL).returncode
    wall = time.monotonic() - began
    if after is not None:
        subprocess.run(after, env=sampled, stdout=subprocess.DEVNULL)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime
    Path(report).write_text(json.dumps({"code": code, "wall": wall, "cpu": cpu, "peak": used.ru_maxrss / 1024}))


if __name__ == "__main__":
    _reap(sys.argv[1], json.loads(sys.argv[2]))
