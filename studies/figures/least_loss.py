"""The least training loss of a configuration's records, which is subtracted from a method's. NOT PRIVATE."""

from __future__ import annotations

import hashlib
import json
import os

from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment
from fedcore.home import Home
from studies.figures.optimum import least_training_loss
from tasks.result_file import write_atomically

NOT_PRIVATE = "training losses and their minimum are from raw records without noise: outside of every epsilon"


def least_loss(home: Home, config: ExperimentConfig, known: dict[str, float]) -> float:
    """F* of the config's records and model, cached in the home under a digest of the files that hold the records.

    `known`: losses read before, to which this one is added. Raises InputError as `least_training_loss`.
    """
    problem = config.model_dump_json(
        include={"data", "model", "seed"}, exclude={"model": {"clip", "diameter", "ridge"}}
    )
    if problem not in known:
        experiment = Experiment.prepare(config, home.silos)
        files = [(source.path, *_version(source.path)) for source in experiment.dataset.sources]
        key = hashlib.sha256(json.dumps([problem, experiment.dataset.name, files]).encode()).hexdigest()[:16]
        path = home.optima / f"{key}.json"
        if not path.is_file():
            value = least_training_loss(experiment)
            path.parent.mkdir(parents=True, exist_ok=True)
            entry = {"asked": json.loads(problem), "least_training_loss": value, "statement": NOT_PRIVATE}
            write_atomically(path, json.dumps(entry).encode())
        known[problem] = float(json.loads(path.read_text())["least_training_loss"])
    return known[problem]


def _version(path: str) -> tuple[int, int]:
    stat = os.stat(path)
    return stat.st_size, stat.st_mtime_ns


def gap(config: ExperimentConfig, value: float, optimum: float) -> float:
    """F - F*, at least 0. Raises InputError for a loss below F*, which then was a local minimum only."""
    if value < optimum - 1e-9:
        raise InputError(f"{config.name}: a training loss of {value:.9g} is below {optimum:.9g}, a local minimum only")
    return max(value - optimum, 0.0)
