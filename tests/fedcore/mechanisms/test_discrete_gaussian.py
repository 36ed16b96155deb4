"""The sampler against probabilities of many digits; its stream; statistics that a wrong table or reused words fail.

Keys are fixed, so nothing here is flaky. With other keys statistical tests fail by chance, as often as stated.
"""

import mpmath
import numpy as np
import pytest
from scipy import stats

from fedcore.mechanisms.discrete_gaussian import REACH, DiscreteGaussian, Keystream, discrete_gaussian

SCALES = [32.0, 40.7, 63.999, 2.0**20, 1.37 * 2**20, 1.9 * 2**33, 2.0**49 - 16]
SLOTS = 1 << 16


class Fed:
    """A stream that gives the words it was given, then zeros."""

    def __init__(self, *words):
        self.given = np.concatenate([np.atleast_1d(np.asarray(word, dtype=np.uint64)) for word in words])

    def words(self, n):
        taken, self.given = self.given[:n], self.given[n:]
        return np.concatenate((taken, np.zeros(n - taken.size, dtype=np.uint64)))


@pytest.fixture(autouse=True)
def many_digits():
    with mpmath.workdps(80):
        yield


def column(table, sample):
    cell = sample >> table._shift
    return int(table._sure[cell]), int(table._open[cell])


def height(table, sample):
    """F(sample) with many digits."""
    return mpmath.mpf(table._scale) * mpmath.exp(-((mpmath.mpf(sample) / mpmath.mpf(table.s)) ** 2) / 2)


def test_the_stream_is_chacha20_under_the_key():
    """RFC 8439, appendix A.1, test vector 1."""
    assert Keystream(bytes(32)).words(2).tobytes().hex() == "76b8e0ada0f13d90405d6ae55386bd28"


def test_words_of_a_stream_never_repeat():
    stream = Keystream(b"r" * 32)
    words = np.concatenate([stream.words(n) for n in (1, 5, 40, 1, 1000, 3, 70_000)])
    assert np.unique(words).size == words.size


@pytest.mark.parametrize("s", SCALES)
def test_columns_enclose_the_density_over_their_whole_cell(s):
    table = DiscreteGaussian(s)
    width = 1 << table._shift
    assert 32 <= s / width < 64
    assert table.support[0] <= -REACH * s
    assert table.support[1] >= REACH * s - 1
    for cell in range(-table._half, table._half):
        ends = [height(table, cell * width), height(table, cell * width + width - 1)]
        sure, open_ = column(table, cell * width)
        assert sure <= min(ends)
        assert max(ends) <= sure + open_


@pytest.mark.parametrize("s", SCALES)
def test_sixteen_bits_choose_each_rectangle_once(s):
    table = DiscreteGaussian(s)
    words = np.arange(SLOTS, dtype=np.uint64) << 48
    cells = table._starts[words >> 48] >> table._shift
    first = int(table._first_open) >> 48
    for part, counts in ((cells[:first], table._sure), (cells[first:], table._open)):
        found = np.bincount(part % (2 * table._half), minlength=2 * table._half)
        assert np.array_equal(found, counts)
    assert table._starts.size == SLOTS == table._sure.sum() + table._open.sum()


@pytest.mark.parametrize("s", [40.7, 1.37 * 2**20])
def test_masses_are_exact_to_the_last_bit_of_a_word(s):
    """Mass of x: sure + open * (number of accepted U out of 2^64) / 2^64, found by bisection, against mpmath's F(x)."""
    table = DiscreteGaussian(s)
    samples = np.unique(np.rint(np.linspace(-6 * s, 6 * s, 41)).astype(np.int64) + 1)
    low, high = np.zeros(samples.size, dtype=object), np.full(samples.size, 1 << 64, dtype=object)
    for _ in range(64):
        middle = (low + high) // 2
        # Bits beyond the 64th are zeros: U = middle / 2^64.
        accepted = table._accept(samples, Fed(middle.astype(np.uint64)))
        low, high = np.where(accepted, middle, low), np.where(accepted, high, middle)
    for sample, below in zip(samples.tolist(), high, strict=True):
        sure, open_ = column(table, sample)
        assert below == mpmath.ceil((height(table, sample) - sure) / open_ * 2**64)


def test_far_in_the_tail_further_bits_decide_as_they_should():
    """At 12.9 s the mass is 2^-110 of a rectangle: 64 bits of U are zeros before the bit that decides."""
    table = DiscreteGaussian(1.37 * 2**20)
    sample = int(12.9 * table.s)
    assert column(table, sample) == (0, 1)
    decisive = int(mpmath.floor(height(table, sample) * mpmath.mpf(2) ** 128))
    assert 2**10 < decisive < 2**40
    assert table._below(sample, 0, Fed(decisive - 1))
    assert not table._below(sample, 0, Fed(decisive + 1))
    assert not table._below(sample, 1, Fed(0))
    # The bit after that.
    further = int(mpmath.floor(height(table, sample) * mpmath.mpf(2) ** 192)) & (2**64 - 1)
    assert table._below(sample, 0, Fed(decisive, further - 1))
    assert not table._below(sample, 0, Fed(decisive, further + 1))


def test_double_precision_decides_only_what_is_clear():
    """Decisions of `_accept` in double precision agree with the exact comparison, for heights near the threshold."""
    table = DiscreteGaussian(1.37 * 2**20)
    samples = np.rint(np.linspace(-4 * table.s, 4 * table.s, 200)).astype(np.int64)
    exact = [(height(table, x) - column(table, x)[0]) / column(table, x)[1] for x in samples.tolist()]
    for distance in (-(2.0**-20), -(2.0**-32), -(2.0**-50), 2.0**-50, 2.0**-32, 2.0**-20):
        near = [int(min(max((u + distance) * 2**64, 0), 2**64 - 1)) for u in exact]
        accepted = table._accept(samples, Fed(np.array(near, dtype=np.uint64)))
        assert accepted.tolist() == [word < u * 2**64 for word, u in zip(near, exact, strict=True)]


def test_every_integer_near_the_centre_can_come_out():
    table = DiscreteGaussian(1.37 * 2**20)
    width = 1 << table._shift
    slots = {start >> table._shift: slot for slot, start in enumerate(table._starts.tolist())}
    integers = np.concatenate((np.arange(-3000, 3000), np.arange(-5, 5) * width, np.arange(-5, 5) * width - 1))
    words = [slots[x >> table._shift] << 48 | x & (width - 1) for x in integers.tolist()]
    assert np.array_equal(table.draw(Fed(np.array(words, dtype=np.uint64)), integers.size), integers)


def test_rejected_samples_are_replaced_by_later_ones():
    table = DiscreteGaussian(1.37 * 2**20)
    outermost = np.uint64(SLOTS - 1) << 48
    # Three open rectangles over a cell of weight 2^-58 or less; U = 1/2 rejects; all other words are of slot 0.
    words = Fed(np.array([outermost, 0, outermost, 0, outermost]), np.zeros(8 + 5 // 32), np.full(3, 1 << 63))
    centre = int(table._starts[0])
    assert table._starts[-1] != centre
    assert table.draw(words, 5).tolist() == [centre] * 5


@pytest.mark.parametrize("s", [31.9, 2.0**49, 0.0, float("nan"), float("inf")])
def test_other_scales_are_refused(s):
    with pytest.raises(ValueError, match="grid steps"):
        DiscreteGaussian(s)


def sample(s, n, key):
    return discrete_gaussian(s).draw(Keystream(key * 32), n)


def test_every_integer_has_its_frequency():
    """Chi square over all integers within 3.5 s, against the naive formula; false alarm 1e-4."""
    s, n = 40.7, 2_000_000
    integers = np.arange(-530, 531)
    probability = np.exp(-0.5 * (integers / s) ** 2)
    probability /= probability.sum()
    counts = np.bincount(sample(s, n, b"f") + 530, minlength=1061)
    near = np.abs(integers) <= 3.5 * s
    found, expected = (np.append(x[near], x[~near].sum()) for x in (counts, n * probability))
    assert stats.chisquare(found, expected).pvalue > 1e-4


def test_shape_at_the_scale_of_use():
    """Kolmogorov-Smirnov (the grid is fine), first four moments, neighbours; false alarm 1e-4 to 1e-6 each."""
    s, n = 1.9 * 2**33, 1_000_000
    z = sample(s, n, b"s") / s
    assert stats.kstest(z, "norm").pvalue > 1e-4
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((z**power).mean() - mean) < 5 * np.sqrt(variance / n)
    assert abs(np.corrcoef(z[:-1], z[1:])[0, 1]) < 5 / np.sqrt(n)
    assert abs(np.corrcoef(np.abs(z[:-1]), np.abs(z[1:]))[0, 1]) < 5 / np.sqrt(n)


def test_low_bits_are_uniform_and_independent_of_the_high_ones():
    """Chi square of the last byte, and of last three bits by sign and size; false alarm 1e-4 each."""
    s = 1.9 * 2**33
    x = sample(s, 1_000_000, b"l")
    assert stats.chisquare(np.bincount(x & 255, minlength=256)).pvalue > 1e-4
    size = np.searchsorted(stats.norm.ppf([0.25, 0.5, 0.75]) * s, x)
    table = np.histogram2d(size, x & 7, bins=(4, 8), range=((0, 4), (0, 8)))[0]
    assert stats.chi2_contingency(table).pvalue > 1e-4


def test_tails_have_their_weight():
    """Counts beyond 3, 4 and 5 s on either side of 8 million draws; false alarm 1e-5 each."""
    n = 8_000_000
    z = sample(2.0**30, n, b"t") / 2.0**30
    for edge in (3, 4, 5):
        for count in (np.count_nonzero(z > edge), np.count_nonzero(z < -edge)):
            low, high = stats.binom.ppf([5e-6, 1 - 5e-6], n, stats.norm.sf(edge))
            assert low <= count <= high
    assert np.abs(z).max() < 7
