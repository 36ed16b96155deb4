"""Names of runs on the pages of Prefect and MLflow."""

from __future__ import annotations

import contextlib

from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.identity import run_id
from fedcore.home import Home
from flows.reports.settings import Settings, settings, settings_text
from flows.sweep_files import load_saved


def shown_name(config: ExperimentConfig, varied: Settings | None = None) -> str:
    """A run's name: method, budget, `varied` settings of its sweep, seed and repetition."""
    parts = [config.algorithm.name, config.privacy.level, settings_text(varied or {}), f"seed {config.seed}"]
    if config.repetition:
        parts.append(f"repetition {config.repetition}")
    return " | ".join(part for part in parts if part)


def name_in(home: Home, config: ExperimentConfig, sweep: str | None) -> str:
    """`shown_name` of a single run, or of a cell of a saved sweep."""
    varied: Settings = {}
    if sweep is not None:
        with contextlib.suppress(InputError):  # a name without the settings is enough
            varied = settings(load_saved(home, sweep)).get(run_id(config), {})
    return shown_name(config, varied)
