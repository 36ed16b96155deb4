"""Settings in which cells of a sweep differ beside method, target, seed and repetition."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from fedcore.directed_rounding import in_full
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.identity import canonical, run_id
from fedcore.experiment.sweep import SweepConfig

Settings = Mapping[str, Any]
"""Values by the dotted keys of an experiment, for instance algorithm.step."""

_PLAIN = TypeAdapter(Any)
_OWN_COLUMNS = (
    "name",
    "seed",
    "repetition",
    "schema",
    "algorithm.name",
    "privacy.epsilon",
    "privacy.noise_multiplier",
    "privacy.whole_silo",
    "privacy.trust",
)
"""Keys that have columns of their own, or in which the runs of one line differ."""


Run = Callable[[ExperimentConfig], str]
"""Id of a cell's run, which may be a former one (`flows.recorded.former_ids`)."""


def settings(sweep: SweepConfig, run: Run = run_id) -> dict[str, Settings]:
    """By run, the values of the keys in which cells of one method and target differ.

    The key that patience chooses is left out, because each seed may have another value.
    """
    return differing(sweep.cells(), () if sweep.patience is None else (sweep.patience.key,), run)


def differing(cells: Sequence[ExperimentConfig], besides: Iterable[str] = (), run: Run = run_id) -> dict[str, Settings]:
    """By run, the values of the keys in which cells of its method differ at one target.

    None: null, or a key that the cell's sections lack. Keys in `besides` are left out.
    """
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for cell in cells:
        group = groups.setdefault((cell.algorithm.name, cell.privacy.level, cell.privacy.trust), [])
        group.append(_flat(cell))
    left_out, varied = {*_OWN_COLUMNS, *besides}, dict[str, dict[str, None]]()
    for (method, *_), group in groups.items():
        keys = dict.fromkeys(key for values in group for key in values if key not in left_out)
        mine = varied.setdefault(method, {})
        mine |= {key: None for key in keys if any(values.get(key) != group[0].get(key) for values in group)}
    return {run(cell): {key: known_value(cell, key) for key in varied[cell.algorithm.name]} for cell in cells}


def value_at(config: ExperimentConfig, key: str) -> Any:
    """The value of a key with dots. Raises InputError if the config has no such key."""
    # Not from a dump: it omits newer keys at their defaults, so that older ids stay valid.
    value: Any = config
    for part in key.split("."):
        if part not in getattr(type(value), "__pydantic_fields__", {}):
            raise InputError(f"table: an experiment has no key {key}")
        value = getattr(value, part)
    return _PLAIN.dump_python(value, mode="json")


def known_value(cell: ExperimentConfig, key: str) -> Any:
    """As `value_at`, with None for a key that the cell's sections lack."""
    try:
        return value_at(cell, key)
    except InputError:
        return None


def _flat(cell: ExperimentConfig) -> dict[str, Any]:
    """The parameters that determine a result, by dotted key."""
    found: dict[str, Any] = {}
    for section, value in json.loads(canonical(cell)).items():
        if isinstance(value, dict):
            found |= {f"{section}.{key}": inner for key, inner in value.items()}
        else:
            found[section] = value
    return found


def settings_text(settings: Settings) -> str:
    """Settings as text, `step 0.5, rounds 20`, without null values."""
    named = heads(settings)
    return ", ".join(f"{named[key]} {shown(value)}" for key, value in settings.items() if value is not None)


OWN_HEADS = frozenset({"method", "epsilon", "accounted", "spread", "runs", "seconds", "by silo", "settings"})
"""Heads of the table's own columns, which no varied key takes."""


def heads(keys: Iterable[str]) -> dict[str, str]:
    """Heads of columns by key: its last part, or the whole key if that is another key's or one of `OWN_HEADS`."""
    keys = list(keys)
    last = [key.rpartition(".")[2] for key in keys]
    return {
        key: (key if last.count(short) > 1 or short.replace("_", " ") in OWN_HEADS else short).replace("_", " ")
        for key, short in zip(keys, last, strict=True)
    }


def shown(value: Any) -> str:
    """Text of a value in a column; a section is its values without keys."""
    if value is None:
        return "-"
    if isinstance(value, dict):
        return " ".join(shown(inner) for inner in value.values() if inner is not None)
    if isinstance(value, list):
        return ",".join(map(shown, value))
    return in_full(value) if isinstance(value, float) else str(value)
