"""What a run is: the digest of its canonical parameters and the version of the code that runs it."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from fedcore import __version__
from fedcore.config import ExperimentConfig

# A silo's cap decides whether a run may go on, not what comes out of it.
_EXECUTION: dict[str, Any] = {"cluster": True, "orchestration": True, "tracking": True, "privacy": {"cap"}}

_LATER: dict[str, dict[str, Any]] = {"model": {"ridge": 0.0}, "data": {"labels": "odd-even", "classes": 2}}
"""Keys that came later, with the value that means what was done before: left out there, so old runs keep their ids."""


def canonical(config: ExperimentConfig) -> str:
    """The parameters that make the result, as canonical JSON; where and how it is executed is left out."""
    values = config.model_dump(mode="json", exclude=_EXECUTION)
    for section, keys in _LATER.items():
        for key, before in keys.items():
            if values[section].get(key) == before:
                del values[section][key]
    return json.dumps(values, sort_keys=True)


def run_id(config: ExperimentConfig) -> str:
    """The run's id: its name and 12 hex digits of the SHA-256 of its canonical parameters."""
    return f"{config.name}-{hashlib.sha256(canonical(config).encode()).hexdigest()[:12]}"


@cache
def code_version() -> str:
    """Version of fedcore and 12 hex digits of the SHA-256 of its source files: what a checkpoint is bound to."""
    total = hashlib.sha256()
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        total.update(f"{path.relative_to(root).as_posix()}\0".encode())
        total.update(path.read_bytes())
    return f"{__version__}+{total.hexdigest()[:12]}"
