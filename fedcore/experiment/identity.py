"""What a run is: the digest of its canonical parameters and the version of the code that runs it."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import fedcore
from fedcore import __version__
from fedcore.arrays import canonical_json
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.home import Home
from fedcore.paths import Anchor, path_keys, with_paths

SCHEMA = 3
"""Part of every id. Whoever changes what parameters mean, or how they are written, raises it: ids, run keys and noise
are then others, and what was run before is a run of an older schema."""

# A silo's cap decides whether a run may go on, not what comes out of it.
_EXECUTION: dict[str, Any] = {
    "cluster": True,
    "orchestration": True,
    "tracking": True,
    "privacy": {"cap"},
    "shuffler": {"deadline", "address", "secret"},
}


def canonical(config: ExperimentConfig, anchor: Anchor | None = None) -> str:
    """The parameters that make the result, as canonical JSON; where and how it is executed is left out.

    Paths are names of their resolved places (`fedcore.paths`), as seen from `anchor`; None: from the current home.
    """
    values = config.model_dump(mode="json", exclude=_EXECUTION)
    return canonical_json({"schema": SCHEMA, **named_places(values, anchor)})


def placeless(values: Any) -> str:
    """SHA-256 (hex) of a config's plain values, also as kept, whatever its paths: equal wherever ids can be.

    Raises ValueError for values that are no config's. They are not validated: of thousands of runs that takes seconds.
    """
    try:
        found = dict(with_paths(values, path_keys(ExperimentConfig), lambda _: ""))  # all of it is a copy
        for key, left_out in _EXECUTION.items():
            for each in (key,) if left_out is True else left_out:
                (found if left_out is True else found[key] or {}).pop(each, None)
        return hashlib.sha256(canonical_json(found).encode()).hexdigest()
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"no config: {error!r}") from None


def named_places(values: dict[str, Any], anchor: Anchor | None = None) -> dict[str, Any]:
    """A config's plain values, or some of its sections, with names of places for paths; `anchor` as for `canonical`."""
    names = (Home.current().anchor if anchor is None else anchor).names()
    named: dict[str, Any] = with_paths(values, path_keys(ExperimentConfig), names)
    return named


def run_id(config: ExperimentConfig, anchor: Anchor | None = None) -> str:
    """The run's id: its name and 12 hex digits of the SHA-256 of its canonical parameters."""
    return f"{config.name}-{hashlib.sha256(canonical(config, anchor).encode()).hexdigest()[:12]}"


def check_schema(what: str, schema: str | int | None) -> None:
    """Raises InputError, naming `what`, unless it was kept under this schema; None: by a version that kept none."""
    if str(schema) != str(SCHEMA):
        kept = "an older version of fedcore" if schema is None else f"another version of fedcore (schema {schema})"
        close = f" (`fedcore budget close {what[4:]}` ends one that was stopped)" if what.startswith("run ") else ""
        raise InputError(
            f"{what} was made by {kept}; version {__version__} reads schema {SCHEMA} only. Finish it, or look at it, "
            f"with the version that made it, or run its config again here, at a charge of its own{close}"
        )


@cache
def code_version() -> str:
    """Version of fedcore and 12 hex digits of the SHA-256 of its source files: what a checkpoint is bound to."""
    total = hashlib.sha256()
    root = Path(fedcore.__file__).parent
    for path in sorted(root.rglob("*.py")):
        total.update(f"{path.relative_to(root).as_posix()}\0".encode())
        total.update(path.read_bytes())
    return f"{__version__}+{total.hexdigest()[:12]}"
