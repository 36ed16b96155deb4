"""An experiment with five small silos, for any method, and its rounds on any backend."""

from __future__ import annotations

import numpy as np

from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment
from fedcore.federation.rounds import rounds
from fedcore.messages import Release

CONFIGS = {
    "localized-mbsgd": {"name": "localized-mbsgd", "rounds": [6, 3], "max_phases": 3},
    "localized-accelerated": {"name": "localized-accelerated", "rounds": [6, 3], "max_phases": 3},
    "one-pass-mbsgd": {"name": "one-pass-mbsgd", "rounds": 5},
    "mbsgd": {"name": "mbsgd", "rounds": 8},
    "scaffold": {"name": "scaffold", "rounds": 12, "local_steps": 3, "sampling_rate": 0.3, "warm": True},
}


def experiment(tmp_path, algorithm: str, **sections) -> Experiment:
    config = ExperimentConfig.model_validate(
        {
            "data": {"source": "synthetic", "silos": 5, "records": 60, "features": 7, "test_records": 10},
            "privacy": {"epsilon": 3},
            "algorithm": CONFIGS[algorithm],
            "participation": {"silos_per_round": 3},
            **sections,
        }
    )
    return Experiment.prepare(config, tmp_path / "silos")


def train(made: Experiment, backend) -> np.ndarray:
    backend.open()
    method, state = made.config.algorithm, made.config.algorithm.init(made.start())
    for _, releases, after in rounds(made.context, state, backend.ask):
        assert all(type(release) is Release for release in releases)
        state = after
    return method.output(state)
