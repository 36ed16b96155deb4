"""Dask preload that plants faults in workers: a halt in a round, and errors that quote records.

Files in the folder LOCALITY_FOLDER switch the faults, so that the same workers serve several runs. No code of the
project uses it.
"""

from __future__ import annotations

import importlib
import json
import os
import time
from functools import wraps
from pathlib import Path
from typing import Any

import pyarrow as pa

FAULTS = {
    "gradient": "fedcore.models.linear:weighted_sum",
    "approval": "fedcore.models.linear:residual_bounds",
    "opening": "fedcore.data.columns:feature_matrix",
    "cleaning": "fedcore.data.silo_file:prepare_records",
}
HALT = "fedcore.silo.site:Site.answer"


def dask_setup(worker: Any) -> None:
    """Called by Dask in each worker that has this file as a preload."""
    folder = Path(os.environ["LOCALITY_FOLDER"])
    for name, target in FAULTS.items():
        _wrap(target, lambda *args, name=name: _fail(folder / name, args))
    _wrap(HALT, lambda site, query, *lease: _halt(folder, query))


def _fail(switch: Path, args: tuple[Any, ...]) -> None:
    if switch.exists():
        message = " ".join(_quoted(value) for value in args)
        raise pa.ArrowInvalid(message) if switch.name == "opening" else ValueError(message)


def _quoted(value: Any) -> str:
    if isinstance(value, pa.Table):
        return str(value.to_pydict())
    return repr(value.tolist()) if hasattr(value, "tolist") else ""


def _halt(folder: Path, query: bytes) -> None:
    """Waits in the round that the file `halt` names, while that file exists."""
    switch = folder / "halt"
    phase, round = json.loads(query.partition(b"\n")[0])[2:4]
    while switch.exists() and switch.read_text() == f"{phase}.{round}":
        (folder / f"halted-{os.getpid()}").touch()
        time.sleep(0.05)


def _wrap(target: str, before: Any) -> None:
    module, _, path = target.partition(":")
    *owners, name = path.split(".")
    owner: Any = importlib.import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    real = getattr(owner, name)

    @wraps(real)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        before(*args)
        return real(*args, **kwargs)

    setattr(owner, name, wrapped)
