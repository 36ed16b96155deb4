"""The measured workload of DP-SCAFFOLD on synthetic data: 20 of 100 silos a round, 50 steps on 800 of 4,000 records.

41 features with the bias, 10 classes, d = 410. `LocalFloor` is the lower bound: a plain NumPy loop with one generator,
and no ledger, digest or check. Its mathematics is the same: fresh samples of fixed size, softmax regression, clipping
without per-record gradients, Gaussian noise, control variates.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.loop_variants import LoopWork
from fedcore.algorithms import Scaffold
from fedcore.data.silo_file import open_records
from fedcore.data.sources.synthetic import SyntheticData
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment
from fedcore.losses.softmax import Softmax
from fedcore.models.linear import residual_bounds
from fedcore.models.model_config import ModelConfig
from fedcore.optim.local import local_step
from fedcore.planning.plan_config import ParticipationConfig, PrivacyConfig

SILOS, DRAWN, RECORDS, FEATURES, CLASSES = 100, 20, 4000, 40, 10
STEPS, SAMPLE, STEP, MULTIPLIER, CLIP = 50, 0.2, 1.0, 60.0, 1.0


def prepare(silos: int, rounds: int, root: Path) -> Experiment:
    """The experiment, with its silos written below `root`: the paper's sizes, but another generator of records."""
    config = ExperimentConfig(
        name="bench-local",
        data=SyntheticData(silos=silos, records=RECORDS, features=FEATURES, classes=CLASSES, test_records=1000),
        model=ModelConfig(loss=Softmax(), clip=CLIP, diameter=1e3),
        privacy=PrivacyConfig(noise_multiplier=MULTIPLIER, delta=2.5e-6),
        algorithm=Scaffold(rounds=rounds, local_steps=STEPS, sampling_rate=SAMPLE, step=STEP),
        participation=ParticipationConfig(silos_per_round=max(1, silos * DRAWN // SILOS)),
    )
    return Experiment.prepare(config, root / "silos")


class LocalFloor:
    """Records of some silos as arrays, the server's state, and one generator."""

    def __init__(self, experiment: Experiment, names: Sequence[str] | None = None, seed: int = 0) -> None:
        phase = experiment.plan.phases[0]
        self._rng = np.random.default_rng(seed)
        self._silos = []
        for source in experiment.dataset.sources:
            if names is None or source.name in names:
                records = open_records(source)
                share = phase.by_silo[source.name]
                hot = records.y[:, None] == np.arange(CLASSES)
                bounds = residual_bounds(records.X, CLIP)
                self._silos.append((records.X, hot, bounds, share.sigma * share.batch, int(share.batch), records.n))
        self._drawn = max(1, len(self._silos) * DRAWN // SILOS)
        self._eta = local_step(STEP, SAMPLE, STEPS)
        d = experiment.plan.problem.objective.dim
        self._w, self._control, self._controls = np.zeros(d), np.zeros(d), np.zeros((len(self._silos), d))

    def step(self) -> None:
        """Does one whole round."""
        drawn = np.sort(self._rng.choice(len(self._silos), self._drawn, replace=False))
        fresh = np.array([self._local(place) for place in drawn])
        changes = fresh - self._controls[drawn]
        self._w = self._w - STEPS * self._eta * (changes.mean(axis=0) + self._control)
        self._control = self._control + changes.sum(axis=0) / len(self._silos)
        self._controls[drawn] = fresh

    def _local(self, place: int) -> np.ndarray:
        X, hot, bounds, sigma, size, n = self._silos[place]
        rng, y, correction = self._rng, self._w.copy(), self._control - self._controls[place]
        total = np.zeros_like(y)
        for _ in range(STEPS):
            chosen = rng.choice(n, size, replace=False, shuffle=False)
            x = X.take(chosen, axis=0)
            r = y.reshape(CLASSES, -1) @ x.T
            r -= r.max(axis=0)
            np.exp(r, out=r)
            r /= r.sum(axis=0)
            r -= hot.take(chosen, axis=0).T
            norms = np.sqrt(np.einsum("ij,ij->j", r, r))
            r *= np.minimum(bounds.take(chosen) / norms, 1.0)
            g = (r @ x).ravel()
            noise = rng.standard_normal(len(g))
            noise *= sigma
            g += noise
            g /= size
            total += g
            g += correction
            g *= self._eta
            y -= g
        total /= STEPS
        return total


LOCAL_VARIANTS = LoopWork(prepare, LocalFloor).variants
