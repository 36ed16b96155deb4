"""The secret sample of an answer, drawn in the silo and shown to nobody: by coins, or of a fixed size.

The key of a turn's samples follows from the run key, which the silo keeps, from the address of the answer and from the
query digest: the same question repeats its samples, so an answer that was computed and not sent comes out the same
again, and another round or another model draws anew. It does not depend on what records say, on workers or on the
order of answers.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedcore.mechanisms.discrete_gaussian import Keystream
from fedcore.randomness import derive


class WordStream(Protocol):
    """Uniform 64-bit words, one after the other."""

    def words(self, n: int) -> npt.NDArray[np.uint64]:
        """The next n words (n,)."""
        ...


def sample_stream(run_key: bytes, context: bytes) -> Keystream:
    """Words of the samples of a round's answers, one after the other, under a secret key.

    ChaCha20 under HMAC-SHA-256(run key; context): as unpredictable as the noise of guarded silos, which is what
    amplification by sampling needs. Simulated silos draw from `fedcore.draws`, where the seed tells the sample.
    """
    return Keystream(derive(run_key, context, "sample"))


def poisson_sample(stream: WordStream, rate: float, records: int) -> npt.NDArray[np.intp]:
    """Places of the records that take part, ascending; each with probability `rate`, rounded down to 64 bits.

    Rounded down, so the true rate is never above the one that is accounted. Raises ValueError unless 0 < rate < 1.
    """
    if not 0.0 < rate < 1.0:
        raise ValueError(f"a sample at rate {rate} is none: the rate must lie strictly between 0 and 1")
    return np.flatnonzero(stream.words(records) < np.uint64(math.floor(math.ldexp(rate, 64))))


def fixed_size_sample(stream: WordStream, size: int, records: int) -> npt.NDArray[np.intp]:
    """Places of the records that take part, ascending: `size` of them, every such set with the same probability.

    Those with the smallest of as many words of 32 bits. Words that are equal where the choice ends decide nothing: all
    are drawn again, so that no place is preferred. Raises ValueError unless 1 <= size <= records.
    """
    if not 1 <= size <= records:
        raise ValueError(f"a sample of {size} of {records} records does not exist")
    while True:
        words = stream.words((records + 1) // 2).view("<u4")[:records]
        chosen = np.flatnonzero(words <= np.partition(words, size - 1)[size - 1])
        if len(chosen) == size:
            return chosen
