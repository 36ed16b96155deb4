"""Samples this process from an extra thread, and writes CPU-seconds by part of the project to a file.

Python imports a module of this name at its start. So every process with this folder on PYTHONPATH, and a folder in
FEDCORE_BENCH_SAMPLES, is sampled from its first import on. The sampler reads each thread's CPU clock every few
milliseconds, and adds the increment to the part of the thread's stack at that moment. Times by part add up to the
process's own. Threads without Python frames are one further part.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import threading
import time
from functools import partial
from types import CodeType, FrameType
from typing import Any

INTERVAL = 0.007
"""Seconds between samples; no multiple of other periods of a few milliseconds."""
WRITE_EVERY = 0.25
BURST = 0.001
"""CPU-seconds between samples of a party; the kernel rounds them up to its tick."""
SWITCH = 1e-4
IMPORTS = "imports"
ELSEWHERE = "elsewhere"
UNSEEN = "threads without Python"

PLACES: tuple[tuple[str, str], ...] = (
    ("<frozen importlib._bootstrap", IMPORTS),
    ("/tasks/mlflow/", "MLflow writer: {function}"),
    ("/tasks/tracking/", "tracking: queue"),
    ("/tasks/run_store.py", "checkpoint"),
    ("/tasks/run_file.py", "checkpoint"),
    ("/tasks/result_file.py", "checkpoint"),
    ("/tasks/workers/holder.py", "site: holder"),
    ("/tasks/workers/cluster.py", "Dask: cluster"),
    ("/tasks/workers/sites.py", "Dask: calls"),
    ("/tasks/workers/places.py", "Dask: calls"),
    ("/tasks/training.py", "rounds: driver"),
    ("/tasks/run_result.py", "rounds: driver"),
    ("/fedcore/federation/", "rounds: driver"),
    ("/fedcore/algorithms/", "rounds: driver"),
    ("/fedcore/silo/opening.py", "opening silos"),
    ("/fedcore/data/", "opening silos"),
    ("/fedcore/silo/agreement.py", "approval"),
    ("/fedcore/silo/approval.py", "approval"),
    ("/fedcore/silo/account.py", "accounts and closing"),
    ("/fedcore/silo/simulated.py", "evaluation"),
    ("/fedcore/accounting/", "plan and calibration"),
    ("/fedcore/planning/", "plan and calibration"),
    ("/fedcore/experiment/", "configs and plans"),
    ("/fedcore/configfile/", "configs and plans"),
    ("/fedcore/models/", "arithmetic"),
    ("/fedcore/losses/", "arithmetic"),
    ("/fedcore/mechanisms/", "noise"),
    ("/fedcore/ledger/", "ledger"),
    ("/fedcore/silo/", "rounds: site"),
    ("/fedcore/messages.py", "messages"),
    ("/fedcore/arrays.py", "messages"),
    ("/flows/reports/", "reports"),
    ("/flows/sweep_budget.py", "reports"),
    ("/flows/training.py", "flows: training"),
    ("/flows/sweep", "flows: sweep"),
    ("/flows/", "flows"),
    ("/benchmarks/sampling/", "this profile"),
    ("/distributed/", "Dask"),
    ("/prefect/server/", "Prefect server"),
    ("/prefect/", "Prefect driver"),
    ("/uvicorn/", "Prefect server"),
    ("/mlflow/", "MLflow"),
)
SERVICES: tuple[tuple[str, str], ...] = (
    ("/fedcore/identity/sequences.py", "sequence numbers"),
    ("/fedcore/identity/", "signatures, seals, headings"),
    ("/fedcore/relay/mailboxes.py", "mailboxes"),
    ("/fedcore/relay/", "relay's rules"),
    ("/fedcore/remote/", "forms of calls"),
    ("/fedcore/federation/", "rounds: driver"),
    ("/tasks/relay/line.py", "HTTP client"),
    ("/tasks/relay/client.py", "client of a relay"),
    ("/tasks/relay/", "loops of driver and silo"),
    ("/flows/carriers/", "HTTP server"),
    ("/flows/services/door.py", "HTTP server"),
    ("/uvicorn/", "HTTP server"),
    ("/h11/", "HTTP server"),
    ("/starlette/", "HTTP server"),
    ("/fastapi/", "HTTP server"),
    ("/anyio/", "HTTP server"),
    ("/asyncio/", "HTTP server"),
)
"""Parts of a federation's processes, before the others where FEDCORE_BENCH_PARTIES is set."""
if os.environ.get("FEDCORE_BENCH_PARTIES"):
    PLACES = SERVICES + PLACES
WITHIN: dict[tuple[str, str], str] = {
    ("/fedcore/silo/site.py", "agree"): "approval",
    ("/fedcore/silo/private_silo.py", "approve"): "approval",
    ("/fedcore/silo/private_silo.py", "compare"): "approval",
    ("/fedcore/silo/private_silo.py", "_shard"): "approval",
    ("/fedcore/silo/site.py", "accounts"): "accounts and closing",
    ("/fedcore/silo/site.py", "close_run"): "accounts and closing",
    ("/fedcore/silo/site.py", "simulated"): "evaluation",
    ("/tasks/training.py", "_values"): "evaluation",
    ("/tasks/training.py", "finish"): "accounts and closing",
}


def _part(code: CodeType) -> str | None:
    """The part of a function's code; None if no entry matches."""
    path, function = code.co_filename, code.co_name
    for (file, name), part in WITHIN.items():
        if name == function and path.endswith(file):
            return part
    for piece, part in PLACES:
        if piece in path:
            return part.format(function=function)
    return None


class Sampler(threading.Thread):
    """Adds up the CPU-seconds of every thread by part."""

    def __init__(self, path: str) -> None:
        super().__init__(name="fedcore-bench-sampler", daemon=True)
        self._path = path
        self._seen: dict[int, float] = {}
        self._parts: dict[str, float] = {}
        self._known: dict[int, tuple[CodeType, str | None]] = {}
        self._guard = threading.Lock()

    def run(self) -> None:
        # A thread gives up the interpreter's lock when it waits, or this long after another requests it. With Python's
        # default of 5 ms a sample would mostly see threads where they wait.
        sys.setswitchinterval(SWITCH)
        written = time.monotonic()
        while True:
            time.sleep(INTERVAL)
            self.sample()
            if time.monotonic() - written > WRITE_EVERY:
                self.write()
                written = time.monotonic()

    def sample(self) -> None:
        with self._guard:
            alive = {}
            # While this thread holds the interpreter's lock, no thread that has a frame can end, so its clock exists.
            for ident, frame in sys._current_frames().items():
                used = time.clock_gettime(time.pthread_getcpuclockid(ident))
                gained = used - self._seen.get(ident, 0.0)
                # Thread numbers are reused: a clock that went back belongs to another thread.
                gained = used if gained < 0 else gained
                alive[ident] = used
                if gained > 0:
                    part = self._part_of(frame)
                    self._parts[part] = self._parts.get(part, 0.0) + gained
            self._seen = alive

    def _part_of(self, frame: FrameType | None) -> str:
        try:
            return self._of(frame)
        except AttributeError:  # in Python 3.11 a frame may end and vanish during the walk
            return ELSEWHERE

    def _of(self, frame: FrameType | None) -> str:
        while frame is not None:
            code = frame.f_code
            known = self._known.get(id(code))  # hashing a code object itself would hash all its constants
            if known is None:
                known = self._known[id(code)] = code, _part(code)
            if known[1] is not None:
                return known[1]
            frame = frame.f_back
        return ELSEWHERE

    def write(self) -> None:
        with self._guard:
            self._write()

    def _write(self) -> None:
        parts = dict(self._parts)
        parts[UNSEEN] = max(0.0, time.process_time() - sum(parts.values()))
        report: dict[str, Any] = {"argv": getattr(sys, "orig_argv", []), "cpu": time.process_time(), "parts": parts}
        making = f"{self._path}.making"
        with open(making, "w") as file:
            json.dump(report, file)
        os.replace(making, self._path)

    def end(self) -> None:
        self.sample()
        self.write()


class BurstSampler(Sampler):
    """Samples the main thread each time that the process has used some CPU time.

    A silo works for a millisecond and waits for more: a sampler by the wall clock would mostly see it where it waits.
    """

    def start(self) -> None:
        signal.signal(signal.SIGPROF, self._take)
        signal.setitimer(signal.ITIMER_PROF, BURST, BURST)
        super().start()

    def run(self) -> None:
        while True:
            time.sleep(WRITE_EVERY)
            self.write()

    def sample(self) -> None:
        """Ends the signals, before the interpreter ends their handler: they take all samples."""
        signal.setitimer(signal.ITIMER_PROF, 0.0)

    def _take(self, number: int, frame: FrameType | None) -> None:
        used = time.process_time()
        part = self._part_of(frame)
        self._parts[part] = self._parts.get(part, 0.0) + used - self._seen.get(0, 0.0)
        self._seen[0] = used


def _sample(folder: str) -> Sampler:
    """Starts the sampler of this process."""
    kind = BurstSampler if os.environ.get("FEDCORE_BENCH_PARTIES") else Sampler
    sampler = kind(os.path.join(folder, f"{os.getpid()}.json"))
    sampler.start()
    return sampler


_folder = os.environ.get("FEDCORE_BENCH_SAMPLES")
if _folder and os.path.isdir(_folder):
    atexit.register(_sample(_folder).end)
    # A fork has none of its parent's threads, its CPU clock begins at 0, and its end runs no `atexit`.
    os.register_at_fork(after_in_child=partial(_sample, _folder))
