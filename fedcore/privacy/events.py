"""Privacy events as data: what a noised answer revealed, for accountants to interpret.

Adjacency and sampling are part of an event and never a default of an accountant. Positions are places in the silo's
own permutation of its records; two events compose in sequence where their ranges overlap and in parallel elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ROUNDING = 1e-6
"""Relative slack on every sensitivity, for floating-point rounding in clipping and sums."""


Sampling = Literal["full", "poisson", "without-replacement", "with-replacement"]
"""Which records at [start, stop) an answer is about: all, or a secret sample that the silo draws anew each time."""


@dataclass(frozen=True, slots=True)
class GaussianRelease:
    """`count` answers with Gaussian noise about the records at positions [start, stop), or a sample of them.

    `sensitivity`: largest change of the answer in Euclidean norm when one record is replaced, rounding included.
    `sigma`: standard deviation of the noise per coordinate, in the same units; 0 means no protection at all.
    `rate`: sampling probability (poisson) or batch / (stop - start); 1 for full batches.
    Each record once (one pass) is no scheme of its own: such answers are full batches at disjoint positions.
    """

    start: int
    stop: int
    sensitivity: float
    sigma: float
    count: int = 1
    mechanism: Literal["gaussian", "discrete-gaussian"] = "gaussian"
    adjacency: Literal["replace-one"] = "replace-one"
    sampling: Sampling = "full"
    rate: float = 1.0

    @property
    def gdp_mu_squared(self) -> float:
        """Squared Gaussian-DP parameter of `count` full-batch answers (Dong, Roth, Su 2022); infinite without noise.

        An upper bound for sampled ones, since a sample is never worse than answering about all (not used for them).
        """
        return self.count * (self.sensitivity / self.sigma) ** 2 if self.sigma > 0 else float("inf")


def mean_sensitivity(clip: float, records: int) -> float:
    """Sensitivity of the mean of `records` gradients clipped to norm `clip`, for replace-one: 2 clip (1 + 1e-6) / n."""
    return 2.0 * clip * (1.0 + ROUNDING) / records
