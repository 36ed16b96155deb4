"""Stored form of configs: paths are names of their places, so that they stay valid if the home is moved or copied.

A run that was started through a link goes on with the data to which the link led.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.sweep import SweepConfig
from fedcore.home import Home
from fedcore.paths import HOME, Anchor, path_keys, with_paths


def stored_experiment(config: ExperimentConfig, anchor: Anchor) -> dict[str, Any]:
    """The config's plain values, paths named from `anchor`."""
    stored: dict[str, Any] = with_paths(config.model_dump(mode="json"), path_keys(ExperimentConfig), anchor.names())
    return stored


def loaded_experiment(values: Any, anchor: Anchor) -> ExperimentConfig:
    """The config that `stored_experiment` wrote. Raises ValueError for other values."""
    return ExperimentConfig.model_validate(with_paths(values, path_keys(ExperimentConfig), anchor.path))


def shown_experiment(config: ExperimentConfig, anchor: Anchor | None = None) -> dict[str, Any]:
    """The config's plain values for pages and files that others may see, without paths of keys and secrets.

    Paths below the home are relative to the folder that holds it. `anchor`: of another home than the current one.
    """
    values = config.model_dump(mode="json", exclude={"cluster": {"tls"}, "shuffler": {"secret"}})
    anchor = Home.current().anchor if anchor is None else anchor
    name, home = anchor.names(), os.path.basename(anchor.home)

    def from_home(path: str) -> str:
        found = name(path)
        return os.path.join(home, found[len(HOME) :]) if found.startswith(HOME) else found

    shown: dict[str, Any] = with_paths(values, path_keys(ExperimentConfig), from_home)
    return shown


def stored_sweep(config: SweepConfig, anchor: Anchor) -> dict[str, Any]:
    """The sweep's plain values, paths named from `anchor`."""
    return _parts(config.model_dump(mode="json"), anchor.names())


def loaded_sweep(values: Any, anchor: Anchor) -> SweepConfig:
    """The sweep that `stored_sweep` wrote. Raises ValueError for other values."""
    return SweepConfig.model_validate(_parts(values, anchor.path) if isinstance(values, Mapping) else values)


def _parts(values: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """A sweep's plain values with `change` applied to the paths of its base, variants and grids."""
    keys, found = path_keys(ExperimentConfig), dict(values)
    for key in ("base", "grid"):
        if key in found:
            found[key] = with_paths(found[key], keys, change)
    variants = found.get("variants")
    if isinstance(variants, list | tuple):
        found["variants"] = [
            {key: with_paths(value, keys, change) for key, value in each.items()} if isinstance(each, Mapping) else each
            for each in variants
        ]
    return found
