"""What a run is called on both pages."""

from __future__ import annotations

import contextlib

from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.identity import run_id
from fedcore.home import Home
from flows.reports.settings import Settings, said, settings
from flows.sweep_files import load_saved


def shown_name(config: ExperimentConfig, varied: Settings | None = None) -> str:
    """Method, budget, what the sweep around it varies, seed: what a person looks for in a list of cells."""
    parts = [config.algorithm.name, config.privacy.level, said(varied or {}), f"seed {config.seed}"]
    if config.repetition:
        parts.append(f"repetition {config.repetition}")
    return " | ".join(part for part in parts if part)


def name_in(home: Home, config: ExperimentConfig, sweep: str | None) -> str:
    """`shown_name` of a run by itself, or of a cell of a kept sweep."""
    varied: Settings = {}
    if sweep is not None:
        with contextlib.suppress(InputError):  # the name is worth no failure
            varied = settings(load_saved(home, sweep)).get(run_id(config), {})
    return shown_name(config, varied)
