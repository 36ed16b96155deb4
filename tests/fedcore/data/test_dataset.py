"""From configuration to silos: planning agrees with running, and faulty files are reported before work starts."""

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest

from fedcore.data.constants.pca import PcaConfig
from fedcore.data.dataset import facts, prepare
from fedcore.data.generated import _recipe
from fedcore.data.layout import dataset_name
from fedcore.data.silo_file import count_records, open_records
from fedcore.data.sources.images import DigitsData
from fedcore.data.sources.synthetic import SyntheticData
from fedcore.data.tabular import FilesData
from fedcore.errors import InputError
from fedcore.models.model_config import ModelConfig

MODEL = ModelConfig()
SMALL = SyntheticData(silos=3, records=6, features=2, test_records=9)


def write_csv(path, n=4, text=None):
    rows = "".join(f"{i},{i * i},{i % 2}\n" for i in range(n))
    path.write_text(f"age,dose,y\n{rows}" if text is None else text)
    return str(path)


def files(folder, names=("north", "south"), **changes):
    silos = tuple({"name": name, "path": str(folder / f"{name}.csv")} for name in names)
    return FilesData(**{"silos": silos, "features": ("age", "dose"), "label": "y", **changes})


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "data",
    [
        DigitsData(),
        DigitsData(test_fraction=0.31),
        DigitsData(pca=PcaConfig()),
        DigitsData(pca=PcaConfig(dimension=9, constants="simulation")),
        SMALL,
    ],
)
def test_what_is_planned_is_what_runs(tmp_path, data, bias):
    model = ModelConfig(bias=bias, feature_bound=0.5)
    planned, dim = facts(data, model, 7)
    ready = prepare(data, model, 7, tmp_path)
    assert (ready.facts, ready.dim) == (planned, dim)
    width = len(ready.feature_names) if ready.projection is None else ready.projection.dim
    assert dim == width + bias
    assert [source.name for source in ready.sources] == [fact.name for fact in planned]
    for source, fact in zip(ready.sources, planned, strict=True):
        records = open_records(source)
        assert records.n == count_records(source) == fact.n and records.dim == dim
        assert set(records.y) <= {-1.0, 1.0}
        assert np.linalg.norm(records.X, axis=1).max() <= 0.5
    assert ready.test is not None and ready.test.dim == dim


def test_digits_test_images_are_in_no_silo(tmp_path):
    ready = prepare(DigitsData(), ModelConfig(bias=False, feature_bound=100.0), 0, tmp_path)
    held = {row.tobytes() for source in ready.sources for row in open_records(source).X}
    assert len(held) == 1797 - ready.test.n == 1797 - 359
    assert not held & {row.tobytes() for row in ready.test.X}


def test_generated_data_are_made_once(tmp_path):
    first = prepare(SMALL, MODEL, 7, tmp_path)
    again = prepare(SMALL, ModelConfig(bias=False), 7, tmp_path)
    assert [s.version for s in again.sources] == [s.version for s in first.sources]
    assert [s.path for s in again.sources] == [s.path for s in first.sources]
    assert again.name == first.name and os.listdir(tmp_path) == [first.name]
    other = prepare(SMALL, MODEL, 8, tmp_path)
    assert other.name != first.name
    assert open_records(other.sources[0]).X.tobytes() != open_records(first.sources[0]).X.tobytes()


@pytest.mark.parametrize("labels", ["odd-even", "digit"])
def test_the_name_of_a_data_set_is_the_digest_of_its_recipe(labels):
    """A name is `source` and a digest of the recipe without labels; if it changed, accounts would begin at zero."""
    data = {"source": "digits", "split": "odd-even", "homogeneity": 0.0, "similarity": None, "test_fraction": 0.2}
    recipe = {"generator": 3, "seed": 7, "data": data}
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:12]
    assert dataset_name("digits", _recipe(DigitsData(labels=labels), 7)) == f"digits-{digest}"
    recipe["data"] = {"source": "synthetic", **{k: v for k, v in SMALL.model_dump().items() if k != "source"}}
    keys = {"source", "silos", "records", "features", "heterogeneity", "test_records", "classes"}
    keys |= {"offset", "informative", "condition"}
    assert recipe["data"].keys() == keys and _recipe(SMALL, 7) == recipe


def test_same_recipe_elsewhere_gives_the_same_records_under_another_version(tmp_path):
    here, there = (prepare(SMALL, MODEL, 7, tmp_path / name) for name in "ab")
    assert here.name == there.name
    for a, b in zip(here.sources, there.sources, strict=True):
        assert open_records(a).X.tobytes() == open_records(b).X.tobytes() and a.version != b.version
    assert here.test.X.tobytes() == there.test.X.tobytes()


def test_planning_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for data in (DigitsData(), SMALL):
        facts(data, MODEL, 0)
    assert os.listdir(tmp_path) == []


def test_another_data_set_in_the_folder_is_refused(tmp_path):
    ready = prepare(SMALL, MODEL, 7, tmp_path)
    manifest = tmp_path / ready.name / "silo-001" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"records": 6', '"records": 5'))
    with pytest.raises(InputError, match="does not hold the silos of its recipe"):
        prepare(SMALL, MODEL, 7, tmp_path)


def test_users_files(tmp_path, monkeypatch):
    write_csv(tmp_path / "north.csv", 4)
    write_csv(tmp_path / "south.csv", 5)
    write_csv(tmp_path / "public.csv", 6)
    monkeypatch.chdir(tmp_path)
    data = FilesData(
        silos=({"name": "north", "path": "north.csv"}, {"name": "south", "path": "./south.csv"}),
        features=("dose", "age"),
        label="y",
        test="public.csv",
        divide_by=2.0,
    )
    planned, dim = facts(data, MODEL, 0)
    ready = prepare(data, MODEL, 0, Path("root"))
    monkeypatch.chdir("/")  # a worker's own folder
    assert [(f.name, f.n) for f in planned] == [("north", 4), ("south", 5)] and dim == 3
    assert (ready.facts, ready.dim, ready.test.n) == (planned, 3, 6)
    assert ready.feature_names == ("dose", "age")
    row = np.array([4 / 2, 2 / 2, 1.0])  # dose, age, bias of record 2
    np.testing.assert_allclose(open_records(ready.sources[0]).X[2], row / np.linalg.norm(row), rtol=1e-14)
    assert ready.test.X[:4].tobytes() == open_records(ready.sources[0]).X.tobytes()


def test_a_file_keeps_its_version_whatever_is_asked_of_it(tmp_path):
    """Otherwise another choice of columns, or one more silo, would look like fresh records."""
    for name in ("north", "south"):
        write_csv(tmp_path / f"{name}.csv")
    both = prepare(files(tmp_path), MODEL, 0, tmp_path / "root")
    one = prepare(files(tmp_path, ("south",), features=("age",), divide_by=3.0), MODEL, 1, tmp_path / "root")
    assert one.sources[0].version == both.sources[1].version != both.sources[0].version
    assert one.name == both.name


def test_at_most_five_faulty_silos_are_listed_and_nothing_is_registered(tmp_path):
    names = [f"s{i}" for i in range(9)]
    for name in names:
        write_csv(tmp_path / f"{name}.csv", text="age,dose,y\n1,2,0\nSECRET-4711,2,1\n")
    write_csv(tmp_path / "s0.csv")
    write_csv(tmp_path / "s3.csv", text="age,y\n1,0\n")
    (tmp_path / "s5.csv").unlink()
    with pytest.raises(InputError) as caught:
        prepare(files(tmp_path, names), MODEL, 0, tmp_path / "root")
    lines = str(caught.value).splitlines()
    assert lines[0] == "8 of 9 silos cannot be used:" and lines[-1].strip() == "and 3 more" and len(lines) == 7
    assert "silo s3: file " in lines[3] and "has no column 'dose'" in lines[3]
    assert "SECRET" not in str(caught.value)
    assert caught.value.__context__ is None
    assert not (tmp_path / "root").exists()
    with pytest.raises(InputError, match="2 of 9 silos cannot be used") as planned:
        facts(files(tmp_path, names), MODEL, 0)  # what planning can see: no file, no column
    assert "silo s5" in str(planned.value)


def test_planning_does_not_look_at_cells(tmp_path):
    write_csv(tmp_path / "north.csv", text="age,dose,y\n" + "not,a,number\n" * 3)
    assert facts(files(tmp_path, ["north"]), MODEL, 0)[0][0].n == 3


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_one_file_for_two_silos_is_refused(tmp_path, link):
    write_csv(tmp_path / "north.csv")
    link(tmp_path / "north.csv", tmp_path / "south.csv")
    for call in (lambda d: facts(d, MODEL, 0), lambda d: prepare(d, MODEL, 0, tmp_path / "root")):
        with pytest.raises(InputError, match=r"data\.silos: 'north' and 'south' name the same file"):
            call(files(tmp_path))
        with pytest.raises(InputError, match="is the file of silo 'north'; it must be of public records"):
            call(files(tmp_path, ["north"], test=str(tmp_path / "south.csv")))


def test_one_missing_file_for_two_silos_is_refused(tmp_path):
    silos = ({"name": "a", "path": str(tmp_path / "x.csv")}, {"name": "b", "path": f"{tmp_path}/./x.csv"})
    with pytest.raises(InputError, match="'a' and 'b' name the same file"):
        facts(files(tmp_path, silos=silos), MODEL, 0)


def test_file_names_must_say_their_format(tmp_path):
    silos = ({"name": "north", "path": "/data/north.xlsx"},)
    with pytest.raises(InputError, match=r"data\.silos, 'north': file /data/north\.xlsx must end in"):
        facts(files(tmp_path, silos=silos), MODEL, 0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "data.test: file .*test.csv does not exist$"),
        ("age,y\n1,0\n2,1\n", "data.test: file .*has no column 'dose'"),
        ("age,dose,y\n1,2,0\n1,SECRET-4711,1\n", "data.test: file .*'dose' that are not numeric"),
    ],
)
def test_faults_of_the_test_file_name_its_key(tmp_path, text, words):
    write_csv(tmp_path / "north.csv")
    if text is not None:
        write_csv(tmp_path / "test.csv", text=text)
    with pytest.raises(InputError, match=words) as caught:
        prepare(files(tmp_path, ["north"], test=str(tmp_path / "test.csv")), MODEL, 0, tmp_path / "root")
    assert "SECRET" not in str(caught.value) and caught.value.__context__ is None
    assert not (tmp_path / "root").exists()
