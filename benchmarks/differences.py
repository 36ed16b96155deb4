"""The measured workload of DIFF2: 10 silos of 1,650 records, 8 features, 10 softplus units and one output, d = 101.

`DifferenceFloor` is the lower bound: a plain NumPy loop with one generator, and no ledger, digest or check. Its
mathematics is the same:

- both gradients of a round of differences in one pass, subtracted layer by layer;
- per-record clipping of the differences, without per-record gradients;
- Gaussian noise in proportion to the step, and restarts.

It subtracts the values at both points, which is accurate enough for steps of this length.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.loop_variants import LoopWork
from fedcore.algorithms import Diff2
from fedcore.data.silo_file import open_records
from fedcore.data.sources.teacher import TeacherData
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment
from fedcore.losses import Squared
from fedcore.models.model_config import ModelConfig
from fedcore.planning.plan_config import PrivacyConfig

SILOS, RECORDS, HIDDEN, PERIOD, STEP, CLIP, SLOPE = 10, 1650, 10, 20, 0.05, 1.0, 1.0


def prepare(silos: int, rounds: int, root: Path) -> Experiment:
    """The experiment, with its silos written below `root`."""
    config = ExperimentConfig(
        name="bench-differences",
        data=TeacherData(silos=silos, records=RECORDS),
        model=ModelConfig(loss=Squared(), hidden=HIDDEN, activation="softplus", clip=CLIP, diameter=1e3),
        privacy=PrivacyConfig(epsilon=3.0, delta=1e-5),
        algorithm=Diff2(rounds=rounds, period=min(PERIOD, rounds), split=0.8, step=STEP, slope=SLOPE),
    )
    return Experiment.prepare(config, root / "silos")


class DifferenceFloor:
    """Records of some silos as arrays, the server's state, and one generator."""

    def __init__(self, experiment: Experiment, names: Sequence[str] | None = None, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        differences, restarts = experiment.plan.phases[0].kinds
        self._silos = []
        for source in experiment.dataset.sources:
            if names is None or source.name in names:
                records = open_records(source)
                norms = np.linalg.norm(records.X, axis=1)
                sigmas = [kind.by_silo[source.name].sigma * records.n for kind in (restarts, differences)]
                self._silos.append((records.X, records.y, norms, *sigmas, records.n))
        self._w = experiment.start()
        self._before, self._estimate, self._round = self._w, np.zeros_like(self._w), 0

    def step(self) -> None:
        """Does one whole round."""
        restart = self._round % PERIOD == 0
        answers = [self._gradient(silo) if restart else self._difference(silo) for silo in self._silos]
        mean = np.add.reduce(answers)
        mean /= len(answers)
        self._estimate = mean if restart else self._estimate + mean
        self._before, self._w = self._w, self._w - STEP * self._estimate
        self._round += 1

    def _layers(self, w: np.ndarray, features: int) -> tuple[np.ndarray, np.ndarray]:
        first = HIDDEN * features
        return w[:first].reshape(HIDDEN, features), w[first:].reshape(1, HIDDEN + 1)

    def _passes(self, w: np.ndarray, X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Hidden units with the bias 1, residuals, and back-propagated errors of each record at w."""
        W1, W2 = self._layers(w, X.shape[1])
        z = X @ W1.T
        small = np.exp(-np.abs(z))
        h = np.ones((len(X), HIDDEN + 1))
        h[:, :-1] = np.maximum(z, 0.0) + np.log1p(small)
        outer = h @ W2.T
        outer[:, 0] -= y
        inner = outer * W2[:, :-1]
        inner *= np.where(z > 0.0, 1.0, small) / (1.0 + small)
        return h, outer, inner

    def _gradient(self, silo: tuple[Any, ...]) -> np.ndarray:
        X, y, norms, sigma, _, n = silo
        h, outer, inner = self._passes(self._w, X, y)
        square = outer[:, 0] ** 2 * np.einsum("ij,ij->i", h, h) + np.einsum("ij,ij->i", inner, inner) * norms**2
        scale = np.minimum(CLIP / np.sqrt(square), 1.0)
        inner *= scale[:, None]
        outer *= scale[:, None]
        return self._noised(np.concatenate([(inner.T @ X).ravel(), (outer.T @ h).ravel()]), sigma, n)

    def _difference(self, silo: tuple[Any, ...]) -> np.ndarray:
        X, y, norms, _, sigma, n = silo
        (h, outer, inner), (g, other, before) = (self._passes(w, X, y) for w in (self._w, self._before))
        a, k = outer - other, h - g
        inner -= before
        both = 2.0 * a[:, 0] * other[:, 0] * np.einsum("ij,ij->i", h, k)
        square = a[:, 0] ** 2 * np.einsum("ij,ij->i", h, h) + other[:, 0] ** 2 * np.einsum("ij,ij->i", k, k) + both
        square += np.einsum("ij,ij->i", inner, inner) * norms**2
        length = float(np.linalg.norm(self._w - self._before))
        scale = np.minimum(SLOPE * length / np.sqrt(square), 1.0)
        inner *= scale[:, None]
        a *= scale[:, None]
        other *= scale[:, None]
        outer_sum = a.T @ h + other.T @ k
        return self._noised(np.concatenate([(inner.T @ X).ravel(), outer_sum.ravel()]), sigma * length, n)

    def _noised(self, total: np.ndarray, sigma: float, n: int) -> np.ndarray:
        noise = self._rng.standard_normal(len(total))
        noise *= sigma
        total += noise
        total /= n
        return total


DIFFERENCE_VARIANTS = LoopWork(prepare, DifferenceFloor).variants
