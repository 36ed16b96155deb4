"""MNIST and EMNIST from a local folder: its files, and their images and classes.

Nothing is downloaded. Sources: LeCun, Cortes and Burges, "The MNIST database of handwritten digits"; Cohen, Afshar,
Tapson and van Schaik 2017, "EMNIST: an extension of MNIST to handwritten letters" (arXiv 1702.05373).
"""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcore.data.sources.idx import idx_shape, read_idx
from fedcore.errors import InputError

Flavour = Literal["mnist", "emnist-digits", "emnist-mnist", "emnist-balanced"]

CLASSES: dict[Flavour, int] = {"mnist": 10, "emnist-digits": 10, "emnist-mnist": 10, "emnist-balanced": 47}
"""Number of classes, labelled from 0. Balanced: digits, capitals, and small letters that differ from capitals."""

_PARTS: dict[Flavour, tuple[str, ...]] = {
    "mnist": ("train", "t10k"),
    "emnist-digits": ("emnist-digits-train", "emnist-digits-test"),
    "emnist-mnist": ("emnist-mnist-train", "emnist-mnist-test"),
    # 112,800 images, 2,400 of each class, as in the DP-SCAFFOLD paper; the test file is not used.
    "emnist-balanced": ("emnist-balanced-train",),
}


class _Part(NamedTuple):
    images: Path
    labels: Path


def load_labels(folder: str, flavour: Flavour) -> NDArray[np.uint8]:
    """The class of each image (n,): the training file's, then the test file's if it is used.

    Raises InputError for missing files (naming all of them and their folder), a damaged file, and a label that the
    flavour lacks.
    """
    return np.concatenate([_labels(part.labels, flavour) for part in _files(folder, flavour)])


def load_images(folder: str, flavour: Flavour) -> NDArray[np.uint8]:
    """Grey values 0 to 255 (n, rows, columns) of upright images, in the order of `load_labels`.

    Raises InputError as `load_labels` does, and for different numbers of images and labels or sizes of images.
    """
    image_shape(folder, flavour)
    images = np.concatenate([read_idx(part.images, 3) for part in _files(folder, flavour)])
    # EMNIST's files hold transposed images; upright, a pixel has the same name in all flavours.
    return images.swapaxes(1, 2) if flavour.startswith("emnist") else images


def image_shape(folder: str, flavour: Flavour) -> tuple[int, int]:
    """Rows and columns of an image, by headers. Raises InputError as `load_images` does."""
    sizes: dict[Path, tuple[int, int]] = {}
    for part in _files(folder, flavour):
        count, *size = idx_shape(part.images, 3)
        (labels,) = idx_shape(part.labels, 1)
        if count != labels:
            raise InputError(
                f"file {part.images}: has {count} images, but {part.labels.name} beside it has {labels} labels; "
                "they must be of one collection"
            )
        sizes[part.images] = size[0], size[1]
    (first, (rows, columns)), *more = sizes.items()
    for second, other in more:
        if (rows, columns) != other:
            raise InputError(
                f"file {second}: has images of {other[0]} x {other[1]} pixels, but {first.name} of {rows} x {columns}"
            )
    if rows * columns == 0:
        raise InputError(f"file {first}: has images of {rows} x {columns} pixels; there must be at least one")
    return (columns, rows) if flavour.startswith("emnist") else (rows, columns)


def fingerprint(folder: str, flavour: Flavour) -> str:
    """SHA-256 (hex) of all images and labels; equal for plain and gzipped files in any folder.

    Raises InputError as `load_images` does.
    """
    paths = [path for part in _files(folder, flavour) for path in part]
    stats = [path.stat() for path in paths]
    seen = tuple((str(path), stat.st_size, stat.st_mtime_ns) for path, stat in zip(paths, stats, strict=True))
    return _fingerprint(folder, flavour, seen)


@lru_cache(maxsize=16)  # each cell of a sweep calls it
def _fingerprint(folder: str, flavour: Flavour, seen: tuple[tuple[str, int, int], ...]) -> str:
    total = hashlib.sha256()
    for array in (load_images(folder, flavour), load_labels(folder, flavour)):
        total.update(f"{array.shape}".encode())
        total.update(np.ascontiguousarray(array).data)
    return total.hexdigest()


def _labels(path: Path, flavour: Flavour) -> NDArray[np.uint8]:
    labels, last = read_idx(path, 1), CLASSES[flavour] - 1
    if (labels > last).any():
        at = int(np.argmax(labels > last))
        what = "digits" if last == 9 else f"the classes of {flavour}"
        raise InputError(f"file {path}: byte {8 + at} is label {labels[at]}, but {what} are labelled 0 to {last}")
    return labels


def _files(folder: str, flavour: Flavour) -> tuple[_Part, ...]:
    """The files, two for each part. Raises InputError naming the missing ones."""
    place = Path(os.path.abspath(folder))
    wanted = [name for part in _PARTS[flavour] for name in (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte")]
    found = {name: path for name in wanted if (path := _find(place, name)) is not None}
    missing = [name for name in wanted if name not in found]
    if missing:
        raise InputError(
            f"data.folder = {folder}: {flavour} needs {', '.join(missing)} in {place}, each plain or with .gz at its "
            "end; nothing is downloaded: put the files there, or set data.folder to where they are"
        )
    return tuple(_Part(found[first], found[second]) for first, second in zip(wanted[::2], wanted[1::2], strict=True))


def _find(folder: Path, name: str) -> Path | None:
    """The file of that name, plain or gzipped; some mirrors write a dot before `idx`."""
    for candidate in (name, f"{name}.gz", name.replace("-idx", ".idx"), f"{name.replace('-idx', '.idx')}.gz"):
        if (folder / candidate).is_file():
            return folder / candidate
    return None
