"""The draws written down a second time: integers of Python for Philox, mpmath for functions, one number at a time."""

from __future__ import annotations

import mpmath

MASK = 2**64 - 1
mpmath.mp.dps = 40


def philox(key: bytes, n: int) -> list[int]:
    """The first n words of Philox4x64-10 (Salmon et al. 2011, section 3.3), counters 1, 2, ... in the lowest word."""
    words: list[int] = []
    counter = 0
    while len(words) < n:
        counter += 1
        x = [counter & MASK, counter >> 64, 0, 0]
        k = [int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")]
        for _ in range(10):
            first, second = 0xD2E7470EE14C6C93 * x[0], 0xCA5A826395121157 * x[2]
            x = [(second >> 64) ^ x[1] ^ k[0], second & MASK, (first >> 64) ^ x[3] ^ k[1], first & MASK]
            k = [(k[0] + 0x9E3779B97F4A7C15) & MASK, (k[1] + 0xBB67AE8584CAA73B) & MASK]
        words += x
    return words[:n]


def upper_quantile(p: float | mpmath.mpf) -> mpmath.mpf:
    """z with P(N(0, 1) > z) = p for 0 < p <= 1/2, to 35 digits."""
    p = mpmath.mpf(p)
    if p == 0.5:
        return mpmath.mpf(0)
    if p > 1e-4:
        return mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * p)
    start = mpmath.sqrt(-2 * mpmath.log(p)) * 0.95
    return mpmath.findroot(lambda z: mpmath.log(mpmath.erfc(z / mpmath.sqrt(2)) / 2) - mpmath.log(p), start)


def normal(word: int) -> mpmath.mpf:
    """The exact normal of a word: tail probability of its 53 upper bits, sign of its lowest one."""
    z = upper_quantile(mpmath.mpf((word >> 11) + 1) / 2**54)
    return -z if word & 1 else z


def log(x: float) -> float:
    """As the package evaluates it, in floats of Python."""
    mantissa, exponent = mpmath.frexp(mpmath.mpf(x))
    m, e = float(mantissa), int(exponent)
    if m < 0.7071067811865476:
        m, e = m * 2.0, e - 1
    f = m - 1.0
    s = f / (2.0 + f)
    square = s * s
    series = 1.0 / 23.0
    for k in range(10, 0, -1):
        series = series * square + 1.0 / (2 * k + 1)
    high, low = float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")
    return e * high + (f + (e * low + s * (2.0 * (square * series) - f)))


def tabled_normal(word: int, coefficients: dict[str, tuple[list[float], list[float]]]) -> float:
    """The number of a word bit by bit as documented: AS 241 at four Chebyshev points of its cell, then the cubic.

    `coefficients`: numerator and denominator of AS 241's "middle", "tail" and "far" parts, lowest power first.
    """

    def ratio(part: str, x: float) -> float:
        numerator, denominator = (_poly(of, x) for of in coefficients[part])
        return numerator / denominator

    def quantile(p: float) -> float:
        q = 0.5 - p
        if q <= 0.425:
            numerator, denominator = (_poly(of, 0.180625 - q * q) for of in coefficients["middle"])
            return q * numerator / denominator
        r = float(mpmath.sqrt(mpmath.mpf(-log(p))))  # 40 digits, then rounded: the nearest float, as IEEE's root is
        return ratio("tail", r - 1.6) if r <= 5.0 else ratio("far", r - 5.0)

    k = (word >> 11) + 1
    if k == 2**53:
        return -0.0 if word & 1 else 0.0
    octave = k.bit_length() - 1
    width = 2.0 ** (octave - 6)
    place = int(k // width) - 64
    centre, half = (64.5 + place) * width, width * 0.5
    outer, inner = float(mpmath.cos(mpmath.pi / 8)), float(mpmath.cos(3 * mpmath.pi / 8))
    at = {t: quantile((centre + half * t) * 2.0**-54) for t in (-outer, -inner, inner, outer)}
    even = [(at[t] + at[-t]) * 0.5 for t in (outer, inner)]
    odd = [(at[t] - at[-t]) / (2.0 * t) for t in (outer, inner)]
    gap = outer * outer - inner * inner
    second, third = (even[0] - even[1]) / gap, (odd[0] - odd[1]) / gap
    constant, first = even[1] - second * (inner * inner), odd[1] - third * (inner * inner)
    t = float(k) - centre
    z = third / (half * half * half)
    for coefficient in (second / (half * half), first / half, constant):
        z = z * t + coefficient
    return -z if word & 1 else z


def _poly(coefficients: list[float], x: float) -> float:
    total = coefficients[-1]
    for coefficient in coefficients[-2::-1]:
        total = total * x + coefficient
    return total
