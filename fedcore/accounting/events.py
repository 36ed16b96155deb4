"""Privacy events as data: the facts of a noised answer that accountants interpret.

Adjacency and sampling are part of an event and never a default of an accountant. Positions are places in the silo's own
permutation of its records; two events compose in sequence where their ranges overlap and in parallel elsewhere.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal

from fedcore.accounting.rounding import CENTRED

Mechanism = Literal["gaussian", "discrete-gaussian"]
"""NumPy's normals, or integers on a grid (`fedcore.mechanisms.grid`) with nearly the same curve."""

RESERVED = 1e-12
"""Share of delta reserved for the distance of discrete noise from a Gaussian mechanism."""


def is_number(value: Any) -> bool:
    """True for a float, and for an int within the range of floats; false for bool. Infinity and NaN pass."""
    return isinstance(value, float) or (is_whole(value) and abs(value) <= sys.float_info.max)


def is_whole(value: Any) -> bool:
    """True for a value of an integer type other than bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


Sampling = Literal["full", "poisson", "without-replacement", "with-replacement"]
"""Selection of records at [start, stop): all, or a secret sample that the silo draws for each answer."""


@dataclass(frozen=True, slots=True)
class GaussianRelease:
    """`count` answers with Gaussian noise about the records at positions [start, stop), or samples.

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
    mechanism: Mechanism = "gaussian"
    adjacency: Literal["replace-one"] = "replace-one"
    sampling: Sampling = "full"
    rate: float = 1.0

    @property
    def gdp_mu_squared(self) -> float:
        """Squared Gaussian-DP parameter of `count` full-batch answers; infinite without noise.

        Source: Dong, Roth, Su 2022.
        An upper bound for poisson and without-replacement: such an answer is mu-GDP with the mu of one that always uses
        the record. Proof. A sample B is drawn without looking at records. For two neighbouring data sets the answers
        are mixtures, with the same weights, of P_B and Q_B. If the replaced record is in B, these are Gaussians whose
        means lie at most `sensitivity` apart; otherwise they are equal.

        The hockey-stick divergence H(P, Q) is the sup over events S of P(S) - e^epsilon Q(S). It is jointly convex, so
        that of the mixtures is at most the mean of H(P_B, Q_B). H(P, P) = max(0, 1 - e^epsilon) is the least value of
        any H. Each H(P_B, Q_B) is therefore at most that of the Gaussian mechanism with this mu, at every epsilon.

        Not for with-replacement, where one record may be in a batch several times.
        """
        try:
            return self.count * (self.sensitivity / self.sigma) ** 2 if self.sigma > 0 else float("inf")
        except OverflowError:
            return float("inf")


def mean_sensitivity(
    clip: float, records: float, mechanism: Mechanism = "gaussian", slack: float | None = None
) -> float:
    """Sensitivity of the mean of `records` gradients clipped to norm `clip`: 2 clip (1 + slack) / n.

    Neighbours replace one record.
    `slack`: relative allowance for rounding, from `Rounding.slack` by the number of terms; 1e-6 up to some 10^9 terms.
    None: the slack of `records` terms centred at 0.
    For a sample, `records` is the public number that divides its sum; the sum has more terms. One record added or
    removed moves it by half of the sensitivity, which is how the accountant's pair for samples is built.
    On a grid, the value grows by 2^-20 for rounding to it and by 2^-37 for the noise. The grid's step is at most 2^-20
    of 2 clip / sqrt(dim).

    Raises ValueError for a bound or a number that is not positive, and for a negative slack.
    """
    if not (0 < clip < math.inf and 0 < records < math.inf and (slack is None or slack >= 0)):
        raise ValueError(f"no sum changes by clip {clip}, {records} records and slack {slack}")
    if slack is None:
        slack = CENTRED.slack(math.ceil(records))
    plain = 2.0 * clip * (1.0 + slack) / records
    return plain if mechanism == "gaussian" else plain * (1.0 + 2.0**-20) * (1.0 + 2.0**-37)


def gaussian_delta(delta: float, mechanism: Mechanism) -> float:
    """Part of delta available to the Gaussian mechanism that the noise stands for."""
    return delta if mechanism == "gaussian" else delta * (1.0 - RESERVED)
