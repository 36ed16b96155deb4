"""LIBSVM's sparse text: every record in one place, against scikit-learn on the whole file; lines that do not parse."""

import bz2
import gzip
import lzma

import numpy as np
import pytest
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

from fedcore.configfile.reading import validated
from fedcore.data.dataset import facts, prepare
from fedcore.data.sources import libsvm as module
from fedcore.data.sources.libsvm import LibsvmData, fingerprint, libsvm, silo_sizes
from fedcore.errors import InputError
from fedcore.models.model_config import ModelConfig


def written(path, n=53, d=7, density=0.5, labels=(-1, 1)):
    rng = np.random.default_rng(1)
    X = np.round(rng.standard_normal((n, d)) * (rng.random((n, d)) < density), 3)
    X[:, 0] = 1 + np.arange(n)  # no two records alike
    dump_svmlight_file(X, np.asarray(labels)[rng.integers(0, 2, n)], str(path), zero_based=False)
    return path


def section(file, **changes):
    return validated(LibsvmData, {"path": str(file), "features": 7, "silos": 4} | changes, "test")


@pytest.mark.parametrize("block", [1, 10, 2000])
@pytest.mark.parametrize("density", [0.2, 1.0])
def test_every_record_of_the_file_is_in_one_place(tmp_path, monkeypatch, block, density):
    monkeypatch.setattr(module, "_BLOCK", block)
    path = written(tmp_path / "a", density=density)
    X, y = load_svmlight_file(str(path), n_features=7, zero_based=False)
    made = libsvm(section(path), 3)
    assert {name: len(table.labels) for name, table in made.silos.items()} == silo_sizes(section(path))
    parts = [*made.silos.values(), made.test]
    assert [len(table.labels) for table in parts] == [10, 10, 10, 10, 11]  # of 53, 11 aside, 2 left over
    rows = np.concatenate([table.features for table in parts])
    places = (rows[:, 0] - 1).astype(int)
    assert len(set(places)) == 51
    np.testing.assert_array_equal(rows, X.toarray()[places])
    np.testing.assert_array_equal(np.concatenate([table.labels for table in parts]), (y[places] > 0).astype(int))
    other = libsvm(section(path), 4)
    assert not np.array_equal(other.test.features, made.test.features)


@pytest.mark.parametrize(
    "suffix, pack, right",
    [
        (".gz", gzip.compress, "gzipped, as"),
        (".bz2", bz2.compress, "compressed as"),
        (".xz", lzma.compress, "compressed as"),
    ],
)
def test_packed_files_are_the_same_data(tmp_path, suffix, pack, right):
    plain = written(tmp_path / "a")
    packed = tmp_path / f"b{suffix}"
    packed.write_bytes(pack(plain.read_bytes()))
    assert fingerprint(section(plain)) == fingerprint(section(packed))
    one, two = (libsvm(section(path), 0).test for path in (plain, packed))
    np.testing.assert_array_equal(one.features, two.features)
    packed.write_bytes(pack(plain.read_bytes())[:-9])
    with pytest.raises(InputError, match=f"b{suffix}: is damaged or not {right} its suffix requires"):
        silo_sizes(section(packed))
    packed.write_bytes(plain.read_bytes())
    with pytest.raises(InputError, match=f"b{suffix}: is damaged or not {right} its suffix requires"):
        silo_sizes(section(packed))


def test_comments_and_empty_lines_are_no_records_and_only_the_first_are_read_if_asked(tmp_path):
    path = written(tmp_path / "a", n=20, labels=(0, 2))
    lines = path.read_text().splitlines()
    path.write_text("\n".join(["# made up", "", *lines[:12], "   ", *lines[12:], "not read:"]) + "\n")
    data = section(path, classes=[0, 2], silos=2, records=20)
    made = libsvm(data, 0)
    assert sum(len(table.labels) for table in [*made.silos.values(), made.test]) == 20
    with pytest.raises(InputError, match=r"data\.records = 99: file .*a has 21"):
        silo_sizes(section(path, records=99))


@pytest.mark.parametrize(
    "line, message",
    [
        ("1 1:2 x", "it must be: label index:value"),
        ("1 1:2 3:", "it must be: label index:value"),
        ("1 3:1 2:1", "it must be: .* with indices that rise"),
        ("1 8:1", r"an index is beyond data\.features = 7"),
        ("1 0:1", "indices begin at 1"),
        ("3 1:1", r"its label must be one of data\.classes = \[-1\.0, 1\.0\]"),
        ("nan 1:1", "its label must be one of"),
        ("1 1:inf", "a value is not finite"),
        ("1 1:1e999", "a value is not finite"),
        ("\xff\xfe", "it must be: label"),
    ],
)
def test_a_line_that_does_not_parse_is_named_by_file_and_number(tmp_path, line, message):
    path = written(tmp_path / "a")
    lines = path.read_text().splitlines()
    path.write_text("\n".join(["# one line more", *lines[:30], line, *lines[31:]]) + "\n", encoding="latin-1")
    with pytest.raises(InputError, match=rf"file .*/a, line 32: {message}") as caught:
        libsvm(section(path), 0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"silos": 22}, r"silos = 22: 53 records, of which data\.test_fraction = 0\.2 sets aside 11, leave 1 to each"),
        ({"test_fraction": 0.01}, r"test_fraction = 0\.01 sets aside 1 of 53 records, but two at least are needed"),
        ({"path": "/nowhere/a"}, r"data\.path = /nowhere/a: cannot be read \(No such file"),
    ],
)
def test_what_does_not_fit_is_told_in_a_sentence(tmp_path, changes, message):
    path = written(tmp_path / "a")
    with pytest.raises(InputError, match=message):
        silo_sizes(section(path, **changes))


def test_a_file_without_records_and_equal_classes_are_refused(tmp_path):
    (tmp_path / "a").write_text("# nothing\n\n")
    with pytest.raises(InputError, match="/a: has no records"):
        silo_sizes(section(tmp_path / "a"))
    with pytest.raises(InputError, match="the two labels must differ"):
        section(tmp_path / "a", classes=[1, 1])


def test_silos_are_prepared_with_rows_of_norm_one_at_most(tmp_path):
    data, model = section(written(tmp_path / "a")), validated(ModelConfig, {"bias": False}, "test")
    assert facts(data, model, 0)[1] == 7
    made = prepare(data, model, 0, tmp_path / "silos")
    assert made.dim == 7 and [silo.n for silo in made.facts] == [10] * 4
    assert np.linalg.norm(made.test.X, axis=1).max() <= 1 + 1e-12 and set(made.test.y) == {-1.0, 1.0}
