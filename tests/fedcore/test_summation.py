"""The tree of all long sums: its bound in exact arithmetic, its shape, and pairs of neighbours near the bound.

Sums computed in another way exceed the bound.
"""

import math
from fractions import Fraction

import numpy as np
import pytest

from fedcore.summation import BLOCK, CACHED, block_rows, blocks_of, gamma, rho, tree_sum

U = Fraction(1, 2**53)
N = 2**20


def exact_rho(n, block, more=0):
    """The theorem's rho as a fraction, level by level."""

    def gamma_of(k):
        return k * U / (1 - k * U)

    levels, covered = 0, block
    while covered < n:
        levels, covered = levels + 1, 2 * covered
    first = min(n, block)
    path = sum(min(n, block * 2**level) for level in range(1, levels + 1))
    return first * gamma_of(first + more) + U * (1 + gamma_of(first + more + levels)) * path


@pytest.mark.parametrize("block", [64, 256, 1024, 4096, 65536])
@pytest.mark.parametrize("more", [0, 4])
def test_rho_is_the_theorems_rounded_up(block, more):
    for n in (1, 2, 100, block, block + 1, 3 * block, 10**6, N, N + 1, 10**9, 2**40):
        wanted = exact_rho(n, block, more)
        assert wanted <= Fraction(rho(n, block, more)) <= wanted * (1 + Fraction(1, 2**46))
    with pytest.raises(ValueError, match="no record"):
        rho(0)


def test_rho_is_the_derivations_table():
    """Three digits, rounded up, of part A's table."""
    table = {
        256: (7.45e-12, 2.35e-10, 2.99e-9, 2.31e-7),
        1024: (1.12e-10, 3.44e-10, 3.09e-9, 2.31e-7),
        4096: (1.12e-10, 2.09e-9, 4.84e-9, 2.33e-7),
        65536: (1.12e-10, 4.78e-7, 4.80e-7, 7.08e-7),
    }
    for block, row in table.items():
        for n, shown in zip((10**3, 10**6, 10**7, 10**9), row, strict=True):
            unit = 10.0 ** (math.floor(math.log10(shown)) - 2)
            assert shown - 1.01 * unit < rho(n, block) <= shown * (1 + 1e-12)


def test_rho_grows_with_terms_block_and_roundings():
    """So the charge may take the largest block, and the most roundings, of any answer."""
    for n in (1, 10, 1000, 1025, 5000, 10**6, 10**9):
        for block in (64, 128, 256, 512):
            assert rho(n, block) <= rho(n, 2 * block) <= rho(n + 1, 2 * block) <= rho(n + 1, 2 * block, 4)


class Bracket:
    """A sum that remembers how it was made."""

    def __init__(self, text):
        self.text = text

    def __iadd__(self, other):
        self.text = f"({self.text}{other.text})"
        return self


@pytest.mark.parametrize(
    "blocks, shape",
    [
        (1, "0"),
        (2, "(01)"),
        (3, "((01)2)"),
        (4, "((01)(23))"),
        (5, "(((01)(23))4)"),
        (6, "(((01)(23))(45))"),
        (7, "(((01)(23))((45)6))"),
        (8, "(((01)(23))((45)(67)))"),
        (9, "((((01)(23))((45)(67)))8)"),
    ],
)
def test_pairs_are_added_and_an_odd_last_one_goes_up(blocks, shape):
    assert tree_sum(blocks_of(blocks, 1), lambda rows: Bracket(f"{rows.start}")).text == shape


def test_one_partial_sum_per_level_is_held():
    alive, most = 0, 0

    class Counted(Bracket):
        def __init__(self):
            nonlocal alive, most
            alive += 1
            most = max(most, alive)

        def __iadd__(self, other):
            return self

        def __del__(self):
            nonlocal alive
            alive -= 1

    tree_sum(blocks_of(1000, 1), lambda rows: Counted())
    assert most <= 1 + math.ceil(math.log2(1000))


def test_blocks_cover_all_rows_once_and_follow_from_width_and_places_alone():
    assert block_rows(1) == block_rows(64) == block_rows(CACHED // (8 * BLOCK)) == BLOCK == 1024
    assert block_rows(CACHED // (8 * BLOCK) + 1) == 512 and block_rows(10**6) == 64
    assert block_rows(3, places=10) == 1020 and block_rows(3, places=1000) == 1000 and block_rows(10**6, 100) == 100
    with pytest.raises(ValueError, match="1025 rows"):
        block_rows(3, places=1025)
    for rows in (0, 1, 1023, 1024, 1025, 5000):
        blocks = blocks_of(rows, 1024)
        assert [at for block in blocks for at in range(block.start, block.stop)] == list(range(rows))
        assert all(block.stop - block.start == 1024 for block in blocks[:-1])


def summed(x, block=BLOCK):
    """The routine with products as blocks."""
    return tree_sum(blocks_of(len(x), block), lambda rows: np.ones(rows.stop - rows.start) @ x[rows, None])[0]


def in_sequence(x, block=BLOCK):
    total = 0.0
    for rows in blocks_of(len(x), block):
        total += x[rows].sum()
    return total


def of_the_tree(b=10):
    """Pair 1 of the derivation: at every level one of the two rounds up, the other down. Returns D, D' and C."""
    block = 2**b
    g = 2.0 ** (b - 52)
    big = 1 + 2.0**-6
    clip = big + g
    x = np.ones(N)
    x[0] = clip
    # Others of block 0 are raised, by multiples of g, until D's block has the sum block + 2 clip + 8 g.
    wanted = Fraction(block) + 2 * Fraction(clip) + 8 * Fraction(g)
    missing = round((wanted - sum(map(Fraction, x[:block]))) / Fraction(g))
    most = round(2.0**-6 / g)
    for place in range(1, block):
        step = min(most, missing)
        x[place] += step * g
        missing -= step
    assert missing == 0 and x[:block].max() <= clip
    total, covered, level = sum(map(Fraction, x[:block])), block, 1
    while covered < N:
        unit = Fraction(g) * 2 ** (level - 1)
        sibling = Fraction(covered)
        raised = int((3 - (total + sibling) / unit) % 4)
        x[covered] += float(raised * unit)
        assert Fraction(x[covered]) == 1 + raised * unit
        assert (total + sibling + raised * unit) / unit % 4 == 3
        total = Fraction(float(total + sibling + raised * unit))
        covered, level = 2 * covered, level + 1
    other = x.copy()
    other[0] = -clip
    return x, other, clip


def apart(one, other, clip):
    """|S - S'| / 2C - 1, exactly."""
    return abs(Fraction(float(one)) - Fraction(float(other))) / (2 * Fraction(clip)) - 1


@pytest.mark.parametrize("b", [8, 10, 12])
def test_the_worst_pair_of_the_tree_comes_to_what_the_derivation_says(b):
    """2 u (n - B) / C exactly: almost all of the tree's part of rho, which therefore cannot be smaller."""
    one, other, clip = of_the_tree(b)
    block = 2**b
    found = apart(summed(one, block), summed(other, block), clip)
    assert found == 2 * U * (N - block) / Fraction(clip)
    of_tree = exact_rho(N, block) - block * (block * U / (1 - block * U))
    assert Fraction(98, 100) * of_tree < found < of_tree < exact_rho(N, block)
    if b == 10:
        assert float(found) == pytest.approx(2.290e-10, rel=1e-3)


def of_sequences(block=BLOCK):
    """Pair 2: 2^18 / B block sums of B, one of 1, and the rest -2^-35 (1 - 2^-20): D' replaces a 1 by -1."""
    full = 2**18 // block
    x = np.zeros(N)
    x[: full * block] = 1.0
    x[full * block] = 1.0
    x[(full + 1) * block :: block] = -(2.0**-35) * (1 - 2.0**-20)
    other = x.copy()
    other[0] = -1.0
    return x, other


def test_blocks_in_sequence_break_the_bound_that_the_tree_keeps():
    one, other = of_sequences()
    bound = rho(N)
    assert apart(summed(one), summed(other), 1.0) <= bound
    broken = apart(in_sequence(one), in_sequence(other), 1.0)
    assert broken > 10 * bound  # and is far below the slack of 1e-6, which would let it pass
    assert broken < 1e-6


def of_one_product():
    """Pair 3: 2^19 + 1 records of 1, and the rest -2^-36 (1 - 2^-20), in the first of 8 columns."""
    X = np.zeros((N, 8))
    X[: 2**19 + 1, 0] = 1.0
    X[2**19 + 1 :, 0] = -(2.0**-36) * (1 - 2.0**-20)
    other = X.copy()
    other[0, 0] = -1.0
    return X, other


def test_one_product_over_all_records_breaks_what_is_charged():
    one, other = of_one_product()
    sums = [
        tree_sum(blocks_of(N, BLOCK), lambda rows, X=X: np.ones(rows.stop - rows.start) @ X[rows])[0]
        for X in (one, other)
    ]
    assert apart(*sums, 1.0) <= rho(N)
    products = [(np.ones(N) @ X)[0] for X in (one, other)]
    assert apart(*products, 1.0) > 3e-6


@pytest.mark.parametrize("n", [1, 700, 1024, 1025, 5000, 10**5, 2**17 + 1])
def test_sums_of_any_length_are_as_near_to_the_exact_one_as_one_block_and_its_levels_allow(n):
    """Against math.fsum: gamma of the additions on a path, times the sum of sizes."""
    rng = np.random.default_rng(n)
    x = rng.standard_normal(n) * 10.0 ** rng.uniform(-12, 0, n)
    levels = math.ceil(math.log2(-(-n // BLOCK)))
    error = abs(summed(x) - math.fsum(x))
    assert error <= gamma(min(n, BLOCK) + levels) * math.fsum(abs(x))


def test_no_pair_that_a_search_finds_breaks_rho():
    """Neighbours at random, and at every power of two where the units of two sums differ, at many lengths."""
    rng, largest = np.random.default_rng(4), 0.0
    for trial in range(150):
        n = int(rng.integers(1025, 40000))
        x = np.ones(n) if trial % 2 else rng.uniform(0.5, 1.0, n)
        tiny = rng.integers(1, n)
        x[tiny:] = -(2.0 ** -rng.integers(36, 45)) * (1 - 2.0**-20)
        clip = rng.uniform(0.5, 1.0)
        x *= clip * (1 - 2.0**-50)  # at most clip, in a unit that clip does not have
        x[0], other = clip, x.copy()
        other[0] = -clip
        found = float(apart(summed(x), summed(other), clip))
        largest = max(largest, found / rho(n))
        assert found <= rho(n)
    assert largest > 0.0
