"""`fedcore conf`: every example is listed, and a copy of it, anywhere, is the same experiment or sweep."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from fedcore.errors import InputError
from fedcore.experiment.loading import load_experiment
from fedcore.experiment.sweep import load_sweep
from flows.commands.app import app

CONF = Path(__file__).parents[2] / "conf"
NAMES = sorted(path.relative_to(CONF).as_posix() for path in CONF.rglob("*.yaml"))


def call(*words: str | Path) -> str:
    done = CliRunner().invoke(app, ["conf", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_all_examples_are_listed_with_what_they_are():
    listed = json.loads(call("list", "--json"))
    assert list(listed) == NAMES
    assert listed["experiment/digits.yaml"].startswith("Handwritten digits, odd against even")
    assert all(name in call("list") for name in NAMES)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(("experiment/", "sweep/"))])
def test_a_copy_is_the_same_experiment_or_sweep(name, tmp_path):
    call("copy", name, tmp_path)
    copy = tmp_path / Path(name).name
    if name.startswith("experiment/"):
        assert load_experiment(copy) == load_experiment(CONF / name)
    else:
        assert load_sweep(copy).cells() == load_sweep(CONF / name).cells()


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("sweep/")])
def test_a_copy_has_the_same_text(name, tmp_path):
    call("copy", name, tmp_path / "mine.yaml")
    assert (tmp_path / "mine.yaml").read_text() == (CONF / name).read_text()
    assert yaml.safe_load((tmp_path / "mine.yaml").read_text()) is not None


def test_nothing_is_replaced_and_mistakes_are_sentences(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits.yaml").write_text("mine")
    for words, sentence in [
        (("experiment/digits.yaml",), "digits.yaml is there already"),
        (("digits.yaml",), "did you mean experiment/digits.yaml"),
        (("nothing.yaml",), "is no example; `fedcore conf list` names them"),
        (("experiment/digits.yaml", "gone/there.yaml"), "gone/there.yaml cannot be written"),
    ]:
        done = CliRunner().invoke(app, ["conf", "copy", *words])
        assert isinstance(done.exception, InputError) and sentence in str(done.exception)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("digits.yaml", "mine")]
