"""The interface of a silo's keys: a run's key, the address of an answer, and the draws under both."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedcore.draws.stream import Draws
from fedcore.mechanisms.gaussian import Noise
from fedcore.mechanisms.secret_sample import WordStream


class Keys(Protocol):
    """Keys of a silo's draws. `key` below is a run's, which `of_run` makes and the silo's ledger stores."""

    def of_run(self, silo: str, run: str, agreed: str, method: str) -> bytes:
        """Key of a new run with terms `agreed`."""
        ...

    def address(self, named: bytes, phase: int, round: int, query: bytes) -> tuple[bytes, bytes]:
        """Prefix and suffix of an answer's number in the keys of its draws.

        `named`: digest of run and plan. `query`: digest of the silo's question.
        """
        ...

    def order(self, key: bytes, silo: str, n: int, held: int) -> NDArray[np.int64]:
        """Places of all records in the order of the run's split (n,), held-out ones last."""
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
