"""What a silo's draws are keyed by: a secret of its own, or, of a simulated silo, the public seed and addresses alone.

Both kinds have one interface, so that no other file asks which of them a silo has. Secret keys fold in the run, its
plan and every question: a draw never serves two of them. Seeded keys fold in none, so that runs which differ in a
setting alone share their draws, and a table repeats on any machine. They protect nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedcore.draws.stream import Draws
from fedcore.mechanisms.gaussian import KeyedGaussian, Noise, SeededGaussian, round_address
from fedcore.mechanisms.secret_sample import WordStream, sample_stream
from fedcore.planning.evaluation import guarded_held_out, held_out, order_of_run
from fedcore.randomness import derive, draws, generator, simulation_key


class Keys(Protocol):
    """How a silo keys its draws. `key` below is a run's, which `of_run` makes and the silo's ledger keeps."""

    def of_run(self, silo: str, run: str, agreed: str, method: str) -> bytes:
        """Key of a run with terms `agreed`, if it is a new one."""
        ...

    def address(self, named: bytes, phase: int, round: int, query: bytes) -> tuple[bytes, bytes]:
        """What stands before, and after, the number of an answer where its draws are keyed.

        `named`: digest of run and plan. `query`: of all that the silo was asked.
        """
        ...

    def order(self, key: bytes, silo: str, n: int, held: int) -> NDArray[np.int64]:
        """Places of all records in the order of the run's split (n,), those held out at the end."""
        ...

    def sample_stream(self, key: bytes, context: bytes) -> WordStream:
        """Words from which the samples of a round's answers are drawn."""
        ...

    def draws(self, key: bytes, context: bytes, purpose: str) -> np.random.Generator | Draws:
        """Draws of one answer and purpose."""
        ...

    def noise(self) -> Noise:
        """Noise in double precision, for a silo that is not guarded."""
        ...


@dataclass(frozen=True)
class SecretKeys:
    """Keys that only the holder of `secret` (32 bytes) can predict."""

    secret: bytes

    def of_run(self, silo: str, run: str, agreed: str, method: str) -> bytes:
        return derive(self.secret, silo, run, agreed, "run key")

    def address(self, named: bytes, phase: int, round: int, query: bytes) -> tuple[bytes, bytes]:
        # The address itself, beside the query digest that covers it too: no digest, whoever made it, joins two.
        return named + round_address(phase, round), query

    def order(self, key: bytes, silo: str, n: int, held: int) -> NDArray[np.int64]:
        return order_of_run(generator(key, "split"), n, held, guarded_held_out(silo, n, held))

    def sample_stream(self, key: bytes, context: bytes) -> WordStream:
        return sample_stream(key, context)

    def draws(self, key: bytes, context: bytes, purpose: str) -> np.random.Generator | Draws:
        return generator(key, context, purpose)

    def noise(self) -> Noise:
        return KeyedGaussian()


@dataclass(frozen=True)
class SeededKeys:
    """SIMULATION: keys that everybody can compute from seed, repetition, silo, method and address."""

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
