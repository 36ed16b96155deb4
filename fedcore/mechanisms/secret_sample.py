"""The secret sample of an answer, drawn in the silo and never sent: by coins, or of a fixed size.

The key of a round's samples follows from the run key, which the silo keeps secret, the address of the answer, and the
query digest. The same question repeats its samples, so an answer that was computed and not sent comes out the same
again. Another round or another model draws anew. The key depends on no record, no worker and no order of answers.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedcore.mechanisms.discrete_gaussian import Keystream
from fedcore.randomness import derive


class WordStream(Protocol):
    """A stream of uniform 64-bit words."""

    def words(self, n: int) -> npt.NDArray[np.uint64]:
        """The next n words (n,)."""
        ...


def sample_stream(run_key: bytes, context: bytes) -> Keystream:
    """Words of the samples of a round's answers, in order, under a secret key.

    ChaCha20 under HMAC-SHA-256(run key; context) is as unpredictable as the noise of guarded silos, which amplification
    by sampling needs. Simulated silos draw from `fedcore.draws`, where the seed determines the sample.
    """
    return Keystream(derive(run_key, context, "sample"))


def poisson_sample(stream: WordStream, rate: float, records: int) -> npt.NDArray[np.intp]:
    """Places of the sampled records, ascending. Each is in with probability `rate`, rounded down.

    Rounding is to 64 bits; so the true rate is never above the accounted one. Raises ValueError unless 0 < rate < 1.
    """
    if not 0.0 < rate < 1.0:
        raise ValueError(f"a sample at rate {rate} is none: the rate must lie strictly between 0 and 1")
    return np.flatnonzero(stream.words(records) < np.uint64(math.floor(math.ldexp(rate, 64))))


def fixed_size_sample(stream: WordStream, size: int, records: int) -> npt.NDArray[np.intp]:
    """Places of the sampled records, ascending: `size` of them, uniform over all such sets.

    They are the places of the smallest of 32-bit words, one per record. If the last chosen word equals one outside, all
    are drawn again, so that no place is preferred. Raises ValueError unless 1 <= size <= records.
    """
    if not 1 <= size <= records:
        raise ValueError(f"a sample of {size} of {records} records does not exist")
    while True:
        words = stream.words((records + 1) // 2).view("<u4")[:records]
        chosen = np.flatnonzero(words <= np.partition(words, size - 1)[size - 1])
        if len(chosen) == size:
            return chosen
