"""SIMULATION: keys from a public seed and addresses alone, which protect no one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcore.draws.stream import Draws
from fedcore.mechanisms.gaussian import Noise, SeededGaussian, round_address
from fedcore.mechanisms.secret_sample import WordStream
from fedcore.planning.evaluation import held_out, order_of_run
from fedcore.randomness import draws, simulation_key


@dataclass(frozen=True)
class SeededKeys:
    """SIMULATION: keys that anyone can compute from seed, repetition, silo, method and address."""

    seed: int
    repetition: int = 0

    def of_run(self, silo: str, run: str, agreed: str, method: str) -> bytes:
        return simulation_key(self.seed, self.repetition, silo, method)

    def address(self, named: bytes, phase: int, round: int, query: bytes) -> tuple[bytes, bytes]:
        return round_address(phase, round), b""

    def order(self, key: bytes, silo: str, n: int, held: int) -> NDArray[np.int64]:
        return order_of_run(draws(key, "split"), n, held, held_out(silo, n, held))

    def sample_stream(self, key: bytes, context: bytes) -> WordStream:
        return draws(key, context, "sample")

    def draws(self, key: bytes, context: bytes, purpose: str) -> np.random.Generator | Draws:
        return draws(key, context, purpose)

    def noise(self) -> Noise:
        return SeededGaussian()
