"""The parameters of a run on MLflow's page: its config and the totals of its plan."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from fedcore.data.tabular import Tabular
from fedcore.directed_rounding import shown_up
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.statistics import plan_as_json
from fedcore.experiment.stored.configs import shown_experiment
from fedcore.planning.plan import Plan
from tasks.mlflow.keys import keys_of

MOST_COLUMNS = 100
"""Most columns of a schema that MLflow's page shows one by one; a longer schema is in config.yaml only."""


_SPENT = (
    "epsilon_accounted",
    "epsilon_paper",
    "epsilon_statistics",
    "epsilon_training",
    "epsilon_shuffled",
    "epsilon_honest_sampling",
    "epsilon_whole_silo",
    "delta",
    "delta_whole_silo",
)
"""Totals of a plan that MLflow's page shows rounded up."""

DIGITS = 16
"""Length of a data set's version on MLflow's page; the manifests have all silos' versions in full."""

MOST_CHARACTERS = 500
"""Longest list among the parameters; config.yaml has the whole list."""


def run_parameters(config: ExperimentConfig, plan: Plan, statistics: Plan | None = None) -> dict[str, Any]:
    """The config and the plan's totals as flat parameters, with those of the statistics released before, if any."""
    flat: dict[str, Any] = {}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                walk(f"{prefix}.{key}" if prefix else key, item)
        elif isinstance(value, list | tuple):
            flat[prefix] = _cut(json.dumps(value))
        else:
            flat[prefix] = value

    walk("", shown_experiment(config))
    described = config.data.described if isinstance(config.data, Tabular) else None
    if described is not None and len(described) <= MOST_COLUMNS:
        del flat["data.features"]
        named = keys_of((column.name for column in described), "data.features.{}")
        for column in described:
            options = column.model_dump(mode="json", exclude_defaults=True, exclude={"name"})
            flat[named[column.name]] = json.dumps(options)
    totals = plan_as_json(plan, statistics)["totals"]
    walk("plan", totals | {key: shown_up(totals[key], 6) for key in _SPENT if totals.get(key) is not None})
    if statistics is not None:
        flat["plan.statistics_numbers"] = statistics.problem.objective.dim
    if config.released_curvature is not None:
        flat["plan.smoothness"] = plan.problem.objective.smoothness
    return flat


def _cut(text: str) -> str:
    """The text, at most `MOST_CHARACTERS`; a longer one ends in its digest, so that different texts stay different."""
    if len(text) <= MOST_CHARACTERS:
        return text
    digest = f" ... {len(text)} characters, sha256 {hashlib.sha256(text.encode()).hexdigest()[:DIGITS]}"
    return text[: MOST_CHARACTERS - len(digest)] + digest
