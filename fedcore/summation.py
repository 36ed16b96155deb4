"""Sums over records in float64 with a proven bound on rounding: blocks of rows, then a tree.

Rows lie in blocks of B = 2^b, the last one shorter. A block is summed by any products and additions, in any order, with
or without FMA. Sums of blocks are added in pairs, (0, 1), (2, 3), ...; an odd last one goes up unchanged; then level by
level. `tree_sum` builds this tree like a binary counter, which holds one partial sum per level.

Theorem (ours; elementary). Let u = 2^-53 and gamma_k = k u / (1 - k u).
C bounds the norm of each of n computed terms: a row's factor, already rounded, times the row.
Let m = ceil(n / B) blocks, L = ceil(log2 m) levels, b = min(n, B), N_l = min(n, B 2^l).
If two lists of terms differ in one of them, their computed sums S and S' have

    |S - S'| <= 2 C (1 + rho),    rho = b gamma_{b+k} + u (1 + gamma_{b+k+L}) (N_1 + ... + N_L),

    N_1 + ... + N_L = n + B (2^L - 2) for L >= 1, which is at most 3 n - 2 B; 0 for L = 0.

k counts the roundings of a term in its block beyond its product and the b - 1 additions, before the tree or within it.

Proof. 1. A computed block has sum v_i (1 + theta_i) in each coordinate, |theta_i| <= gamma_{b+k}. Each term goes
through one product, at most b - 1 additions and k more roundings. So coordinates of the error are at most
gamma_{b+k} sum |v_ij|. By the triangle inequality its norm is at most gamma_{b+k} sum |v_i| <= b gamma_{b+k} C.
No root of the dimension appears. The error may point anywhere in S and in S', which makes 2 b gamma_{b+k} C.

2. All other blocks have equal bits, since a block's bits depend on its rows and the question alone. So have all
subtrees without the changed term.

3. On the path to the root, level l adds equal bits c to a in S, to a' in S'. Rounding to nearest moves a coordinate
by at most u |a_j + c_j|. Hence it moves the vector by at most u |a + c|. Both a and c are computed sums, over at most
N_l terms together, so |a + c| <= N_l C (1 + gamma_{b+k+L}). The two roundings may be opposite: 2 u N_l C (1 + gamma).
Nothing else differs.

4. B 2^l < n for l < L, since 2^(L-1) < m, and N_L = n: a geometric series. If terms have norms up to G > C but are at
most 2 C apart, the first two roundings grow by G / C. The factor is then 1 + rho G / C.

Assumptions: no operation mixes rows; a row's factor does not depend on other rows or on the rest of a sample; rows out
of a sample stay in place, with factor 0; float64 throughout, round to nearest, no flush to zero. Products below the
normal numbers lose less than 2^-1074 each, which is negligible beside bounds of at least 1e-100.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from fedcore.arrays import Matrix, Vector

BLOCK = 1024
"""B: the most rows of a block. Sums of more rows change their bits with it. At 65,536, 2 rho is too large at n = 10^9.
"""
LEAST_BLOCK = 64
"""The least rows of a full block, however long the rows are."""
CACHED = 2**23
"""Largest block of more than `LEAST_BLOCK` rows, in bytes: a processor's last-level cache."""
UNIT = 2.0**-53
"""u: half of the distance from 1 to the next number."""


def block_rows(features: int, places: int = 1) -> int:
    """Rows of a block, from records' width alone: B, or the largest power of two in `CACHED`.

    `places`: rows of a person, which all lie in one block. Raises ValueError for more of them than the theorem's B.
    """
    if not 1 <= places <= BLOCK:
        raise ValueError(f"a person has {places} rows, and a block of a sum at most {BLOCK}")
    rows = BLOCK
    while rows > LEAST_BLOCK and 8 * rows * features > CACHED:
        rows //= 2
    return max(rows // places, 1) * places


def blocks_of(rows: int, block: int) -> list[slice]:
    """Slices of the blocks of `rows` rows; one empty slice for no rows."""
    if rows <= block:
        return [slice(0, rows)]
    return [slice(start, min(start + block, rows)) for start in range(0, rows, block)]


def tree_sum(blocks: Sequence[slice], part: Callable[[slice], Vector | Matrix]) -> Vector | Matrix:
    """Tree sum of `part` over the blocks, in an array that the caller may change.

    `part` maps a block's slice to its sum, always of one shape and in a new array. Calls follow the order of the
    blocks. Memory holds at most one further sum per level of the tree.
    """
    if len(blocks) == 1:
        return part(blocks[0])
    waiting: list[Vector | Matrix] = []  # sums of 2^l blocks, the largest first: the binary digits of their number
    for number, rows in enumerate(blocks, 1):
        waiting.append(part(rows))
        while number % 2 == 0:
            _merge(waiting)
            number //= 2
    while len(waiting) > 1:
        _merge(waiting)
    return waiting.pop()


def _merge(waiting: list[Vector | Matrix]) -> None:
    last = waiting.pop()
    waiting[-1] += last


@lru_cache(maxsize=4096)
def rho(terms: int, block: int = BLOCK, more: int = 0) -> float:
    """The theorem's rho for n `terms`, rounded up; `more`: its k. It grows with each of the three.

    Raises ValueError for less than one term.
    """
    if terms < 1:
        raise ValueError(f"a sum of {terms} terms has no record to change")
    levels = (-(-terms // block) - 1).bit_length()
    inside, path = min(terms, block), terms + block * (2**levels - 2) if levels else 0
    bound = inside * gamma(inside + more) + UNIT * (1.0 + gamma(inside + more + levels)) * path
    return float(np.nextafter(bound * (1.0 + 2.0**-48), np.inf))


def gamma(roundings: int) -> float:
    """gamma_k = k u / (1 - k u), to within 2 u of itself."""
    return roundings * UNIT / (1.0 - roundings * UNIT)
