"""Draws of one key in order of calls: uniforms, normals, integers, choices, permutations, coins.

Methods have the names of `numpy.random.Generator`, but none of its streams. Every number takes one word of its own, and
a beta two. So a longer draw begins with the numbers of a shorter one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcore.draws.elementary import Array, cosine_of_turn, exp, log
from fedcore.draws.normal import normals
from fedcore.draws.philox import Philox, Words

Shape = int | tuple[int, ...]
LARGEST_BOUND = 2**32

_HALF_WORD = np.uint64(32)
_LOW = np.uint64(2**32 - 1)


class Draws:
    """Simulated draws under a key of 16 bytes. Two objects of one key repeat each other."""

    def __init__(self, key: bytes) -> None:
        self._philox = Philox()
        self._philox.start(key)

    def words(self, n: int) -> Words:
        """The next n raw words (n,)."""
        return self._philox.words(n)

    def random(self, size: Shape) -> Array:
        """Uniforms on the multiples of 2^-53 in [0, 1): the upper 53 bits of a word."""
        return np.asarray((self._taken(size) >> np.uint64(11)).astype(np.float64) * 2.0**-53)

    def uniform(self, low: float, high: float, size: Shape) -> Array:
        """low + (high - low) u."""
        return np.asarray(low + (high - low) * self.random(size))

    def standard_normal(self, size: Shape) -> Array:
        """N(0, 1), to 5e-11 (`fedcore.draws.normal`)."""
        return normals(self._taken(size))

    def logistic(self, size: Shape) -> Array:
        """Standard logistic: ln u - ln(1 - u) of the middles u of 2^52 equal intervals."""
        u = self._inner(size)
        return np.asarray(log(u) - log(1.0 - u))

    def gumbel(self, size: Shape) -> Array:
        """Standard Gumbel: -ln(-ln u) of the middles u of 2^52 equal intervals."""
        return np.asarray(-log(-log(self._inner(size))))

    def beta(self, a: float, b: float, size: Shape) -> Array:
        """Beta(a, a) for a > 1/2, by Ulrich's formula. Raises ValueError for other parameters.

        1/2 + cos(2 pi v)/2 sqrt(1 - u^(2/(2a - 1))). Source: Devroye 1986, chapter IX, section 3.5.
        """
        if not a == b > 0.5:
            raise ValueError(f"beta({a:g}, {b:g}): draws are of beta(a, a) with a > 1/2")
        u, v = self._inner(size), self.random(size)
        far = np.sqrt(1.0 - exp(log(u) * (2.0 / (2.0 * a - 1.0))))
        return np.asarray(0.5 + 0.5 * (far * cosine_of_turn(v)))

    def integers(self, low: int, high: int, size: Shape) -> NDArray[np.int64]:
        """Integers of low, ..., high - 1: the upper word of (word times count).

        Raises ValueError unless 1 <= high - low <= 2^32. A probability is off by at most count / 2^64, relative.
        """
        count = high - low
        if not 1 <= count <= LARGEST_BOUND:
            raise ValueError(f"integers from {low} to below {high}: there must be 1 to 2^32 of them")
        words, factor = self._taken(size), np.uint64(count)
        upper = (words >> _HALF_WORD) * factor + (((words & _LOW) * factor) >> _HALF_WORD)
        return np.asarray((upper >> _HALF_WORD).astype(np.int64) + low)

    def permutation(self, x: int | ArrayLike) -> NDArray[Any]:
        """The numbers below x, or the elements of x (n, ...), sorted by n words.

        Equal words, which 10^6 elements have with probability 3e-8, leave their elements in order.
        """
        things = np.arange(x) if isinstance(x, int | np.integer) else np.asarray(x)
        return np.asarray(things[np.argsort(self.words(len(things)), kind="stable")])

    def choice(self, x: int | ArrayLike, size: int, replace: bool) -> NDArray[Any]:
        """`size` of the numbers below x, or of the elements of x.

        Without replacement they are the first of a permutation of all. Raises ValueError for more than there are.
        """
        things = np.arange(x) if isinstance(x, int | np.integer) else np.asarray(x)
        if replace:
            return np.asarray(things[self.integers(0, len(things), size)])
        if size > len(things):
            raise ValueError(f"a choice of {size} of {len(things)} without replacement does not exist")
        return self.permutation(things)[:size]

    def coins(self, rate: float, size: Shape) -> NDArray[np.bool_]:
        """True with probability `rate`, rounded down to 64 bits. Raises ValueError unless 0 <= rate < 1."""
        if not 0.0 <= rate < 1.0:
            raise ValueError(f"coins of rate {rate}: it must be at least 0, and below 1")
        return np.asarray(self._taken(size) < np.uint64(math.floor(math.ldexp(rate, 64))))

    def _taken(self, size: Shape) -> Words:
        shape = (size,) if isinstance(size, int | np.integer) else size
        return self.words(math.prod(shape)).reshape(shape)

    def _inner(self, size: Shape) -> Array:
        """Uniforms strictly between 0 and 1: (k + 1/2) / 2^52 of the upper 52 bits k."""
        return np.asarray(((self._taken(size) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52)
