"""Reader of an experiment's YAML file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedcore.configfile.reading import read_yaml, validated
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig


def load_experiment(path: str | Path, overrides: Sequence[str] = ()) -> ExperimentConfig:
    """The experiment of a YAML file with `key=value` overrides. Raises InputError."""
    values = read_yaml(Path(path), overrides)
    if "variants" in values or "grid" in values:
        raise InputError(f"{path}: this is a sweep (it has variants or a grid); use `fedcore sweep {path}`")
    return validated(ExperimentConfig, values, str(path))
