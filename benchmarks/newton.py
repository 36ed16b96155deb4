"""The measured workload of DP-FCRN: 100 silos of 400 records, d = 2,000, k = 200 coordinates kept, tau = 8.

`NewtonFloor` is the lower bound: a plain NumPy loop with one generator, and no ledger, digest or check. Its mathematics
is the same: a mask for each silo and round, whose columns are gathered once; per-record clipping by one number each;
Gaussian noise in every inner step, projections, the average.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.loop_variants import LoopWork
from fedcore.algorithms import DpFcrn
from fedcore.data.silo_file import open_records
from fedcore.data.sources.synthetic import SyntheticData
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment
from fedcore.models.model_config import ModelConfig
from fedcore.planning.plan_config import PrivacyConfig

SILOS, RECORDS, FEATURES, KEPT, POINTS, CUBIC, RADIUS = 100, 400, 2000, 200, 8, 0.1, 1.0


def prepare(silos: int, rounds: int, root: Path) -> Experiment:
    """The experiment, with its silos written below `root`."""
    config = ExperimentConfig(
        name="bench-newton",
        data=SyntheticData(silos=silos, records=RECORDS, features=FEATURES, test_records=100),
        model=ModelConfig(bias=False, diameter=20.0),
        privacy=PrivacyConfig(epsilon=1.0, delta=1e-5),
        algorithm=DpFcrn(
            rounds=rounds, local_steps=POINTS, kept=KEPT / FEATURES, cubic=CUBIC, radius=RADIUS, bound=0.5
        ),
    )
    return Experiment.prepare(config, root / "silos")


class NewtonFloor:
    """Records of some silos as arrays, the server's model, and one generator."""

    def __init__(self, experiment: Experiment, names: Sequence[str] | None = None, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        (phase,) = experiment.plan.phases
        self._clip, self._steps = phase.question.clip, phase.settings["steps"]
        self._silos = []
        for source in experiment.dataset.sources:
            if names is None or source.name in names:
                records = open_records(source)
                self._silos.append((records.X, records.y, phase.by_silo[source.name].sigma))
        self._w = np.zeros(FEATURES)

    def step(self) -> None:
        """Does one whole round."""
        mean = np.zeros(FEATURES)
        for X, y, sigma in self._silos:
            chosen = np.sort(
                self._rng.choice(FEATURES, size=KEPT, replace=False)
            )  # sorted columns gather twice as fast
            mean[chosen] += self._solved(X, y, sigma, chosen) * (FEATURES / KEPT)
        self._w = _within(self._w + mean / len(self._silos), 10.0)

    def _solved(self, X: np.ndarray, y: np.ndarray, sigma: float, chosen: np.ndarray) -> np.ndarray:
        rows = X.take(chosen, axis=1)
        bounds = self._clip / np.sqrt(np.einsum("ij,ij->i", rows, rows))
        t = np.tanh(0.5 * (X @ self._w))
        residuals, curvatures = 0.5 * (t - y), 0.25 * (1.0 - t) * (1.0 + t)
        v, mean = np.zeros(KEPT), np.zeros(KEPT)
        for s in range(POINTS):
            mean += 2.0 * (s + 1) / (POINTS * (POINTS + 1)) * v
            if s < POINTS - 1:
                parts = residuals + curvatures * (rows @ v)
                np.clip(parts, -bounds, bounds, out=parts)
                gradient = (parts @ rows) / len(y) + sigma * self._rng.standard_normal(KEPT)
                gradient += 0.5 * CUBIC * float(np.linalg.norm(v)) * v
                v = _within(v - self._steps[s] * gradient, RADIUS)
        return mean


def _within(v: np.ndarray, radius: float) -> np.ndarray:
    length = float(np.linalg.norm(v))
    return v if length <= radius else v * (radius / length)


NEWTON_VARIANTS = LoopWork(prepare, NewtonFloor).variants
