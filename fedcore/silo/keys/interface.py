"""The interface of a silo's keys: a run's key, the address of an answer, and the draws under both."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedcore.draws.stream import Draws
from fedcore.mechanisms.gaussian import Noise
from fedcore.mechanisms.secret_sample import WordStream


class Keys(Protocol):
    """Keys of a silo's draws. `key` below is a run's, which `of_run` makes and the silo's ledger keeps."""

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
