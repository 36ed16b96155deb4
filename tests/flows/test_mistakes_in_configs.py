"""Mistakes in configs, overrides and arguments: each gives a sentence with the remedy, and changes no file.

The expected texts were written from the information that a person needs, before the sentences were seen.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flows.mistakes import SMALL, check_mistake, instead

SWEEP = """\
name: both
base: small.yaml
grid:
  privacy.epsilon: [1, 2]
  seed: [0, 1]
"""

WRITTEN = [
    # (text of the file, its replacement): expected texts in the sentence.
    ("name: mbsgd", "name: mbgsd", ["algorithm.name = 'mbgsd'", "did you mean mbsgd?"]),
    ("name: mbsgd", "name: MBSGD", ["algorithm.name = 'MBSGD'", "did you mean mbsgd?"]),
    ("  name: mbsgd\n", "", ["algorithm.name is missing"]),
    (
        "name: mbsgd\n  step: 1\n  rounds: 4",
        "name: one-pass-mbsgd\n  rounds: 50",
        ["40 records", "algorithm.rounds = 50", "at most 40"],
    ),
    ("step: 1", "stepp: 1", ["algorithm.stepp", "did you mean step?"]),
    ("step: 1", "step: fast", ["algorithm.step = 'fast'", "number"]),
    ("step: 1", "step: yes", ["algorithm.step = 'yes'", "number"]),
    ("step: 1", "step: [1, 2]", ["algorithm.step = [1, 2]", "number"]),
    ("step: 1", "step: 1e400", ["line", "1e400 is more than a float holds"]),
    ("rounds: 4", "rounds: 0", ["algorithm.rounds = 0", "greater than or equal to 1"]),
    ("rounds: 4", "rounds: 2.5", ["algorithm.rounds = 2.5", "integer"]),
    ("  epsilon: 2", "  epsilon: -1", ["privacy.epsilon = -1", "greater than 0"]),
    ("  epsilon: 2", "  epsilon: 2000000", ["privacy.epsilon = 2000000", "10000"]),
    ("  epsilon: 2", "  epsilon:", ["privacy.epsilon is missing", "for instance"]),
    ("  epsilon: 2", "  epsilom: 2", ["privacy.epsilom", "did you mean epsilon?"]),
    ("  epsilon: 2", "  epsilon: 2\n  rounds: 4", ["privacy.rounds", "did you mean algorithm.rounds?"]),
    ("  epsilon: 2", "  epsilon: 2\n  epsilon: 3", ["line 9", "'epsilon'", "twice"]),
    ("  epsilon: 2", "\tepsilon: 2", ["line 8", "tab", "spaces"]),
    ("  epsilon: 2", "  epsilon 2", ["privacy = 'epsilon 2'", "section"]),
    ("  epsilon: 2", "  epsilon: 2\n  delta: 1", ["privacy.delta = 1", "between 0 and 1"]),
    ("  epsilon: 2", "  epsilon: 2\n  delta: 0.5", ["privacy.delta = 0.5", "1/n = 0.025", "40 records"]),
    ("  epsilon: 2", "  epsilon: 2\n  trust: none", ["privacy.epsilon", "privacy.trust = none", "null"]),
    ("privacy:\n  epsilon: 2\n", "", ["privacy is missing"]),
    ("source: synthetic", "source: csv", ["data.source = 'csv'", "'files'"]),
    ("silos: 3", "silos: 0", ["data.silos = 0", "greater than or equal to 1"]),
    ("records: 40", "records: 1", ["data.records = 1", "greater than or equal to 2"]),
    ("name: small", "name: a/b", ["name = 'a/b'", "letters"]),
    ("name: small\n", "name: small\nseeds: 3\n", ["seeds", "did you mean seed?"]),
    ("name: small\n", "name: small\nmodel:\n  loss: hinge\n", ["model.loss = 'hinge'", "model.loss.name=hinge"]),
    ("name: small\n", "name: small\nmodel:\n  bias: maybe\n", ["model.bias = 'maybe'", "true or false"]),
    (
        "name: small\n",
        "name: small\nparticipation:\n  silos_per_round: 4\n",
        ["participation.silos_per_round = 4", "3 silos"],
    ),
]

WHOLE = [
    (b"", ["small.yaml", "is empty", "fedcore conf list"]),
    (b"# to do\n", ["small.yaml", "is empty"]),
    (b"- privacy\n- algorithm\n", ["small.yaml", "keys"]),
    (b"name: caf\xe9\n", ["small.yaml", "UTF-8"]),
    (SMALL.encode() + b"\x00", ["small.yaml", "line 15", "character"]),
    (b"name: !!timestamp 2024-13-45\n", ["small.yaml", "line 1", "tag !!timestamp"]),
    (b"seed: !!bool maybe\n", ["small.yaml", "line 1", "'maybe' is not true or false"]),
    (b"privacy: !!map [epsilon]\n", ["small.yaml", "line 1", "mapping"]),
    (b"seed: " + b"9" * 5000, ["small.yaml", "line 1", "5000 characters, more than a number has"]),
    (b"privacy: {epsilon: 2", ["small.yaml", "line 1", "'}'"]),
    (b"[" * 1200, ["small.yaml", "nested"]),
]

COMMANDS = [
    (["run", "nowhere.yaml"], ["nowhere.yaml does not exist", "conf/experiment"]),
    (["run", "."], ["folder", "YAML file"]),
    (["run"], ["config", "`fedcore run --help`"]),
    (["rnu", "small.yaml"], ["'rnu'", "run"]),
    (["run", "small.yaml", "--epsilon=2"], ["--epsilon", "privacy.epsilon=2"]),
    (["run", "small.yaml", "epsilon"], ["'epsilon'", "key=value", "privacy.epsilon=2"]),
    (["run", "small.yaml", "privacy..epsilon=2"], ["'privacy..epsilon=2'", "key=value"]),
    (["run", "small.yaml", "privacy.epsilon=[1"], ["'privacy.epsilon=[1'", "']'"]),
    (["run", "small.yaml", "privacy.epsilon.max=2"], ["privacy.epsilon.max", "privacy.epsilon is 2"]),
    (["run", "small.yaml", "privacy=2"], ["privacy = 2", "section"]),
    (["run", "small.yaml", "algorithm=mbsgd"], ["algorithm = 'mbsgd'", "algorithm.name=mbsgd"]),
    (["run", "small.yaml", "seed=0,1"], ["seed = '0,1'", "whole number"]),
    (["run", "small.yaml", "seed=one", "--json"], ["seed = 'one'", "whole number"]),
    (["run", "both.yaml"], ["sweep", "fedcore sweep both.yaml"]),
    (["sweep", "small.yaml"], ["one experiment", "fedcore run small.yaml"]),
    (["sweep", "both.yaml", "seed=0,,1"], ["'seed=0,,1'", "empty"]),
    (["sweep", "both.yaml", "grid.sed=[1]"], ["sed", "did you mean seed?"]),
    (["sweep", "both.yaml", "grid.privacy.epsilon=2"], ["grid.privacy.epsilon = 2", "list"]),
    (["sweep", "both.yaml", "grid.privacy.epsilon=[]"], ["no cell", "empty"]),
    (["sweep", "both.yaml", "grid.privacy.epsilon=[1, -2]"], ["privacy.epsilon = -2", "greater than 0"]),
    (["sweep", "both.yaml", "base=large.yaml"], ["large.yaml does not exist"]),
    (["sweep", "both.yaml", "variants=[{sets: 1}]"], ["variants.0.sets", "did you mean set?"]),
    (["algorithms", "mbgsd"], ["'mbgsd'", "did you mean mbsgd?"]),
    (["conf", "copy", "experiment/digit.yaml"], ["experiment/digit.yaml", "did you mean experiment/digits.yaml?"]),
    (["conf", "copy", "experiment/digits.yaml", "small.yaml"], ["small.yaml is there already"]),
    (["tune", "small.yaml", "--grid", "algorithm.step=2"], ["algorithm.step=2", "[value, value]"]),
    (["tune", "small.yaml", "--grid", "algorithm.step=[1"], ["algorithm.step=[1", "KEY=[value, value]"]),
    (["tune", "small.yaml", "--grid", "algorithm.rounds=[010, 2]"], ["10 in YAML 1.2 and 8 in YAML 1.1"]),
    (["audit", "small.yaml", "--silo", "elm"], ["'elm'", "silo-000"]),
    (["privacy", "sigma", "--n", "100", "--rounds", "3", "--epsilon", "-1"], ["epsilon = -1", "positive"]),
]


@pytest.fixture
def call(fedcore, tmp_path, monkeypatch):
    """The command line in a folder with the small experiment and a sweep of it."""
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(SMALL)
    Path("both.yaml").write_text(SWEEP)
    return fedcore


def label(value: object) -> str | None:
    return value.decode("latin-1")[:20] if isinstance(value, bytes) else None


@pytest.mark.parametrize(("right", "wrong", "texts"), WRITTEN)
def test_a_mistake_in_a_file_is_a_sentence(call, right, wrong, texts):
    Path("small.yaml").write_text(instead(SMALL, right, wrong))
    check_mistake(call, ["run", "small.yaml"], *texts)


@pytest.mark.parametrize(("content", "texts"), WHOLE, ids=label)
def test_a_file_that_is_no_config_is_a_sentence(call, content, texts):
    Path("small.yaml").write_bytes(content)
    check_mistake(call, ["run", "small.yaml"], *texts)


@pytest.mark.parametrize(("arguments", "texts"), COMMANDS, ids=lambda value: " ".join(value))
def test_a_mistake_on_the_command_line_is_a_sentence(call, arguments, texts):
    check_mistake(call, arguments, *texts)


@pytest.mark.parametrize("true, false", [("yes", "no"), ("on", "off"), ("Yes", "NO"), ("'yes'", "'no'")])
def test_true_and_false_may_be_said_in_other_words(call, true, false):
    plans = {}
    for word in ("true", true, "false", false):
        Path("small.yaml").write_text(SMALL + f"model: {{bias: {word}}}\n")
        code, plans[word], _ = call("plan", "small.yaml", "--json")
        assert code == 0
    assert plans[true] == plans["true"] != plans["false"] == plans[false]
