"""Words and normals: against Philox and quantiles worked out otherwise, by their law, and on other processors."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedcore.draws import normal
from fedcore.draws.normal import normals, upper_quantile
from fedcore.draws.philox import Philox
from fedcore.draws.stream import Draws
from tests.fedcore.draws import naive
from tests.processors import on

KEY = bytes(range(16))
PARTS = {"middle": normal._MIDDLE, "tail": normal._TAIL, "far": normal._FAR}
HEX = ["-0x1.232e8d10220f9p-2", "0x1.8e77f9d7176edp-5", "0x1.1ccbb2fbc0fbep+0", "0x1.b8bca747659bdp-2"]
EDGES = [0, 1, 2, 3, 2**11, 2**53 - 1, 2**53 - 2, 2**52, 2**52 - 1]
WORDS = st.one_of(
    st.integers(0, 2**64 - 1),
    st.sampled_from(EDGES).map(lambda k: k << 11),
    st.integers(0, 52).flatmap(lambda bits: st.integers(0, 2**bits)).map(lambda k: k << 11 | 1),
)


def of(word: int) -> float:
    return float(normals(np.array([word], dtype=np.uint64))[0])


@given(st.binary(min_size=16, max_size=16), st.integers(1, 23))
@settings(max_examples=50)
def test_words_are_philox_s(key, n):
    philox = Philox()
    philox.start(key)
    assert philox.words(n).tolist() == naive.philox(key, n)
    assert philox.first([KEY, key], n).tolist() == [naive.philox(KEY, n), naive.philox(key, n)]


def test_words_are_those_of_the_published_test_vectors():
    """Random123's `kat_vectors`, philox4x64 of 10 rounds: counter and key are digits of pi. NumPy counts up first."""
    x = [0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89]
    k = [0x452821E638D01377, 0xBE5466CF34E90C6C]
    philox = np.random.Philox(counter=np.array([x[0] - 1, *x[1:]], np.uint64), key=np.array(k, np.uint64))
    expected = [0xA528F45403E61D95, 0x38C72DBD566E9788, 0xA5A1610E72FD18B5, 0x57BD43B5E52B7FE6]
    assert philox.random_raw(4).tolist() == expected


@given(WORDS)
@settings(max_examples=400, deadline=None)
def test_a_normal_has_the_bits_of_its_definition(word):
    assert of(word).hex() == naive.tabled_normal(word, PARTS).hex()


def test_normals_of_an_address_are_what_they_will_always_be():
    """Bits of the first numbers of a key, within 5e-11 of the exact quantiles of their words."""
    words = naive.philox(KEY, 4)
    found = Draws(KEY).standard_normal(4)
    assert [z.hex() for z in found.tolist()] == [naive.tabled_normal(word, PARTS).hex() for word in words]
    assert [z.hex() for z in found.tolist()] == HEX
    for z, word in zip(found.tolist(), words, strict=True):
        assert abs(z - naive.normal(word)) < 5e-11


@given(WORDS)
@settings(max_examples=300, deadline=None)
def test_a_normal_is_the_quantile_to_a_billionth_as_far_as_words_reach(word):
    exact = naive.normal(word)
    assert abs(of(word) - exact) < 5e-11
    p = ((word >> 11) + 1) / 2**54
    if p < 0.5:
        assert abs(upper_quantile(np.array([p]))[0] / abs(exact) - 1) < 1e-15


def test_the_largest_normal_is_that_of_the_smallest_tail():
    assert of(0) == pytest.approx(float(naive.upper_quantile(2.0**-54)), abs=1e-10) and 8.2 < of(0) < 8.3
    assert of(1) == -of(0) and of(2**64 - 1) == 0.0


def test_normals_are_normal():
    z = Draws(KEY).standard_normal(1_000_000)
    n = len(z)
    assert stats.kstest(z, "norm").pvalue > 1e-4
    assert abs(z.mean()) < 4 / np.sqrt(n)
    low, high = stats.chi2.ppf([5e-5, 1 - 5e-5], n)
    assert low < (z**2).sum() < high
    assert abs((z**3).mean()) < 4 * np.sqrt(15 / n) and abs((z**4).mean() - 3) < 4 * np.sqrt(96 / n)
    assert abs(np.corrcoef(z[:-1], z[1:])[0, 1]) < 4 / np.sqrt(n)
    # Tails, on both sides: counts beyond the quantiles are binomial.
    for p in (1e-2, 1e-3, 1e-4, 1e-5):
        for count in ((z > stats.norm.isf(p)).sum(), (z < stats.norm.ppf(p)).sum()):
            assert stats.binom.cdf(count, n, p) > 5e-5 and stats.binom.sf(count - 1, n, p) > 5e-5


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5), (8192,), (8193,), (2, 3, 4)])
def test_each_number_is_of_its_word_alone_whatever_is_drawn_beside(shape):
    words = Draws(KEY).words(int(np.prod(shape))).reshape(shape)
    before = words.copy()
    found = normals(words)
    assert found.shape == shape and (words == before).all()
    some = np.ravel_multi_index(tuple(s - 1 for s in shape), shape)
    assert found.ravel()[some] == of(int(words.ravel()[some]))


PRINTED = """
import hashlib
import numpy as np
from fedcore.data.sources.synthetic import SyntheticData, synthetic
from fedcore.data.sources.teacher import TeacherData, teacher
from fedcore.draws.stream import Draws
d, total = Draws(bytes(range(16))), hashlib.sha256()
for drawn in (d.standard_normal((50, 40)), d.random(999), d.logistic(999), d.gumbel(999), d.beta(3.0, 3.0, 999),
              d.integers(0, 1000, 999), d.permutation(999), d.choice(99, 9, replace=False), d.coins(0.3, 99)):
    total.update(np.ascontiguousarray(drawn).tobytes())
for made in (synthetic(SyntheticData(silos=3, records=70, features=33, classes=3, condition=50.0), 1),
             teacher(TeacherData(silos=3, records=70), 1)):
    for table in (*made.silos.values(), made.test):
        total.update(table.features.tobytes() + table.labels.tobytes())
print(total.hexdigest())
"""


def test_draws_and_data_have_equal_bits_on_other_processors():
    processors = {
        "this": on(),
        "Haswell": on("Haswell", "AVX512", "X86_V4"),
        "SkylakeX": on("SkylakeX"),
        "no AVX2": on("Nehalem", "AVX512", "AVX2", "FMA3", "X86_V3", "X86_V4"),
    }
    found = {}
    for name, environment in processors.items():
        command = [sys.executable, "-c", PRINTED]
        found[name] = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    assert len(set(found.values())) == 1, found
