"""Folders of MNIST and EMNIST: required files, their consistency, and messages about faults."""

import gzip
import shutil

import numpy as np
import pytest

from fedcore.data.dataset import prepare
from fedcore.data.silo_file import open_records
from fedcore.data.sources.images import MnistData
from fedcore.data.sources.mnist import fingerprint, image_shape, load_images, load_labels
from fedcore.errors import InputError
from fedcore.models.model_config import ModelConfig

TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def test_training_images_come_first(tmp_path, idx):
    idx(tmp_path / TRAIN[0], (2, 1, 2), bytes([1, 2, 3, 4]))
    idx(tmp_path / TRAIN[1], (2,), bytes([7, 0]))
    idx(tmp_path / TEST[0], (1, 1, 2), bytes([5, 6]))
    idx(tmp_path / TEST[1], (1,), bytes([9]))
    assert load_images(str(tmp_path), "mnist").tolist() == [[[1, 2]], [[3, 4]], [[5, 6]]]
    assert load_labels(str(tmp_path), "mnist").tolist() == [7, 0, 9]
    assert image_shape(str(tmp_path), "mnist") == (1, 2)


def test_emnist_is_turned_upright(tmp_path, idx):
    for part in ("train", "test"):
        idx(tmp_path / f"emnist-digits-{part}-images-idx3-ubyte.gz", (1, 2, 3), bytes([1, 2, 3, 4, 5, 6]))
        idx(tmp_path / f"emnist-digits-{part}-labels-idx1-ubyte.gz", (1,), bytes([3]))
    upright = [[1, 4], [2, 5], [3, 6]]
    assert load_images(str(tmp_path), "emnist-digits").tolist() == [upright, upright]
    assert image_shape(str(tmp_path), "emnist-digits") == (3, 2)


def test_missing_files_are_told_with_names_and_place(tmp_path, images, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        load_labels("pictures", "emnist-digits")
    sentence = str(caught.value)
    for kind in ("train-images-idx3", "train-labels-idx1", "test-images-idx3", "test-labels-idx1"):
        assert f"emnist-digits-{kind}-ubyte" in sentence
    for part in ("data.folder = pictures", str(tmp_path / "pictures"), "plain or with .gz", "nothing is downloaded"):
        assert part in sentence
    images(tmp_path / "pictures")
    (tmp_path / "pictures" / TEST[1]).unlink()
    with pytest.raises(InputError, match=f"mnist needs {TEST[1]} in "):  # only what is missing
        load_images("pictures", "mnist")


def test_plain_gzipped_and_dotted_names_are_one_collection(tmp_path, images):
    plain, zipped, mixed = (str(tmp_path / name) for name in ("plain", "zipped", "mixed"))
    images(tmp_path / "plain")
    images(tmp_path / "zipped", zipped=True)
    shutil.copytree(plain, mixed)
    (tmp_path / "mixed" / TRAIN[0]).rename(tmp_path / "mixed" / "train-images.idx3-ubyte")
    (tmp_path / "mixed" / f"{TEST[0]}.gz").write_bytes(gzip.compress((tmp_path / "mixed" / TEST[0]).read_bytes()))
    (tmp_path / "mixed" / TEST[0]).unlink()
    for folder in (zipped, mixed):
        assert load_images(folder, "mnist").tobytes() == load_images(plain, "mnist").tobytes()
        assert fingerprint(folder, "mnist") == fingerprint(plain, "mnist")


@pytest.mark.parametrize("name", [*TRAIN, *TEST])
def test_another_pixel_or_label_is_another_collection(tmp_path, images, name):
    folder = images(tmp_path / "a")
    before = fingerprint(folder, "mnist")
    path = tmp_path / "a" / name
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([(content[-1] + 1) % 10]))
    assert fingerprint(folder, "mnist") != before


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        (TRAIN[1], (95,), r"train-images-idx3-ubyte: has 96 images, but train-labels-idx1-ubyte beside it has 95"),
        (TEST[0], (23, 4, 4), r"t10k-images-idx3-ubyte: has 23 images, but t10k-labels-idx1-ubyte beside it has 24"),
        (TEST[0], (24, 2, 8), r"t10k-images-idx3-ubyte: has images of 2 x 8 pixels, but train-images-.* of 4 x 4"),
    ],
)
def test_files_that_do_not_belong_together_are_told(tmp_path, images, idx, name, shape, words):
    folder = images(tmp_path / "a")
    idx(tmp_path / "a" / name, shape, bytes(int(np.prod(shape))))
    for call in (load_images, image_shape):
        with pytest.raises(InputError, match=words):
            call(folder, "mnist")


def test_a_label_that_is_no_digit_is_told_with_its_byte(tmp_path, images, idx):
    folder = images(tmp_path / "a")
    idx(tmp_path / "a" / TEST[1], (24,), bytes([0] * 20 + [12, 0, 13, 0]))
    with pytest.raises(InputError, match=r"t10k-labels-idx1-ubyte: byte 28 is label 12, but digits are"):
        load_labels(folder, "mnist")


def balanced(folder, idx, labels):
    """The two files of EMNIST balanced that are used: 2 x 3 pixels, the first of which numbers the image."""
    folder.mkdir()
    pixels = b"".join(bytes([number, 1, 2, 3, 4, 5]) for number in range(len(labels)))
    idx(folder / "emnist-balanced-train-images-idx3-ubyte.gz", (len(labels), 2, 3), pixels)
    idx(folder / "emnist-balanced-train-labels-idx1-ubyte.gz", (len(labels),), bytes(labels))
    return str(folder)


def test_the_training_file_of_emnist_balanced_is_enough(tmp_path, idx):
    folder = balanced(tmp_path / "a", idx, [46, 0, 10])
    assert load_labels(folder, "emnist-balanced").tolist() == [46, 0, 10]
    assert image_shape(folder, "emnist-balanced") == (3, 2)
    assert load_images(folder, "emnist-balanced")[1].tolist() == [[1, 3], [1, 4], [2, 5]]  # upright
    before = fingerprint(folder, "emnist-balanced")
    idx(tmp_path / "a" / "emnist-balanced-test-labels-idx1-ubyte", (1,), bytes([3]))  # left alone
    assert fingerprint(folder, "emnist-balanced") == before and len(load_labels(folder, "emnist-balanced")) == 3
    with pytest.raises(InputError, match="emnist-balanced needs emnist-balanced-train-images-idx3-ubyte, emnist-bal"):
        load_labels(str(tmp_path), "emnist-balanced")


def test_labels_are_those_of_the_flavour(tmp_path, idx):
    folder = balanced(tmp_path / "a", idx, [46, 47, 10])
    with pytest.raises(InputError, match="byte 9 is label 47, but the classes of emnist-balanced are labelled 0 to 46"):
        load_labels(folder, "emnist-balanced")


def test_silos_of_emnist_balanced(tmp_path, idx):
    """All 47 classes, 5 images each, dealt out by similarity; only this split has a meaning for them."""
    labels = [number % 47 for number in range(235)]
    data = MnistData(
        folder=balanced(tmp_path / "a", idx, labels),
        flavour="emnist-balanced",
        split="similarity",
        labels="digit",
        similarity={"silos": 47, "records": 5, "gamma": 0.2, "rest": "sorted-blocks"},
    )
    model = ModelConfig.model_validate({"loss": {"name": "softmax"}, "bias": False, "feature_bound": 100.0})
    assert data.label_values == tuple(range(47))
    ready = prepare(data, model, 0, tmp_path / "silos")
    assert {fact.n for fact in ready.facts} == {4} and ready.test.n == 47
    parts = [*map(open_records, ready.sources), ready.test]
    rows = [(round(row[0] * 255), int(k)) for part in parts for row, k in zip(part.X, part.y, strict=True)]
    assert sorted(rows) == list(enumerate(labels))
    with pytest.raises(ValueError, match=r"data\.flavour = emnist-balanced has 47 classes"):
        MnistData(folder="a", flavour="emnist-balanced")
