"""The secret sample of an answer, drawn in the silo and shown to nobody: by coins, or of a fixed size.

The sample's key follows from the run key, which the silo keeps, and from the query digest, which covers the address:
the same question repeats its sample, so an answer that was computed and not sent comes out the same again, and another
round or another model draws anew. It does not depend on what records say, on workers or on the order of answers.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from fedcore.privacy.discrete_gaussian import Keystream
from fedcore.randomness import derive


def poisson_sample(run_key: bytes, context: bytes, rate: float, records: int) -> npt.NDArray[np.intp]:
    """Places of the records that take part, ascending; each with probability `rate`, rounded down to 64 bits.

    ChaCha20 under HMAC-SHA-256(run key; context): as unpredictable as the noise of guarded silos, which is what
    amplification by sampling needs; seeded silos use it too, and there the seed tells the sample. Rounded down, so the
    true rate is never above the one that is accounted. Raises ValueError unless 0 < rate < 1.
    """
    if not 0.0 < rate < 1.0:
        raise ValueError(f"a sample at rate {rate} is none: the rate must lie strictly between 0 and 1")
    words = Keystream(derive(run_key, context, "sample")).words(records)
    return np.flatnonzero(words < np.uint64(math.floor(math.ldexp(rate, 64))))


def fixed_size_sample(run_key: bytes, context: bytes, size: int, records: int) -> npt.NDArray[np.intp]:
    """Places of the records that take part, ascending: `size` of them, every such set with the same probability.

    Those with the smallest words of the stream that `poisson_sample` draws its coins from. Words that are equal where
    the choice ends decide nothing: all are drawn again, so that no place is preferred.
    Raises ValueError unless 1 <= size <= records.
    """
    if not 1 <= size <= records:
        raise ValueError(f"a sample of {size} of {records} records does not exist")
    stream = Keystream(derive(run_key, context, "sample"))
    while True:
        words = stream.words(records)
        chosen = np.flatnonzero(words <= np.partition(words, size - 1)[size - 1])
        if len(chosen) == size:
            return chosen
