"""Identity of a run: the digest of its canonical parameters, and the version of the code that runs it."""

from __future__ import annotations

import hashlib
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from pydantic_core import from_json, to_json

import fedcore
from fedcore import __version__
from fedcore.arrays import canonical_json
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.home import Home
from fedcore.paths import Anchor, path_keys, with_paths

SCHEMA = 3
"""Part of every id. Raise it with every change in the meaning or form of parameters. Ids, run keys and noise then
change, and earlier runs are runs of an older schema."""

# A silo's cap decides if a run may go on; it does not change the result.
_EXECUTION: dict[str, Any] = {
    "cluster": True,
    "orchestration": True,
    "tracking": True,
    "privacy": {"cap"},
    "participation": {"absent", "deadline", "minimum"},
    "shuffler": {"deadline", "address", "secret"},
}


def canonical(config: ExperimentConfig, anchor: Anchor | None = None) -> str:
    """The parameters that determine the result, as canonical JSON, without the keys of execution.

    Paths are names of their resolved places (`fedcore.paths`), relative to `anchor`; None: to the current home.
    """
    found = _canonical_without_paths(to_json(config, exclude=_EXECUTION, inf_nan_mode="constants"))
    if found is not None:
        return found
    values = config.model_dump(mode="json", exclude=_EXECUTION)
    return canonical_json({"schema": SCHEMA, **named_places(values, anchor)})


# A report asks a dozen times for each of a thousand cells.
@lru_cache(maxsize=4096)
def _canonical_without_paths(config: bytes) -> str | None:
    """`canonical` of a config's JSON; None for a config with paths, whose names change with links and homes."""
    values = from_json(config)
    same = with_paths(values, path_keys(ExperimentConfig), lambda path: f"{path}/") == values
    return canonical_json({"schema": SCHEMA, **values}) if same else None


def placeless(values: Any) -> str:
    """SHA-256 (hex) of a config's plain values without its paths: equal for configs whose ids can be equal.

    `values` may be those of a stored config. They are not validated, which for thousands of runs would take seconds.
    Raises ValueError for values that are no config's.
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
    """Plain values of a config, or of some sections, with names of places for paths; `anchor` as for `canonical`."""
    names = (Home.current().anchor if anchor is None else anchor).names()
    named: dict[str, Any] = with_paths(values, path_keys(ExperimentConfig), names)
    return named


def run_id(config: ExperimentConfig, anchor: Anchor | None = None) -> str:
    """The run's id: its name and 12 hex digits of the SHA-256 of its canonical parameters."""
    return f"{config.name}-{hashlib.sha256(canonical(config, anchor).encode()).hexdigest()[:12]}"


def check_schema(name: str, schema: str | int | None) -> None:
    """Raises InputError unless a record was stored under this schema; None: by a version that stored no schema.

    `name`: of the record in the error, such as `run ID`.
    """
    if str(schema) != str(SCHEMA):
        maker = "an older version of fedcore" if schema is None else f"another version of fedcore (schema {schema})"
        close = f" (`fedcore budget close {name[4:]}` ends one that was stopped)" if name.startswith("run ") else ""
        raise InputError(
            f"{name} was made by {maker}; version {__version__} reads schema {SCHEMA} only. Finish it, or look at it, "
            f"with the version that made it, or run its config again here, at a charge of its own{close}"
        )


@cache
def code_version() -> str:
    """Version of fedcore and 12 hex digits of the SHA-256 of its source files."""
    total = hashlib.sha256()
    root = Path(fedcore.__file__).parent
    for path in sorted(root.rglob("*.py")):
        total.update(f"{path.relative_to(root).as_posix()}\0".encode())
        total.update(path.read_bytes())
    return f"{__version__}+{total.hexdigest()[:12]}"
