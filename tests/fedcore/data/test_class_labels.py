"""Labels of more than two classes: images by digit, multinomial synthetic data, a user's own classes."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from scipy.special import softmax

from fedcore.data.dataset import prepare, records_of
from fedcore.data.silo_file import SiloSource, open_records
from fedcore.data.sources import generators
from fedcore.data.sources.images import DigitsData, MnistData
from fedcore.data.sources.streams import stream
from fedcore.data.sources.synthetic import SyntheticData, synthetic
from fedcore.data.tabular import FilesData
from fedcore.errors import SiloError
from fedcore.models.model_config import ModelConfig

LOGISTIC, SOFTMAX = ModelConfig(), ModelConfig.model_validate({"loss": {"name": "softmax"}})


def source(path, classes, class_ids=True):
    return SiloSource("north", str(path), "parquet", ("age",), "y", classes, False, 1e300, 1.0, "v1", None, class_ids)


def test_images_are_the_same_records_whichever_label_is_asked(tmp_path):
    """One data set, one version of each silo, so one account: two runs on both labels add up."""
    by_parity, by_digit = DigitsData(), DigitsData(labels="digit")
    first, second = prepare(by_parity, LOGISTIC, 3, tmp_path), prepare(by_digit, SOFTMAX, 3, tmp_path)
    assert first.name == second.name and records_of(by_parity) == records_of(by_digit)
    for one, other in zip(first.sources, second.sources, strict=True):
        assert (one.path, one.version, one.label, other.label) == (other.path, other.version, "odd", "digit")
        signs, digits = open_records(one), open_records(other)
        np.testing.assert_array_equal(signs.X, digits.X)
        np.testing.assert_array_equal(signs.y, 2 * (digits.y % 2) - 1)
        assert set(digits.y) == {float(one.name[1]), float(one.name[3])}  # as ever: silo o1e0 holds 1 and 0
    assert set(second.test.y) == set(range(10))


def test_images_of_two_classes_for_softmax_are_numbered(tmp_path):
    numbers = prepare(DigitsData(), SOFTMAX, 0, tmp_path).sources[4]
    signs = prepare(DigitsData(), LOGISTIC, 0, tmp_path).sources[4]
    np.testing.assert_array_equal(2 * open_records(numbers).y - 1, open_records(signs).y)


def test_the_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    wanted = {image.tobytes(): digit for image, digit in zip(images / 16.0, digits, strict=True)}
    made = generators.digits(0.2, 1)
    for table in (*made.silos.values(), made.test):
        assert [wanted[row.tobytes()] for row in table.features] == table.more["digit"].tolist()
        np.testing.assert_array_equal(table.labels, table.more["digit"] % 2)


def test_classes_of_each_source():
    assert DigitsData(labels="digit").label_values == MnistData(folder="a", labels="digit").label_values
    assert DigitsData().label_values == (0, 1) and SyntheticData(classes=4).label_values == (0, 1, 2, 3)
    silos = ({"name": "a", "path": "a.csv"},)
    made = FilesData(silos=silos, features=("x",), label="y", classes=("red", "green", 3))
    assert made.label_values == ("red", "green", 3)
    with pytest.raises(ValueError, match="two classes are equal: 'red'"):
        FilesData(silos=silos, features=("x",), label="y", classes=("red", "green", "red"))
    with pytest.raises(ValueError, match="at least 2"):
        FilesData(silos=silos, features=("x",), label="y", classes=("red",))
    assert FilesData(silos=silos, features=("x",), label="y", classes=None).label_values is None


def test_multinomial_labels_follow_the_softmax_law():
    """Within cells of the most probable class, the frequency of each class against its mean probability."""
    made = synthetic(SyntheticData(silos=1, records=40_000, features=3, heterogeneity=0, test_records=1, classes=4), 5)
    X, y = made.silos["silo-000"].features, made.silos["silo-000"].labels
    W = stream(5, 101).standard_normal((4, 3))
    p = softmax(X @ W.T, axis=1)
    for cell in range(4):
        inside = p.argmax(axis=1) == cell
        found = np.bincount(y[inside], minlength=4) / inside.sum()
        np.testing.assert_allclose(found, p[inside].mean(axis=0), atol=5 * np.sqrt(0.25 / inside.sum()))
    assert set(y) == {0, 1, 2, 3} and y.dtype == np.int64


def test_a_users_classes_are_numbered_in_their_order(tmp_path):
    path = tmp_path / "north.parquet"
    pa.parquet.write_table(pa.table({"age": [1.0, 2, 3, 4], "y": ["b", "2", "c", "b"]}), path)
    assert open_records(source(path, ("c", "b", 2))).y.tolist() == [1.0, 2.0, 0.0, 1.0]
    pa.parquet.write_table(pa.table({"age": [1.0, 2, 3], "y": [7.0, 9, 8]}), path)
    assert open_records(source(path, (7, 8, "9"))).y.tolist() == [0.0, 2.0, 1.0]


@pytest.mark.parametrize(
    ("cells", "classes", "code", "words"),
    [
        (["a", "b", "SECRET"], ("a", "b", "c"), "unknown-label", "other than its 3 classes 'a', 'b', 'c'; name all"),
        ([1, 2, 4711], tuple(range(30)), "unknown-label", "19 and 10 more; name all"),
        ([1, 2, 1], (1, "1", 2), "unknown-label", "3 classes"),  # one value that could be two classes
        ([1, None, 2], (0, 1, 2), "missing-label", "missing values"),
    ],
)
def test_labels_outside_of_the_classes_are_refused_without_a_quotation(tmp_path, cells, classes, code, words):
    path = tmp_path / "north.parquet"
    pa.parquet.write_table(pa.table({"age": [1.0, 2, 3], "y": cells}), path)
    with pytest.raises(SiloError) as caught:
        open_records(source(path, classes))
    assert caught.value.code == code and words in str(caught.value)
    assert "SECRET" not in str(caught.value) and "4711" not in str(caught.value)
