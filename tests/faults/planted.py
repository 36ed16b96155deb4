"""SIGKILL planted at a named step of a run, in whichever process reaches it first: for child processes of tests only.

The product is unchanged: its functions are wrapped from outside, and SQLite's trace shows SQL statements. Three ways
in: `plant()` in a forked child, `python planted.py ARGUMENTS` for the command line, and Dask's preload for workers.

Environment: FAULT_STEP; FAULT_COUNT (number of the occurrence); FAULT_FILE (made at the kill, so it happens once);
FAULT_VICTIM (self, a pid, or prefect: the pid of the home's Prefect server); FAULT_SENT (file with every release that
left a site).
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Step:
    """A boundary in the code: before or after a call, or before a SQL statement of a class's connection."""

    target: str
    when: str = "before"
    ledger: str = "both"


_SQLITE, _ROUND = "fedcore.ledger.sqlite", "fedcore.silo.columns.members"
RELEASE = {
    "before the cap check": Step(f"{_SQLITE}:admit", ledger="sqlite"),
    "after the cap check, before its commit": Step(f"{_SQLITE}:admit", "after", "sqlite"),
    "approval committed, before the anchor": Step(f"{_SQLITE}:SqliteLedger._write_anchor", ledger="sqlite"),
    "run approved by one silo": Step("fedcore.silo.private_silo:PrivateSilo.approve", "after"),
    "before the gradient": Step("fedcore.silo.round_view:RoundView.ask", ledger="sqlite"),
    "before the gradients of a site": Step("fedcore.silo.columns.matrix_view:MatrixView.ask", ledger="memory"),
    "before the noise": Step("fedcore.mechanisms.gaussian:SeededGaussian.rows"),
    "after the noise": Step("fedcore.mechanisms.gaussian:SeededGaussian.rows", "after"),
    "before the noise on the grid": Step("fedcore.mechanisms.grid:GridGaussian.noised", ledger="guarded"),
    "after the noise on the grid": Step("fedcore.mechanisms.grid:GridGaussian.noised", "after", "guarded"),
    "before the commit": Step(f"{_SQLITE}:SqliteLedger.commit", ledger="sqlite"),
    "in the transaction, before COMMIT": Step(f"{_SQLITE}:SqliteLedger._append", "after", "sqlite"),
    "after COMMIT, before the anchor": Step(f"{_SQLITE}:SqliteLedger._write_anchor", ledger="sqlite"),
    "after the anchor": Step(f"{_SQLITE}:SqliteLedger.commit", "after", "sqlite"),
    "before the commit in memory": Step(f"{_ROUND}:commit_round", ledger="memory"),
    "after the commit in memory": Step(f"{_ROUND}:commit_round", "after", "memory"),
    "one silo committed, others to come": Step("fedcore.silo.private_silo:PrivateSilo.answer", "after", "sqlite"),
    "before the send": Step("fedcore.silo.site:Site.answer", "after inside"),
    "after the send": Step("fedcore.silo.site:Site.answer", "after"),
}
DRIVER = {
    "before the checkpoint": Step("tasks.run_store:RunStore.save"),
    "in the checkpoint, before COMMIT": Step("tasks.run_store:RunStore._connect", "COMMIT"),
    "after the checkpoint": Step("tasks.run_store:RunStore.save", "after"),
    "after the answers, before the fold": Step("fedcore.federation.rounds:RunContext.fold"),
    "after the fold": Step("fedcore.federation.rounds:RunContext.fold", "after"),
    "before the ledgers are compared": Step("fedcore.silo.site:Site.accounts"),
    "before the run is closed": Step("fedcore.silo.site:Site.close_run"),
    "closed at one silo": Step("fedcore.silo.private_silo:PrivateSilo.close_run", "after"),
    "closed, before the result": Step("fedcore.silo.site:Site.close_run", "after"),
    "between two result files": Step("flows.run_publication:write_atomically", "after"),
}
STEPS = RELEASE | DRIVER


def plant(step: str | None, count: int = 1) -> None:
    """Wraps what leaves a site into a log of sends, then the step (if any) into a kill at its `count`-th occurrence."""
    place = STEPS[step] if step else None
    if place is not None and place.when == "after inside":
        _wrap(place.target, after=_Kill(step, count))
    _wrap("fedcore.silo.site:Site.answer", after=_log_sends)
    if place is None or place.when == "after inside":
        return
    kill = _Kill(step, count)
    if place.when == "before":
        _wrap(place.target, before=kill)
    elif place.when == "after":
        _wrap(place.target, after=kill)
    else:
        _wrap(
            place.target,
            after=lambda db: db.set_trace_callback(lambda statement: kill() if statement == place.when else None),
        )


class _Kill:
    def __init__(self, step: str, count: int) -> None:
        self._step, self._left = step, count

    def __call__(self, *_: Any) -> None:
        self._left -= 1
        if self._left != 0:
            return
        try:
            file = os.open(os.environ["FAULT_FILE"], os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileExistsError:  # another process, or this one before it was started again
            return
        os.write(file, f"{self._step}|{os.getpid()}".encode())
        os.fsync(file)
        os.kill(_victim(), signal.SIGKILL)


def _victim() -> int:
    if os.environ.get("FAULT_VICTIM", "").isdigit():
        return int(os.environ["FAULT_VICTIM"])
    if os.environ.get("FAULT_VICTIM") == "prefect":
        return int(json.loads((Path(os.environ["FEDCORE_HOME"]) / "services" / "prefect.json").read_text())["pid"])
    return os.getpid()


def _log_sends(bundle: bytes) -> None:
    """Reads the answer as a stranger would: two JSON lines, a digest of 32 bytes per silo, then a payload per silo."""
    address, names, rest = bundle.split(b"\n", 2)
    (phase, round), silos = json.loads(address), json.loads(names)
    size = len(rest) // len(silos) - 32 if silos else 0
    payloads = [rest[32 * len(silos) + size * at :][:size] for at in range(len(silos))]
    sent = zip(silos, payloads, strict=True)
    lines = "".join(f"{silo} {phase} {round} {hashlib.sha256(data).hexdigest()}\n" for silo, data in sent)
    log = os.open(os.environ["FAULT_SENT"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(log, lines.encode())
    os.close(log)


def _wrap(target: str, before: Callable[..., None] | None = None, after: Callable[..., None] | None = None) -> None:
    module, _, path = target.partition(":")
    *owners, name = path.split(".")
    owner: Any = importlib.import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    real = getattr(owner, name)

    @wraps(real)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            before()
        result = real(*args, **kwargs)
        if after is not None:
            after(result)
        return result

    setattr(owner, name, wrapped)
    _wrapped.append((owner, name, real))


_wrapped: list[tuple[Any, str, Any]] = []


def plant_anew(environment: dict[str, str], step: str | None, count: int) -> None:
    """`plant`, in a process that lives on, in place of what was planted there before."""
    while _wrapped:
        setattr(*_wrapped.pop())
    os.environ.update(environment)
    plant(step, count)


def dask_setup(worker: Any) -> None:
    """Dask calls this in each worker that has this file as a preload."""
    plant(os.environ.get("FAULT_STEP"), int(os.environ.get("FAULT_COUNT", "1")))


if __name__ == "__main__":
    from flows.commands.app import main

    if os.environ.get("FAULT_ROLE") == "driver":
        plant(os.environ.get("FAULT_STEP"), int(os.environ.get("FAULT_COUNT", "1")))
    sys.argv = ["fedcore", *sys.argv[1:]]
    main()
