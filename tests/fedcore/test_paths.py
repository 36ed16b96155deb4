"""Places of data in a run's identity: one place, however it is typed and from wherever; two places are two."""

import json
import os
import unicodedata
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from fedcore.data.constants.scaling import PublicScaling
from fedcore.data.sources.images import MnistData
from fedcore.data.sources.libsvm import LibsvmData
from fedcore.data.tabular import SiloFile
from fedcore.errors import InputError
from fedcore.experiment.config import ClusterConfig, ExperimentConfig, TlsConfig
from fedcore.experiment.experiment import make_plan
from fedcore.experiment.identity import canonical, placeless, run_id
from fedcore.experiment.loading import load_experiment
from fedcore.experiment.statistics import statistics_id
from fedcore.experiment.stored.configs import loaded_experiment, shown_experiment, stored_experiment
from fedcore.experiment.sweep import load_sweep
from fedcore.paths import Anchor, absolute, path_keys, with_paths
from flows.sweep_budget import sweep_totals
from flows.sweep_files import load_saved, save_sweep, sweep_id
from tasks.run_parameters import run_parameters

FILES = """
name: places
data:
  source: files
  silos: [{{name: north, path: {north}}}, {{name: south, path: {south}}}]
  features: {{a: {{range: [0, 9]}}}}
  label: y
  test: {test}
  scaling: {{path: {scaling}}}
privacy: {{epsilon: 1}}
algorithm: {{name: mbsgd}}
"""


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """A folder with a home, and data in it and beside it; the working folder is the project."""
    made = tmp_path / "project"
    for folder in (made / ".fedcore" / "mnist", made / "data" / "deep", tmp_path / "elsewhere"):
        folder.mkdir(parents=True)
    for name in ("north.csv", "south.csv", "test.csv", "scaling.csv"):
        (made / "data" / name).write_text("a,y\n1,0\n2,1\n")
    monkeypatch.delenv("FEDCORE_HOME", raising=False)
    monkeypatch.chdir(made)
    return made


def asked(folder, **changes) -> ExperimentConfig:
    """The experiment of a file in the folder, with paths as given."""
    paths = {
        "north": "data/north.csv",
        "south": "data/south.csv",
        "test": "data/test.csv",
        "scaling": "data/scaling.csv",
    } | changes
    (folder / "files.yaml").write_text(FILES.format(**{key: json.dumps(path) for key, path in paths.items()}))
    return load_experiment(folder / "files.yaml")


def spellings(project):
    """Spellings of the path data/north.csv."""
    (project / "link").symlink_to(project / "data")
    (project / "data" / "deep" / "again.csv").symlink_to("../north.csv")
    (project / "elsewhere").symlink_to(project / "data" / "deep")
    return {
        "dots": "./data/../data/north.csv",
        "slashes": "data//north.csv",
        "absolute": f"{project}/data/north.csv",
        "two slashes at the root": f"/{project}/data/north.csv",
        "a linked folder": "link/north.csv",
        "a linked file": "data/deep/again.csv",
        "above a link": "elsewhere/../north.csv",
    }


@pytest.mark.parametrize("key", ["north", "test", "scaling"])
def test_one_place_is_one_run_however_it_is_typed(project, key):
    wanted, base = run_id(asked(project)), asked(project)
    for how, path in spellings(project).items():
        other = path.replace("north.csv", f"{key}.csv") if how != "a linked file" else None
        if other is None:
            (project / "data" / "deep" / f"{key}-again.csv").symlink_to(f"../{key}.csv")
            other = f"data/deep/{key}-again.csv"
        assert run_id(asked(project, **{key: other})) == wanted, how
    assert run_id(base) == wanted


def test_one_place_is_one_run_from_any_working_folder_and_by_any_name_of_the_home(project, tmp_path, monkeypatch):
    wanted = run_id(asked(project))
    config = str(project / "files.yaml")
    (tmp_path / "other-name").symlink_to(project)
    relative = {key: f"../project/data/{key}.csv" for key in ("north", "south", "test", "scaling")}
    monkeypatch.chdir(tmp_path / "elsewhere")
    for home in (project / ".fedcore", tmp_path / "other-name" / ".fedcore", f"{project}/.fedcore/"):
        monkeypatch.setenv("FEDCORE_HOME", str(home))
        assert run_id(asked(project, **relative)) == wanted
    assert Path(config).exists()


def test_the_user_s_home_is_no_folder_of_that_name(project, monkeypatch):
    monkeypatch.setenv("HOME", str(project / "data"))
    assert run_id(asked(project, north="~/north.csv")) == run_id(asked(project))
    assert asked(project, north="./~/north.csv").data.silos[0].path == f"{project}/~/north.csv"


def test_other_places_are_other_runs(project):
    """Also the one that was the same before: a relative path, from another working folder of the same home."""
    paths = ["data/north2.csv", "data/deep/north.csv", "/north.csv", "north.csv", ".fedcore/north.csv"]
    assert len({run_id(asked(project, north=path)) for path in [*paths, "data/north.csv"]}) == len(paths) + 1


def test_the_same_words_in_another_folder_are_other_data(project, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCORE_HOME", str(project / ".fedcore"))
    here = run_id(asked(project))
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run_id(asked(project)) != here


def test_relative_paths_beside_the_home_have_the_ids_that_they_had(project):
    """Ids of version 0.2.0 were digests of paths as they were typed: written out here, without what names places."""
    values = json.loads(canonical(asked(project)))["data"]
    assert [silo["path"] for silo in values["silos"]] == ["data/north.csv", "data/south.csv"]
    assert (values["test"], values["scaling"]["path"]) == ("data/test.csv", "data/scaling.csv")


def test_data_in_the_home_have_one_name_on_every_machine(project, tmp_path, monkeypatch):
    start = ["data={source: mnist, folder: .fedcore/mnist}"]
    asked(project)
    plain = "conf/experiment/digits.yaml"
    config = Path(__file__).resolve().parents[2] / plain
    first = load_experiment(config, start)
    assert json.loads(canonical(first))["data"]["folder"] == "//mnist"
    other = tmp_path / "moved" / "store"
    (other / "mnist").mkdir(parents=True)
    monkeypatch.setenv("FEDCORE_HOME", str(other))
    second = load_experiment(config, [f"data={{source: mnist, folder: {other}/mnist}}"])
    assert canonical(second) == canonical(first, Anchor.of(project / ".fedcore"))


def test_unicode_forms_that_are_one_file_are_one_place(project, monkeypatch):
    composed, decomposed = (unicodedata.normalize(form, "data/Zürich.csv") for form in ("NFC", "NFD"))
    (project / composed).write_text("a,y\n")
    # Here they are two names, and one of them of no file: two runs.
    assert run_id(asked(project, north=composed)) != run_id(asked(project, north=decomposed))
    os.link(project / composed, project / decomposed)  # as where a file system takes both for one
    assert run_id(asked(project, north=composed)) == run_id(asked(project, north=decomposed))


@pytest.mark.parametrize("path", ["", "  "])
def test_a_path_that_names_nothing_is_refused(project, path):
    with pytest.raises(InputError, match="names no file and no folder"):
        asked(project, test=path)
    with pytest.raises(ValueError, match="names no file"):
        absolute(path)


def test_sweeps_and_statistics_are_of_places_too(project, monkeypatch, tmp_path):
    released = "{constants: released, epsilon: 1}"
    base = asked(project)
    sweep = project / "sweep.yaml"
    ids, statistics = set(), set()
    for path in ("data/north.csv", str(project / "data" / "north.csv"), *spellings(project).values()):
        silos = [{"name": "north", "path": path}, {"name": "south", "path": "data/south.csv"}]
        sweep.write_text(
            json.dumps(
                {
                    "name": "s",
                    "base": base.model_dump(mode="json") | {"name": "s"},
                    "variants": [{"set": {"data.silos": silos}}],
                    "grid": {"seed": [0, 1], "data.test": ["data/test.csv"]},
                }
            )
        )
        loaded = load_sweep(sweep)
        assert all(os.path.isabs(silo["path"]) for silo in loaded.variants[0].set["data.silos"])
        assert loaded.grid["data.test"] == [f"{project}/data/test.csv"]
        ids.add(sweep_id(loaded))
        asked(project, north=path)
        statistics.add(statistics_id(load_experiment(project / "files.yaml", [f"data.scaling={released}"])))
    assert len(ids) == len(statistics) == 1


def test_a_kept_config_is_found_again_wherever_the_project_is(project, tmp_path, monkeypatch):
    """Runs and sweeps of a home that was moved, or copied, with its data: their ids are unchanged."""
    from fedcore.home import Home

    outside = tmp_path / "elsewhere" / "south.csv"
    made = asked(project, south=str(outside), scaling=".fedcore/scaling.csv")
    stored = json.loads(json.dumps(stored_experiment(made, Home.current().anchor)))
    sweep = load_sweep(project / "files.yaml", ["seed=0,1"])
    (Home.current().sweeps / sweep_id(sweep)).mkdir(parents=True)
    save_sweep(Home.current(), sweep)
    run, name = run_id(made), sweep_id(sweep)
    assert loaded_experiment(stored, Home.current().anchor) == made
    moved = tmp_path / "somewhere" / "deep"
    moved.parent.mkdir()
    project.rename(moved)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDCORE_HOME", str(moved / ".fedcore"))
    again = loaded_experiment(stored, Home.current().anchor)
    assert run_id(again) == run and again.data.silos[0].path == f"{moved}/data/north.csv"
    assert again.data.silos[1].path == str(outside) and again.data.scaling.path == f"{moved}/.fedcore/scaling.csv"
    assert sweep_id(load_saved(Home.current(), name)) == name
    assert load_saved(Home.current(), name).cells()[0].data == again.data


def test_a_run_through_a_link_goes_on_with_what_the_link_led_to(project):
    from fedcore.home import Home

    (project / "current").symlink_to("data")
    stored = stored_experiment(asked(project, north="current/north.csv"), Home.current().anchor)
    (project / "current").unlink()
    (project / "current").symlink_to(".fedcore")
    assert loaded_experiment(stored, Home.current().anchor).data.silos[0].path == f"{project}/data/north.csv"


def test_every_path_of_a_config_is_known_as_one():
    assert path_keys(ExperimentConfig) == {
        "cluster.tls.ca",
        "cluster.tls.certificate",
        "cluster.tls.key",
        "data.folder",
        "data.path",
        "data.scaling.path",
        "data.silos.path",
        "data.test",
        "shuffler.secret",
    }
    # Whoever adds a text field that is called like a path declares it as one.
    texts = set()

    def walk(kind, at=""):
        for key, field in kind.model_fields.items():
            name = f"{at}.{key}" if at else key
            parts = [field.annotation]
            while parts:
                part = parts.pop()
                if isinstance(part, type) and issubclass(part, BaseModel):
                    walk(part, name)
                elif part is str and any(word in key for word in ("path", "folder", "file", "directory", "secret")):
                    texts.add(name)
                parts += [each for each in get_args(part) if isinstance(each, type) or get_args(each)]

    walk(ExperimentConfig)
    assert texts == path_keys(ExperimentConfig) - {
        "cluster.tls.ca",
        "cluster.tls.certificate",
        "cluster.tls.key",
        "data.test",
    }
    made = [
        MnistData(folder="a").folder,
        LibsvmData(path="a", features=2).path,
        SiloFile(name="a", path="a").path,
        PublicScaling(path="a").path,
        TlsConfig(ca="a", certificate="a", key="a").ca,
    ]
    assert set(made) == {os.path.abspath("a")}


def test_paths_are_changed_in_nested_and_in_dotted_sections_alike():
    keys = frozenset({"data.silos.path", "data.test"})
    values = {"data.silos": [{"name": "a", "path": "p"}], "data": {"test": "t", "label": "l"}, "data.test": ["u", None]}
    assert with_paths(values, keys, str.upper) == {
        "data.silos": [{"name": "a", "path": "P"}],
        "data": {"test": "T", "label": "l"},
        "data.test": ["U", None],
    }


def test_copies_of_public_files_are_the_same_records_in_the_totals_of_a_sweep(project):
    """Their silos have one account, so two cells on them add up, wherever the files are."""
    lines = "".join(f"{'+1' if number % 3 else '-1'} 1:{number / 60} 2:0.5\n" for number in range(60))
    for folder in ("A", "B"):
        (project / folder).mkdir()
        (project / folder / "d.txt").write_text(lines)
    (project / "files.yaml").write_text("privacy: {epsilon: 2}\nalgorithm: {name: mbsgd, rounds: 4}\n")
    data = "data={source: libsvm, path: %s/d.txt, features: 2, silos: 2}"
    cells = [load_experiment(project / "files.yaml", [data % folder]) for folder in ("A", "B")]
    assert run_id(cells[0]) != run_id(cells[1])
    totals = sweep_totals(None, cells)
    assert [total.cells for total in totals] == [2, 2] and all(total.epsilon > 2.5 for total in totals)
    (project / "B" / "d.txt").write_text(lines.replace("0.5", "0.25"))
    assert [total.cells for total in sweep_totals(None, cells)] == [1] * 4


def test_what_is_opened_is_what_the_path_names(project, tmp_path):
    """`link/..` is the folder above the link's target, for every kind of data: not the one that the link is in."""
    (tmp_path / "elsewhere" / "deep").mkdir()
    (project / "data" / "out").symlink_to(tmp_path / "elsewhere" / "deep")
    typed = "data/out/../north.csv"
    assert asked(project, north=typed).data.silos[0].path == str(tmp_path / "elsewhere" / "north.csv")
    assert absolute(typed) == os.path.realpath(typed)
    assert absolute("data/deep/../north.csv") == f"{project}/data/north.csv"


def test_what_pages_and_files_are_told_of_a_config_names_no_place_of_this_machine(project, tmp_path, monkeypatch):
    """The page does not show paths of keys and secrets; a copy of it runs as the same run from the home's folder."""
    from fedcore.home import Home

    outside = tmp_path / "elsewhere" / "south.csv"
    for place in (outside, project / ".fedcore" / "scaling.csv", project / "data" / "north.csv"):
        place.write_text("a,y\n" + "1,0\n2,1\n" * 20)
    keys = {key: str(project / f"{key}.pem") for key in ("ca", "certificate", "key")}
    made = asked(project, north=str(project / "data" / "north.csv"), south=str(outside), scaling=".fedcore/scaling.csv")
    secret = made.model_copy(update={"cluster": ClusterConfig(address="tls://127.0.0.1:9", tls=keys)})
    page = shown_experiment(secret)
    assert [silo["path"] for silo in page["data"]["silos"]] == ["data/north.csv", str(outside)]
    assert page["data"]["scaling"]["path"] == ".fedcore/scaling.csv" and "tls" not in page["cluster"]
    assert str(project) not in json.dumps(page)
    monkeypatch.chdir(project)
    assert run_id(ExperimentConfig.model_validate(page)) == run_id(made)
    shown = run_parameters(secret, make_plan(made))
    assert str(project) not in json.dumps(shown) and not any("tls" in key for key in shown)
    assert shown_experiment(made, Home.current().anchor) == shown_experiment(made)


def test_what_is_kept_of_a_run_tells_without_validation_what_it_is_of_but_for_places(project, tmp_path):
    """As many classes of equal digests as of equal ids with one place for all: of every config that is delivered."""
    configs = [load_experiment(path) for path in sorted(Path(__file__).parents[2].glob("conf/experiment/*.yaml"))]
    configs += [asked(project), asked(project, north="data/deep/north.csv")]
    anchor, far = Anchor.of(project / ".fedcore"), Anchor.of(tmp_path / "elsewhere" / "home")
    for config in configs:
        stored = json.loads(json.dumps(stored_experiment(config, anchor)))
        before = json.loads(json.dumps(stored))
        assert placeless(stored) == placeless(config.model_dump(mode="json")), config.name
        assert placeless(stored_experiment(config, far)) == placeless(stored)
        assert stored == before
        other = config.model_copy(update={"repetition": config.repetition + 1})
        assert placeless(other.model_dump(mode="json")) != placeless(stored)
        for section in ("cluster", "orchestration", "tracking"):  # nothing of these decides an id
            assert placeless(stored | {section: {"other": 1}}) == placeless(stored)
    one, two = configs[-2:]
    assert run_id(one) != run_id(two)
    assert placeless(one.model_dump(mode="json")) == placeless(two.model_dump(mode="json"))


@pytest.mark.parametrize("values", [None, [], "text", {}, {"seed": 1}, {"data": 1, "privacy": 2}])
def test_values_that_are_no_config_s_are_named_so(values):
    with pytest.raises(ValueError, match="no config"):
        placeless(values)
