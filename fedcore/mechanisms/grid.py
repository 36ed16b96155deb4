"""Noise of a guarded silo: the clipped sum on a grid, plus discrete Gaussian noise on that grid.

Continuous samplers in floating point give away coordinates by the set of their values (Mironov 2012; Holohan, Braghin
2021). Here sum and noise are integers, times a step that is a power of two, found from public numbers only.

It is as private as the Gaussian mechanism, in the exact sense of its curve (mu-GDP), which the accountant uses:

1. Rounding. Nearest integers of a / step and b / step differ in norm by at most |a - b| / step + sqrt(d). Each
   coordinate of each vector moves by at most 1/2. (Kairouz, Liu, Steinke 2021 have the same step, with random rounding
   to lose less.)
2. The discrete Gaussian with parameter s is a post-processing of the continuous one with variance s^2 - 5. Let K(g) be
   a discrete Gaussian with parameter sqrt(5) centred at the real number g. K commutes with shifts by integers. So for
   integers v, K(v + N(0, s^2 - 5)) is v + noise, where the noise has at n the weight

       integral of phi_{s^2-5}(g) phi_5(n - g) / c(g) dg,   c(g) = sum over the integers m of phi_5(m - g).

   For every g, c(g) is within 1 +- e, e = 2.1 exp(-2 pi^2 5) < 2^-140 (Poisson summation; the smoothing parameter of
   Micciancio and Regev 2007). Without c(g) the integral is phi_{s^2}(n): the discrete Gaussian up to its constant.
   So the total variation between the two is at most e / (1 - e). (Convolution of discrete Gaussians: Peikert 2010.)
3. The sampler is exact but for the part beyond 13 s (`discrete_gaussian`).

So each answer is a post-processing of a Gaussian mechanism, up to a total variation of 2^-125 per coordinate. Its
sensitivity is |a - b| / step + sqrt(d), its variance s^2 - 5. `grid_sensitivity` charges the former (s >= 2^20, so the
5 costs less than 2^-38), `delta_cost` the total variation. Canonne, Kamath and Steinke (2020) and Kairouz, Liu and
Steinke prove concentrated DP of the discrete Gaussian; the curve needs the argument above, which is ours.

Further assumptions: HMAC-SHA-256 and ChaCha20 are pseudorandom functions, and the run key is secret.
"""

from __future__ import annotations

import hmac
import math
import struct
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from fedcore.accounting.events import GaussianRelease, mean_sensitivity
from fedcore.accounting.rounding import ROUNDING
from fedcore.arrays import Vector
from fedcore.directed_rounding import in_full
from fedcore.errors import InputError
from fedcore.mechanisms.discrete_gaussian import REACH, Keystream, discrete_gaussian

FINENESS = 2.0**-20
"""Largest relative increase of the sensitivity by the grid, and largest step relative to the noise."""

_DISTANCE = 2.0**-125


@dataclass(frozen=True, slots=True)
class Grid:
    """The grid of a run's sums, from public numbers.

    `noise`: standard deviation of the noise per coordinate, in units of the sum. `step`: grid step, same units, a power
    of two. `limit`: norm of the largest admissible rounded sum, in steps. `dim`: length of the sums.
    """

    noise: float
    step: float
    limit: float
    dim: int

    @classmethod
    def of(
        cls, noise: float, clip: float, count: int, dim: int, sampled: bool = False, norm: float | None = None
    ) -> Grid:
        """The grid for sums of at most `count` gradients of norm at most `clip`, of length `dim`.

        `norm`: the largest norm of one term where that is not `clip`. For terms that are not centred at zero, `clip` is
        half of the largest difference between two. `sampled`: a record may be absent from a sum. The step is the
        largest power of two that is at most 2^-20 of the noise, and of 2 clip / sqrt(dim). The latter is the move by a
        replaced record; with `sampled` it is clip / sqrt(dim). For one record alone moves a sum by half, while rounding
        is the same. Raises InputError where some admissible sum with its noise would not fit into 53 bits.
        """
        if not (0.0 < noise < math.inf and 0.0 < clip < math.inf and count > 0 and dim > 0):
            raise InputError(
                f"noise {in_full(noise)}, clip {clip:g}, {count} records, {dim} weights: all must be above 0"
            )
        finest = FINENESS * min(noise, (1.0 if sampled else 2.0) * clip / math.sqrt(dim))
        exponent = math.frexp(finest)[1] - 1
        if not -1000 <= exponent <= 900:
            raise InputError(f"noise {in_full(noise)} with clip {clip:g} is outside of what a grid is made for")
        step = math.ldexp(1.0, exponent)
        # Half a step per coordinate for rounding, and a margin for the rounding of the norm itself.
        largest = clip if norm is None else norm
        limit = (count * (largest / step) * (1.0 + ROUNDING) + math.sqrt(dim)) * (1.0 + 2.0**-30)
        if not noise / step < 2.0**49:
            raise InputError(f"noise {in_full(noise)} is more than 2^49 steps of a grid for gradients of norm {clip:g}")
        if limit + (REACH + 1) * (noise / step) >= 2.0**53:
            raise InputError(
                f"sums of {count} gradients of norm {clip:g} with {dim} weights and noise {in_full(noise)} do not fit "
                "into 53 bits on a grid that is fine enough; noise, records or weights must be fewer"
            )
        return cls(noise, step, limit, dim)


def grid_sensitivity(sensitivity: float, step: float, dim: int) -> float:
    """Sensitivity to charge for sums rounded to the grid. `sensitivity`: of the exact sums.

    It is a Euclidean norm in the units of both arguments: those of the mean, if the step too is divided by the count.
    It covers step 1 of the module's argument, and with 2^-38 the variance of step 2. Valid with `Grid.of`, whose noise
    is at least 2^20 steps.
    """
    return (sensitivity + math.sqrt(dim) * step) * (1.0 + 2.0**-38)


def charged_grid(
    event: GaussianRelease, clip: float, count: float, dim: int, norm: float | None = None, slack: float | None = None
) -> Grid:
    """The grid for the sums behind `event`, which are divided by `count` after noise was added.

    A sum has up to as many terms as the event has positions, also where the divisor is the expected size of a sample.
    For the accountant, a sampled record that joins moves an answer by half of the sensitivity. Rounding then has to fit
    into each half by itself. `norm`: as for `Grid.of`. `slack`: as for `mean_sensitivity`, for the rounding of the sum
    before the grid. Raises InputError where there is no grid, or the event's sensitivity does not cover rounding to it.
    """
    sampled = event.sampling != "full"
    grid = Grid.of(event.sigma * count, clip, event.stop - event.start, dim, sampled, norm)
    parts = 2.0 if sampled else 1.0
    moved = mean_sensitivity(clip, count, slack=slack) / parts
    if grid_sensitivity(moved, grid.step / count, dim) > event.sensitivity / parts:
        raise InputError("the plan does not charge for rounding to its grid")
    return grid


def delta_cost(dim: int, answers: int, epsilon: float) -> float:
    """Increase of delta by the distance of `answers` sums of `dim` coordinates from Gaussian noise.

    If the Gaussian mechanisms are (epsilon, delta)-DP, the answers are (epsilon, delta + delta_cost)-DP, also when they
    are adaptive. Total variations add up, and count once for each of the two data sets, for one of them e^epsilon fold.
    Infinite where e^epsilon overflows.
    """
    return math.inf if epsilon > 700.0 else (1.0 + math.exp(epsilon)) * answers * dim * _DISTANCE


class GridGaussian:
    """Noised sums on a grid; the noise is keyed by the sum, as in `fedcore.mechanisms.gaussian`."""

    def noised(self, run_key: bytes, context: bytes, total: Vector, grid: Grid) -> Vector:
        """`total`, rounded to the grid, with noise: exact multiples of the step, in a new array.

        The noise's key is HMAC-SHA-256 under the run key, of: length of context, context, SHA-256 of the bytes of
        `total`. The same three repeat the same bits; a total that differs in its last bit gets independent noise.
        Raises ValueError for a total of another type or length. Raises ArithmeticError, without any value, for a total
        that clipped records cannot have.
        """
        if total.dtype != np.float64 or total.shape != (grid.dim,):
            raise ValueError(f"a sum for this grid is {grid.dim} float64, not {total.shape} {total.dtype}")
        steps = total * (1.0 / grid.step)
        np.rint(steps, out=steps)
        # The negation also refuses NaN.
        if not float(steps @ steps) <= grid.limit**2:
            raise ArithmeticError("the sum before noise is larger than clipped records can make it")
        digest = sha256(np.ascontiguousarray(total).data).digest()
        key = hmac.digest(run_key, struct.pack("<Q", len(context)) + context + digest, "sha256")
        # Integers below 2^53 throughout: no addition and no product here rounds.
        discrete_gaussian(grid.noise / grid.step).add(Keystream(key), steps)
        steps *= grid.step
        return steps
