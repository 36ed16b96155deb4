"""`fedcore audit`: what it prints, its exit codes, and that it reads no silo's records."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedcore.errors import InputError
from fedcore.privacy.noise import KeyedGaussian
from flows.cli import app

ROOT = Path(__file__).parents[2]
DIGITS = str(ROOT / "conf" / "experiment" / "digits.yaml")
INSTRUMENTS = [
    "variance", "clipping, one record", "clipping, all records", "sampling rate", "reused noise", "second release",
    "one-run bound",
]  # fmt: skip


def audit(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["audit", *arguments], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCORE_HOME", str(tmp_path / "home"))
    yield tmp_path / "home"
    assert not (tmp_path / "home").exists(), "an audit prepares no data"


def test_the_default_experiment_passes_in_seconds_and_says_what_it_cannot_show():
    began = time.monotonic()
    said = " ".join(audit(DIGITS).split())
    assert time.monotonic() - began < 30
    for instrument in INSTRUMENTS:
        assert f"{instrument}: " in said
    assert "no sampled answers in this plan" in said and "ALARM" not in said
    assert "promises nothing" in said and "confidence 0.9999" in said and "synthetic records" in said


def test_json_has_every_finding_and_depends_on_the_seed_alone():
    values = json.loads(audit(DIGITS, "--json", "--seed", "3"))
    assert [finding["instrument"] for finding in values["findings"]] == INSTRUMENTS
    assert values["passed"] and values["records"] == "synthetic" and values["adjacency"] == "replace-one"
    assert values["silo"] == "o9e8" and values["n"] == 55 and values["dim"] == 65
    assert values["one_run_power"]["epsilon"] is None
    assert sum(f["false_alarm"] for f in values["findings"][:-1]) <= values["false_alarm_tests"] * (1 + 1e-9)
    assert json.loads(audit(DIGITS, "--json", "--seed", "3")) == values
    assert json.loads(audit(DIGITS, "--json", "--seed", "4")) != values


@pytest.mark.parametrize("name", ["mbsgd", "one-pass-mbsgd", "localized-accelerated"])
def test_every_method_can_be_audited(name):
    sizes = ["data.source=synthetic", "data.records=30", "data.features=3", "data.silos=2"]
    rounds = [] if name != "localized-accelerated" else ["algorithm.lam=0.1", "algorithm.rounds=4"]
    options = [f"algorithm.name={name}", *rounds, *sizes, "privacy.ledger=sqlite", "--silo", "silo-001", "--json"]
    values = json.loads(audit(DIGITS, *options))
    assert values["passed"] and values["silo"] == "silo-001" and values["method"] == name


def test_a_bug_in_the_installed_code_ends_with_code_one(monkeypatch):
    drawn = KeyedGaussian.draw
    monkeypatch.setattr(KeyedGaussian, "draw", lambda *arguments: 0.9 * drawn(*arguments))
    assert "ALARM" in audit(DIGITS, code=1)
    failed = [f["instrument"] for f in json.loads(audit(DIGITS, "--json", code=1))["findings"] if not f["passed"]]
    assert failed == ["variance"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--silo", "nowhere"], "there is no silo 'nowhere'"),
        (["privacy.trust=none", "privacy.epsilon=null"], "nothing to audit"),
        (["privacy.epsilon=-1"], "epsilon"),
        (["algorithm={name: scaffold}"], "algorithm.name = scaffold answers from local steps"),
        (["model.loss.name=softmax", "data.labels=digit"], "canaries are written for a predictor of one value"),
    ],
)
def test_mistakes_are_sentences(arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        CliRunner().invoke(app, ["audit", DIGITS, *arguments], catch_exceptions=False)
