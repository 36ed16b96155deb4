"""Secret keys: they depend on the run, its plan and every question, so no draw serves two of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcore.draws.stream import Draws
from fedcore.mechanisms.gaussian import KeyedGaussian, Noise, round_address
from fedcore.mechanisms.secret_sample import WordStream, sample_stream
from fedcore.planning.evaluation import guarded_held_out, order_of_run
from fedcore.randomness import derive, generator


@dataclass(frozen=True)
class SecretKeys:
    """Keys that only the holder of `secret` (32 bytes) can predict."""

    secret: bytes

    def of_run(self, silo: str, run: str, agreed: str, method: str) -> bytes:
        return derive(self.secret, silo, run, agreed, "run key")

    def address(self, named: bytes, phase: int, round: int, query: bytes) -> tuple[bytes, bytes]:
        # Beside the query digest, which covers the address too: a forged digest cannot join two addresses.
        return named + round_address(phase, round), query

    def order(self, key: bytes, silo: str, n: int, held: int) -> NDArray[np.int64]:
        return order_of_run(generator(key, "split"), n, held, guarded_held_out(silo, n, held))

    def sample_stream(self, key: bytes, context: bytes) -> WordStream:
        return sample_stream(key, context)

    def draws(self, key: bytes, context: bytes, purpose: str) -> np.random.Generator | Draws:
        return generator(key, context, purpose)

    def noise(self) -> Noise:
        return KeyedGaussian()
