"""The attack on a sampler's image: it decides which of two candidate sums can have led to the released number.

A sampler in floating point reaches only some doubles. So a number that is impossible for one of the two sums reveals
the other, however large the noise (Mironov 2012 for Laplace noise; Holohan and Braghin 2021 for Gaussian). The attack
breaks NumPy's ziggurat, also on a secure stream, and not noise on the grid. This file has NumPy's ziggurat in Python.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from fedcore.mechanisms.discrete_gaussian import Keystream, discrete_gaussian
from fedcore.mechanisms.grid import Grid, GridGaussian

R = 3.6541528853610087963519472518  # start of the tail with 256 layers (Marsaglia, Tsang 2000)
MANTISSA = (1 << 52) - 1


def layers() -> np.ndarray:
    """Right ends of the 256 layers by the recurrence of Marsaglia and Tsang; entry 0 is the base strip's, v / f(R)."""
    v = R * math.exp(-R * R / 2) + math.sqrt(math.pi / 2) * math.erfc(R / math.sqrt(2))
    ends = np.zeros(256)
    ends[0], ends[255] = v / math.exp(-R * R / 2), R
    for i in range(254, 0, -1):
        ends[i] = math.sqrt(-2 * math.log(v / ends[i + 1] + math.exp(-(ends[i + 1] ** 2) / 2)))
    return ends


def split(word: int) -> tuple[int, int, int]:
    """Layer, sign bit and 52-bit height of a 64-bit word, as NumPy takes them."""
    return word & 255, word >> 8 & 1, word >> 9 & MANTISSA


@pytest.fixture(scope="module", name="widths")
def observed_widths() -> np.ndarray:
    """NumPy's table of layer width / 2^52, to the last bit, from single draws whose word is known.

    The recurrence alone gives it to 1e-13, since NumPy's constants were rounded on the way. Raises ValueError if
    no double, or more than one, explains all draws of a layer.
    """
    near = layers() / 2.0**52
    choices: list[set[float]] = [set() for _ in range(256)]
    for key in range(8192):
        layer, _, height = split(int(np.random.Philox(key=key).random_raw()))
        z = abs(np.random.Generator(np.random.Philox(key=key)).standard_normal())
        # Other outcomes (rejections, the tail) came from later words.
        if height and abs(z / height / near[layer] - 1) < 1e-12:
            steps = np.arange(-3, 4) * np.spacing(near[layer])
            fitting = {float(w) for w in z / height + steps if height * w == z}
            choices[layer] = choices[layer] & fitting if choices[layer] else fitting
    if any(len(found) != 1 for found in choices):
        raise ValueError("the widths of NumPy's layers are not told apart by these draws")
    return np.array([found.pop() for found in choices])


def ziggurat(words: list[int], n: int, widths: np.ndarray) -> np.ndarray:
    """n normals from 64-bit words, in the order and to the bits of NumPy's Generator.standard_normal."""
    table, ends, stream = widths.tolist(), layers().tolist(), iter(words)
    heights = [1.0] + [math.exp(-x * x / 2) for x in ends[1:]]
    limits = [R / ends[0], 0.0] + [a / b for a, b in pairwise(ends[1:])]

    def uniform() -> float:
        return (next(stream) >> 11) * 2.0**-53

    normals: list[float] = []
    while len(normals) < n:
        layer, sign, height = split(next(stream))
        x = height * table[layer] * (-1 if sign else 1)
        if height * 2.0**-52 < limits[layer]:
            normals.append(x)
        elif layer == 0:
            while True:
                beyond, other = -math.log1p(-uniform()) / R, -math.log1p(-uniform())
                if other + other > beyond * beyond:
                    normals.append(-(R + beyond) if height >> 8 & 1 else R + beyond)
                    break
        elif (heights[layer - 1] - heights[layer]) * uniform() + heights[layer] < math.exp(-x * x / 2):
            normals.append(x)
    return np.array(normals)


def reachable(released: np.ndarray, candidate: float, sigma: float, widths: np.ndarray) -> np.ndarray:
    """For each released number: whether candidate + sigma z, in doubles, is that number for some z of the layers.

    Each layer's multiple nearest to the noise sought and three neighbours on both sides are tried by computing forward.
    Beyond 3.6 sigma, where the tail's values are not enumerated, everything counts as reachable.
    """
    noise = released - candidate
    found = np.abs(noise) > 3.6 * sigma
    for offsets in (np.zeros(1), np.arange(-3.0, 4.0)):
        for part in np.array_split(np.flatnonzero(~found), max(1, np.count_nonzero(~found) * offsets.size // 4096)):
            middle = np.rint(noise[part, None] / (sigma * widths))
            for offset in offsets:
                multiple = middle + offset
                again = candidate + sigma * (multiple * widths) == released[part, None]
                found[part] |= (again & (np.abs(multiple) <= MANTISSA)).any(axis=1)
    return found


N = 50_000
# Sums of one coordinate without and with one record more, and the noise: in the order of the noise, near zero, far out.
PAIRS = [(0.0, 0.7, 30.0), (0.3, 0.7, 30.0), (7.3, 8.1, 3.0), (100.0, 101.0, 30.0)]


def test_the_ziggurat_written_here_is_numpys_to_the_last_bit(widths):
    words = np.random.Philox(key=3).random_raw(2 * N).tolist()
    assert np.array_equal(ziggurat(words, N, widths), np.random.Generator(np.random.Philox(key=3)).standard_normal(N))


@pytest.mark.parametrize(("a", "b", "sigma"), PAIRS)
def test_ziggurat_on_a_secure_stream_is_caught(widths, a, b, sigma):
    """From 0.4 % of the coordinates, where the sum is a few sigma, to 8 %, where it is near zero."""
    z = ziggurat(Keystream(b"z" * 32).words(2 * N).tolist(), N, widths)
    released = a + sigma * z
    assert reachable(released, a, sigma, widths).all(), "the attack would accuse the true sum"
    deciding = np.mean(~reachable(released, b, sigma, widths))
    assert 0.002 < deciding < 0.2


def test_about_three_in_a_thousand_coordinates_decide_where_sums_are_large(widths):
    z = ziggurat(Keystream(b"y" * 32).words(2 * N).tolist(), N, widths)
    deciding = np.mean(~reachable(100.0 + 30.0 * z, 101.0, 30.0, widths))
    assert 0.0025 < deciding < 0.0055


@pytest.mark.parametrize(("a", "b", "sigma"), PAIRS)
def test_no_coordinate_of_grid_noise_decides(a, b, sigma):
    """Only distance distinguishes the candidates; the image is every integer within 13 sigma of the sum."""
    grid = Grid.of(sigma, clip=1.0, count=100_000, dim=N)
    released = GridGaussian().noised(b"k" * 32, b"context", np.full(N, a), grid) / grid.step
    low, high = discrete_gaussian(sigma / grid.step).support

    def within_image(candidate: float) -> np.ndarray:
        noise = released - np.rint(candidate / grid.step)
        return (noise == np.rint(noise)) & (low <= noise) & (noise <= high)

    assert within_image(a).all()
    assert within_image(b).all()
