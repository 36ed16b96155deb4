"""Small folders in the layout of MNIST, written with `struct` from the format's description, not with the reader."""

import gzip
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

NAMES = {
    "mnist": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
    "emnist-mnist": (
        "emnist-mnist-train-images-idx3-ubyte",
        "emnist-mnist-train-labels-idx1-ubyte",
        "emnist-mnist-test-images-idx3-ubyte",
        "emnist-mnist-test-labels-idx1-ubyte",
    ),
}


def write_idx(path: Path, shape: Sequence[int], entries: bytes) -> Path:
    """Writes an IDX file of unsigned bytes; gzipped if the name ends in .gz."""
    content = struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + entries
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def write_images(folder: Path, flavour: str = "mnist", per_digit: int = 12, side: int = 4, zipped: bool = False) -> str:
    """Writes different images of the digits 0 to 9 in turn, the last fifth to the test file. Returns the folder."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(4)
    digits = [k % 10 for k in range(10 * per_digit)]
    # The digit moves the mean, so that there is something to learn; the first two pixels number the image.
    pixels = [[k % 256, k // 256, *(20 * digit + rng.integers(0, 50, side**2 - 2))] for k, digit in enumerate(digits)]
    images = [bytes(map(int, image)) for image in pixels]
    cut = 8 * per_digit
    for names, rows in ((NAMES[flavour][:2], slice(0, cut)), (NAMES[flavour][2:], slice(cut, None))):
        end = ".gz" if zipped else ""
        write_idx(folder / (names[0] + end), (len(images[rows]), side, side), b"".join(images[rows]))
        write_idx(folder / (names[1] + end), (len(digits[rows]),), bytes(digits[rows]))
    return str(folder)


@pytest.fixture
def idx():
    """`write_idx` above."""
    return write_idx


@pytest.fixture
def images():
    """`write_images` above."""
    return write_images
