"""Exact samples of the discrete Gaussian from a keyed bit stream, a few nanoseconds each.

P(x) is proportional to exp(-x^2 / (2 s^2)) on the integers within 13 s of zero (Canonne, Kamath, Steinke 2020, their
mechanism; their sampler is exact too, but takes one coordinate at a time). The sampler is Ahrens's one-table rejection
(Computing 54, 1995), with integers where he has real numbers:

- The line is cut into cells of W = 2^b integers, 32 to 64 of them per s. Over each cell stands a column of unit
  rectangles. `sure` ones are wholly below F(x) = scale * exp(-x^2 / (2 s^2)); `open` ones on top reach above it.
- All columns together have exactly 2^16 rectangles, so 16 random bits choose one without any rounding; b further bits
  choose the integer in its cell. In a sure rectangle it is accepted. In an open one it is accepted if a uniform
  height U among the open rectangles is below F: `sure + open * U < F(x)`. Rejected ones are drawn anew.

So an integer of a cell is returned with weight sure + open * (F(x) - sure) / open = F(x), whatever the counts. The
table needs no rounding. Comparisons are in double precision with a margin far above its error. Those within the margin
(fewer than 2^-30 of the draws) are repeated in decimal arithmetic, with as many digits and bits of U as needed. The
only distance from the discrete Gaussian is its part beyond 13 s. For s >= 2^20 that is below 2^-125.8, by
`P(X >= m) <= P(N(0, s^2) >= m - 1)` (Canonne, Kamath, Steinke 2020).

The time of a draw depends on the noise (by the number of rejections), as with any rejection.
"""

from __future__ import annotations

import decimal
import math
from decimal import Decimal
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from fedcore.arrays import Vector

REACH = 13
"""Samples lie within this many s of zero."""

_SLOTS = 16
_LEAST = 32.0
# Relative error granted to F in double precision. Its exponent is below 100 and off by less than 2^-43; an error of
# NumPy's exp is a few units of 2^-53, and a thousand times that would still be covered.
_DOUBT = 2.0**-40
_BELOW_SLOT = 64 - _SLOTS
_PIECE = 1 << 13


class Keystream:
    """Uniform 64-bit words of ChaCha20 (Bernstein 2008; RFC 8439's core) under a 32-byte key.

    They begin at block 0, so a key must be used for one stream only. ChaCha20 in counter mode is assumed to be a
    pseudorandom function. AES would be assumed to be a permutation only, whose blocks never repeat.
    """

    def __init__(self, key: bytes) -> None:
        self._encryptor = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
        self._ahead: npt.NDArray[np.uint64] = np.empty(0, dtype=np.uint64)
        self._at = 0

    def words(self, n: int) -> npt.NDArray[np.uint64]:
        """The next n words, read-only. Words drawn ahead are dropped when they do not suffice."""
        start = self._at
        if start + n > self._ahead.size:
            # One call of the library serves a small draw with its comparisons and repetitions.
            self._ahead = np.frombuffer(self._encryptor.update(bytes(8 * (n + n // 16 + 32))), dtype="<u8")
            start = 0
        self._at = start + n
        return self._ahead[start : self._at]


class DiscreteGaussian:
    """Table and sampler for one s (in grid steps, 32 <= s < 2^49). Raises ValueError for another s.

    `support`: least and largest possible sample. A table has 512 KB and takes half a millisecond to make;
    `discrete_gaussian` caches those in use.
    """

    def __init__(self, s: float) -> None:
        if not _LEAST <= s < 2.0**49:
            raise ValueError(f"a discrete Gaussian of {s:g} grid steps; the sampler is for 32 to 2^49")
        self.s = s
        self._shift = math.frexp(s)[1] - 6
        width = 1 << self._shift
        self._half = math.ceil(REACH * s / width)
        self.support = (-self._half * width, self._half * width - 1)
        near = np.arange(self._half) * width
        # Cell j holds j W to j W + W - 1, its mirror image -j W - 1 to -j W - W.
        # So |x| is from j W to j W + W.
        high, low = (np.exp(-0.5 * (x / s) ** 2) for x in (near, near + width))
        # Columns have whole rectangles, so their number is only roughly proportional to the scale.
        self._scale = float(2**_SLOTS / (2.0 * high.sum()))
        while (top := np.ceil(high * (self._scale * (1.0 + _DOUBT))).astype(np.int64)).sum() > 2 ** (_SLOTS - 1):
            self._scale *= 2 ** (_SLOTS - 1) / float(top.sum())
        sure = np.floor(low * (self._scale * (1.0 - _DOUBT))).astype(np.int64)
        # Spare rectangles lie over the outermost cells: open ones may have any height.
        top[-1] += 2 ** (_SLOTS - 1) - top.sum()
        # Indexed by cell: those left of zero, -1 to -half, are found from the end, as Python counts.
        starts = np.concatenate((near, near - self._half * width))
        columns = [np.concatenate((column, column[::-1])) for column in (sure, top - sure)]
        self._starts = np.concatenate([np.repeat(starts, column) for column in columns])
        self._sure, self._open = (column.astype(np.float64) for column in columns)
        self._open_per_word = self._open * 2.0**-64
        self._first_open = np.uint64(int(columns[0].sum()) << _BELOW_SLOT)
        self._log_scale = math.log(self._scale)
        self._margin = 4.0 * float(top.max()) * _DOUBT
        self._offset = np.uint64(width - 1)

    def add(self, stream: Keystream, steps: Vector) -> None:
        """Adds independent samples to all coordinates of `steps`, in place; exact while all stays below 2^53."""
        # Temporaries of one piece stay in the processor's cache.
        for at in range(0, steps.size, _PIECE):
            piece = steps[at : at + _PIECE]
            piece += self.draw(stream, piece.size)

    def draw(self, stream: Keystream, n: int) -> npt.NDArray[np.int64]:
        """n independent samples; the number of words taken from the stream depends on the samples."""
        # Some 2 % are rejected; the surplus nearly always replaces them without another turn.
        words = stream.words(n + n // 32 + 8)
        samples = self._starts.take((words >> _BELOW_SLOT).view(np.int64))
        samples |= (words & self._offset).view(np.int64)
        keep = words < self._first_open
        undecided = (~keep).nonzero()[0]
        keep[undecided] = self._accept(samples[undecided], stream)
        accepted = samples[keep][:n]
        return accepted if accepted.size == n else np.concatenate((accepted, self.draw(stream, n - accepted.size)))

    def _accept(self, samples: npt.NDArray[np.int64], stream: Keystream) -> npt.NDArray[np.bool_]:
        """True where sure + open * U < F(sample), for samples in open rectangles, with new U."""
        heights = stream.words(samples.size)
        cells = samples >> self._shift
        target = samples * (math.sqrt(0.5) / self.s)
        target *= target
        np.exp(self._log_scale - target, out=target)
        level = heights * self._open_per_word[cells]
        level += self._sure[cells]
        target -= level
        accepted = target > 0.0
        np.abs(target, out=target)
        for at in (target <= self._margin).nonzero()[0]:
            accepted[at] = self._below(int(samples[at]), int(heights[at]), stream)
        return accepted

    def _below(self, sample: int, height: int, stream: Keystream) -> bool:
        """The comparison of `_accept`, exactly. `height`: first 64 bits of U; the stream gives further ones."""
        cell = sample >> self._shift
        sure, open_, bits = int(self._sure[cell]), int(self._open[cell]), 64
        while True:
            digits = 50 + bits // 3
            with decimal.localcontext(decimal.Context(prec=digits, Emin=-(10**6), Emax=10**6)):
                ratio = Decimal(sample) / Decimal(self.s)
                target = Decimal(self._scale) * (ratio * ratio / -2).exp()
                # U is in [height, height + 1) / 2^bits, to be compared with (F - sure) / open.
                limit = (target - sure) / open_ * 2**bits
                error = (target + sure) / open_ * 2**bits * Decimal(10) ** (6 - digits)
                if height + 1 <= limit - error:
                    return True
                if height >= limit + error:
                    return False
            height = height << 64 | int(stream.words(1)[0])
            bits += 64


@lru_cache(maxsize=32)
def discrete_gaussian(s: float) -> DiscreteGaussian:
    """The sampler for this s, from a cache."""
    return DiscreteGaussian(s)
