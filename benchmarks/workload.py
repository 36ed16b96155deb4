"""The measured workload: N silos of 400 records, d = 64, one clipped and noised full-batch step per round.

`Floor` is the lower bound: a plain NumPy loop over the silos with one generator, and no ledger, digest or check. Its
mathematics is the same: gradient of the logistic loss, clipping without per-record gradients, Gaussian noise, mean,
projection.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from fedcore.algorithms import Mbsgd
from fedcore.data.silo_file import open_records
from fedcore.data.sources.synthetic import SyntheticData
from fedcore.experiment.config import ClusterConfig, ExperimentConfig, OrchestrationConfig, TrackingConfig
from fedcore.experiment.experiment import Experiment
from fedcore.models.model_config import ModelConfig
from fedcore.planning.plan_config import PrivacyConfig

RECORDS, FEATURES, TEST_RECORDS, WORKERS = 400, 64, 2000, 2
STEP = 1.0


def config(
    silos: int, rounds: int, checkpoint: Literal["each-round", "behind"] = "behind", simulation_metrics: bool = False
) -> ExperimentConfig:
    """The experiment that every variant runs. `rounds`: all rounds that will be requested."""
    return ExperimentConfig(
        name="bench",
        data=SyntheticData(silos=silos, records=RECORDS, features=FEATURES, test_records=TEST_RECORDS),
        model=ModelConfig(bias=False),
        privacy=PrivacyConfig(epsilon=2.0, ledger="memory"),
        algorithm=Mbsgd(rounds=rounds, step=STEP),
        cluster=ClusterConfig(backend="dask", workers=WORKERS),
        orchestration=OrchestrationConfig(tasks="round", checkpoint=checkpoint),
        tracking=TrackingConfig(simulation_metrics=simulation_metrics),
    )


def prepare(silos: int, rounds: int, root: Path) -> Experiment:
    """The experiment, with its silos written below `root`."""
    return Experiment.prepare(config(silos, rounds), root / "silos")


class Floor:
    """Records of some silos as arrays, and one generator."""

    def __init__(self, experiment: Experiment, names: Sequence[str] | None = None, seed: int = 0) -> None:
        phase = experiment.plan.phases[0]
        self._rng = np.random.default_rng(seed)
        self._diameter = phase.subproblem.diameter
        self._silos = []
        for source in experiment.dataset.sources:
            if names is None or source.name in names:
                records = open_records(source)
                bound = phase.question.clip / np.linalg.norm(records.X, axis=1)
                noise = phase.by_silo[source.name].sigma * records.n
                self._silos.append((records.X, records.y, bound, -bound, noise, records.n))

    def messages(self, w: np.ndarray) -> list[np.ndarray]:
        """Each silo's noised mean of clipped gradients at w (d,)."""
        normal, d = self._rng.standard_normal, len(w)
        answers = []
        for X, y, high, low, sigma, n in self._silos:
            r = np.tanh(0.5 * (X @ w))
            r -= y
            r *= 0.5
            np.minimum(r, high, out=r)
            np.maximum(r, low, out=r)
            total = r @ X
            noise = normal(d)
            noise *= sigma
            total += noise
            total /= n
            answers.append(total)
        return answers

    def step(self, w: np.ndarray) -> np.ndarray:
        """The next iterate (d,), after one whole round."""
        return self.move(w, self.messages(w))

    def move(self, w: np.ndarray, messages: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
        """A step along the mean message, projected onto the ball around 0."""
        mean = np.add.reduce(messages)
        mean /= len(messages)
        moved = w - STEP * mean
        norm = float(np.sqrt(moved @ moved))
        return moved if norm <= self._diameter / 2 else moved * (self._diameter / 2 / norm)
