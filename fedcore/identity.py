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


# Keys that came later, with what was meant before: a run keeps its id, hence its bits, as long as they say that.
_LATER: tuple[tuple[tuple[str, ...], str, Any], ...] = (
    (("algorithm",), "batch", None),
    (("algorithm",), "schedule", None),
    (("model",), "ridge", 0.0),
    (("model",), "hidden", None),
    (("model", "smoothing"), "estimate", "exact"),
    (("privacy",), "noise_multiplier", None),
    (("data",), "labels", "odd-even"),
    (("data",), "classes", 2),
    (("data",), "split", "odd-even"),
    (("data",), "similarity", None),
    (("model",), "normalise", "record"),
    (("data", "pca"), "epsilon", None),
    (("data", "pca"), "bound", None),
)


def canonical(config: ExperimentConfig) -> str:
    """The parameters that make the result, as canonical JSON; where and how it is executed is left out."""
    return json.dumps(without_later(config.model_dump(mode="json", exclude=_EXECUTION)), sort_keys=True)


def without_later(values: dict[str, Any]) -> dict[str, Any]:
    """`values`, sections of a dumped config, without the keys that came later and say what was meant before; changed
    in place."""
    for path, key, before in _LATER:
        section: Any = values
        for name in path:
            section = section.get(name) or {}
        if key in section and section[key] == before:
            del section[key]
    return values


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
