"""Standard normals, one per raw word: a cubic in one of 3,393 cells of the inverse distribution.

A word's 53 upper bits k give the tail probability p = (k + 1) / 2^54 in (0, 1/2], its lowest bit the sign. The cell is
p's binary exponent and the next six bits, so cells are as fine in the tail as in the middle. Each cubic interpolates
Wichura's algorithm AS 241 (PPND16; Applied Statistics 37, 1988) at four Chebyshev points of its cell. The table is
computed at its first use, by the same exact operations on every machine.

Error: below 5e-11 for every word, against mpmath. Neighbouring cells meet within that. The largest number is 8.3, which
a normal exceeds with probability 2^-53.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from fedcore.draws.elementary import Array, horner, log

_OCTAVES = 53
_BITS = 6
_SHIFT = np.uint64(52 - _BITS)
_FIRST = np.uint64(1023 << _BITS)
_BLOCK = 1 << 13
"""Words whose intermediate values fit a core's cache."""

_MIDDLE = (
    [3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4,
     4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3],
    [1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
     2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3],
)  # fmt: skip
_TAIL = (
    [1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0, 3.64784832476320460504e0,
     1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4],
    [1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
     1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9],
)  # fmt: skip
_FAR = (
    [6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0, 2.96560571828504891230e-1,
     2.65321895265761230930e-2, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7],
    [1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2,
     7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15],
)  # fmt: skip
_CHEBYSHEV = float.fromhex("0x1.d906bcf328d46p-1"), float.fromhex("0x1.87de2a6aea963p-2")
"""cos(pi/8) and cos(3 pi/8): with their negatives the four points of a cell, whose half width is 1."""


def upper_quantile(p: Array) -> Array:
    """z with P(N(0, 1) > z) = p, for p in (0, 1/2], by AS 241; relative error below 1e-15."""
    q = 0.5 - p
    middle = 0.180625 - q * q
    r = np.sqrt(-log(p))
    near, far = r - 1.6, r - 5.0
    return np.asarray(
        np.where(
            q <= 0.425,
            q * horner(middle, _MIDDLE[0]) / horner(middle, _MIDDLE[1]),
            np.where(
                r <= 5.0,
                horner(near, _TAIL[0]) / horner(near, _TAIL[1]),
                horner(far, _FAR[0]) / horner(far, _FAR[1]),
            ),
        )
    )


@cache
def _table() -> tuple[Array, ...]:
    """Centres of the cells, in units of 2^-54, and c_0 to c_3 of each cell's cubic in (k + 1) - centre."""
    octave, place = np.divmod(np.arange(_OCTAVES << _BITS), 1 << _BITS)
    width = np.ldexp(1.0, octave - _BITS)
    centre = (2.0**_BITS + 0.5 + place) * width
    half = width * 0.5
    outer, inner = _CHEBYSHEV
    values = {t: upper_quantile((centre + half * t) * 2.0**-54) for t in (-outer, -inner, inner, outer)}
    # Even and odd parts at the two distances, then a line in t^2 of each.
    even_outer, even_inner = (values[outer] + values[-outer]) * 0.5, (values[inner] + values[-inner]) * 0.5
    odd_outer = (values[outer] - values[-outer]) / (2.0 * outer)
    odd_inner = (values[inner] - values[-inner]) / (2.0 * inner)
    gap = outer * outer - inner * inner
    second, third = (even_outer - even_inner) / gap, (odd_outer - odd_inner) / gap
    constant, first = even_inner - second * (inner * inner), odd_inner - third * (inner * inner)
    columns = centre, constant, first / half, second / (half * half), third / (half * half * half)
    # One cell more: p = 1/2, of which z is 0.
    table = tuple(np.append(column, 0.0) for column in columns)
    for column in table:
        column.setflags(write=False)
    return table


def normals(words: NDArray[np.uint64]) -> Array:
    """Independent N(0, 1) in the shape of `words`, each a function of its word alone."""
    out = np.empty(words.shape)
    given, made = words.reshape(-1), out.reshape(-1)
    for start in range(0, given.size, _BLOCK):
        _transform(given[start : start + _BLOCK], made[start : start + _BLOCK])
    return out


def _transform(words: NDArray[np.uint64], out: Array) -> None:
    centre, constant, first, second, third = _table()
    place = words >> np.uint64(11)
    place += np.uint64(1)
    t = place.astype(np.float64)  # exact: at most 2^53
    np.right_shift(t.view(np.uint64), _SHIFT, out=place)
    place -= _FIRST
    cell = place.view(np.int64)
    t -= centre.take(cell)
    third.take(cell, out=out, mode="clip")
    for coefficients in (second, first, constant):
        out *= t
        out += coefficients.take(cell)
    np.left_shift(words, np.uint64(63), out=place)
    out.view(np.uint64)[...] ^= place
