"""A small plan to audit, and silos with one planted bug each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedcore.algorithms import ALGORITHMS
from fedcore.arrays import Vector
from fedcore.audit.transcript import Subject
from fedcore.losses import Logistic
from fedcore.privacy.calibration import Budget
from fedcore.privacy.ledger import MemoryLedger, Row
from fedcore.privacy.noise import KeyedGaussian
from fedcore.privacy.silo import PrivateSilo
from fedcore.problem import Problem, SiloFacts

NAME = "synthetic"


class Noise(KeyedGaussian):
    """Noise with a bug; `scale` times what it should be."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def draw(self, run_key: bytes, context: bytes, total: Vector) -> Vector:
        return self.scale * super().draw(run_key, context, total)


class NoiseOfRun(Noise):
    """The same noise in all rounds of a run."""

    def draw(self, run_key: bytes, context: bytes, total: Vector) -> Vector:
        return super().draw(run_key, b"", np.zeros_like(total))


class NoiseOfRecords(Noise):
    """Keyed by what is masked, not by the address."""

    def draw(self, run_key: bytes, context: bytes, total: Vector) -> Vector:
        return super().draw(b"", b"", total)


class NoiseOfAddress(Noise):
    """Keyed by the address, not by what is masked: the difference of two neighbours is published in clear."""

    def draw(self, run_key: bytes, context: bytes, total: Vector) -> Vector:
        return super().draw(run_key, context, np.zeros_like(total))


class Unclipped(PrivateSilo):
    """A silo that forgot to clip."""

    def approve(self, run, plan, method, loss):
        super().approve(run, plan, method, loss)
        approved = self._runs[run]
        self._runs[run] = replace(approved, bounds=np.full_like(approved.bounds, np.inf))


class ClippedAtTwice(PrivateSilo):
    """A silo whose records weigh twice what its noise is calibrated for, as if add/remove were replace-one."""

    def approve(self, run, plan, method, loss):
        super().approve(run, plan, method, loss)
        approved = self._runs[run]
        self._runs[run] = replace(approved, bounds=2 * approved.bounds)


class Forgetful(MemoryLedger):
    """Answers any address as if for the first time, and keeps the last answer."""

    def find(self, run: str, phase: int, round: int) -> Row | None:
        return None

    def commit(self, run: str, row: Row) -> None:
        self._runs[run][2][row.phase, row.round] = row


def with_noise(noise):
    """An opener of silos with noise made by `noise()`."""

    def opened(name, records, key, ledger):
        silo = PrivateSilo(name, records, key, ledger)
        silo._noise = noise()
        return silo

    return opened


BUGS = {
    "none": PrivateSilo,
    "half noise": with_noise(lambda: Noise(0.5)),
    "nine tenths of the noise": with_noise(lambda: Noise(0.9)),
    "no noise": with_noise(lambda: Noise(0.0)),
    "same noise in every round": with_noise(NoiseOfRun),
    "noise keyed by the sum": with_noise(NoiseOfRecords),
    "noise keyed by the address": with_noise(NoiseOfAddress),
    "no clipping": Unclipped,
    "clipping at twice the bound": ClippedAtTwice,
}


def problem(n=20, dim=32, epsilon=2.0, delta=None, clip=1.0):
    return Problem((SiloFacts(NAME, n),), dim, clip, 0.25, 10.0, 1, Budget(epsilon, delta))


@pytest.fixture
def subject():
    """subject(seed, bug="none", method="mbsgd", hyper={...}, loss=Logistic(), n=, dim=, ...): what is audited."""

    def make(seed, bug="none", method="mbsgd", hyper=None, loss=None, **sizes):
        chosen = ALGORITHMS[method](**({"rounds": 6} if hyper is None else hyper))
        key = np.random.default_rng([seed, 77]).bytes(32)
        return Subject(chosen.plan(problem(**sizes)), chosen, loss or Logistic(), NAME, key, BUGS[bug])

    return make


@pytest.fixture
def forgetful():
    """A ledger that lets an address be answered twice."""
    return Forgetful
