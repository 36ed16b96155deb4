"""`fedcore policy`, policies in `fedcore budget`, and messages for a newcomer without a policy."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment
from fedcore.home import Home
from flows.commands.accounts.budget import app as budget
from flows.commands.policy import app as policy
from tests.patience import HANGS
from tests.policies import ALL, write_policy
from tests.registers import registered

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "conf" / "policy" / "hospital.yaml"


@pytest.fixture
def home(tmp_path, monkeypatch) -> Home:
    monkeypatch.setenv("FEDCORE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FEDCORE_POLICIES")
    return Home.current().make()


def output(app, *arguments: str) -> str:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False).output


def command(home: Home, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "FEDCORE_POLICIES"}
    return subprocess.run(
        [sys.executable, "-m", "flows.commands.app", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANGS,
        env=environment | {"FEDCORE_HOME": str(home.root)},
    )


def open_once(home: Home) -> None:
    config = ExperimentConfig.model_validate(
        {
            "data": {"source": "synthetic", "silos": 2, "records": 40, "features": 3, "test_records": 9},
            "privacy": {"epsilon": 2, "ledger": "sqlite", "noise": "guarded"},
            "algorithm": {"name": "mbsgd"},
        }
    )
    made = registered(Experiment.prepare(config, home.silos), home.ledger_folders)
    made.in_process(home.ledger_folders).close()


DIGITS = ("run", "conf/experiment/digits.yaml", "cluster.backend=in-process", "tracking.mlflow=false")
ON_GUARD = (*DIGITS, "privacy.noise=guarded", "privacy.ledger=sqlite")


@pytest.mark.minutes
@pytest.mark.slow
def test_a_newcomer_reads_what_to_write_and_where(home):
    refused = command(home, *ON_GUARD)
    folder = home.root / "policies"
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == (
        "silo o1e0: it is guarded and has no policy of what runs may ask for: its operator writes "
        f"{folder / 'o1e0.yaml'}, or default.yaml beside it for all silos of that machine; conf/policy/hospital.yaml "
        "is one to copy, every key explained\n"
    )
    assert not home.services.exists()


@pytest.mark.slow
@pytest.mark.minutes
def test_the_example_policy_allows_the_default_experiment_guarded_and_no_more(home):
    folder = home.root / "policies"
    folder.mkdir()
    shutil.copy(EXAMPLE, folder / "default.yaml")  # as the message for newcomers suggests
    unknown = command(home, *ON_GUARD)
    assert unknown.returncode == 2 and "fedcore budget register --new CONFIG o1e0" in unknown.stderr
    registered = command(home, "budget", "register", "--new", DIGITS[1])
    assert registered.returncode == 0, registered.stderr
    done = command(home, *ON_GUARD, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["epsilon_accounted"] == pytest.approx(2, rel=1e-9)
    seeded = command(home, *DIGITS)
    assert seeded.returncode == 2 and "it has a policy, so it is never opened unguarded" in seeded.stderr
    assert "Traceback" not in seeded.stderr
    greedy = command(home, *ON_GUARD, "privacy.epsilon=20")
    assert greedy.returncode == 3 and "Traceback" not in greedy.stderr
    assert greedy.stderr.splitlines()[-1].startswith("silo o1e0: its policy allows one_run.epsilon = 4; run digits-")


def test_a_sweep_is_refused_before_anything_is_started(home, tmp_path):
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text(
        "name: small\nbase:\n  data: {source: synthetic, silos: 2, records: 40, features: 3, test_records: 9}\n"
        "  privacy: {epsilon: 1, ledger: sqlite, noise: guarded}\n  algorithm: {name: mbsgd, rounds: 2}\n"
        "grid: {seed: [0, 1]}\n"
    )
    refused = command(home, "sweep", str(sweep))
    assert refused.returncode == 2 and "silo silo-000: it is guarded and has no policy" in refused.stderr
    assert not home.services.exists() and not home.sweeps.exists()


def test_check_lists_what_a_file_allows_or_all_of_its_faults(home, tmp_path):
    text = output(policy, "check", str(EXAMPLE))
    for line in ("one-pass-mbsgd", "epsilon 8 at delta 1/n^2 over all runs (gdp)", "at most 20", "2030-12-31"):
        assert line in text
    values = json.loads(output(policy, "check", str(EXAMPLE), "--json"))
    assert values["cap"] == {"epsilon": 8.0, "delta": "1/n^2", "rule": "gdp"} and len(values["sha256"]) == 64
    wrong = write_policy(tmp_path, "wrong", runs=0, losses=["logistics"])
    with pytest.raises(InputError) as caught:
        output(policy, "check", str(wrong))
    assert len(str(caught.value).splitlines()) == 2
    with pytest.raises(InputError, match="there is no policy"):
        output(policy, "check", str(tmp_path / "gone.yaml"))
    old = write_policy(tmp_path, "old", expires="2020-01-01")
    assert "2020-01-01: it has, so nothing new" in output(policy, "check", str(old))


def test_show_prints_the_policy_in_force_and_the_recorded_ones(home):
    assert "silo silo-000 has no policy in" in output(policy, "show", "silo-000")
    first = write_policy(home.policies)
    digests = []
    for runs in (1000, 7):
        write_policy(home.policies, runs=runs)
        assert "is recorded when the silo is next opened" not in output(policy, "show", "silo-001") or digests
        open_once(home)
        digests.append(json.loads(output(policy, "check", str(first), "--json"))["sha256"])
    shown = json.loads(output(policy, "show", "silo-000", "--json"))
    assert (shown["file"], shown["policy"]["runs"]) == (str(first), 7)
    ((_, recorded),) = shown["recorded"].items()
    assert [(each["entry"], each["sha256"]) for each in recorded] == [(2, digests[0]), (3, digests[1])]
    text = output(policy, "show", "silo-000")
    assert f"entry 3: policy {digests[1][:12]}" in text and "next opened" not in text
    write_policy(home.policies, runs=8)
    assert "is recorded when the silo is next opened" in output(policy, "show", "silo-000")
    first.write_text("methods: []")
    with pytest.raises(InputError, match="losses is missing"):
        output(policy, "show", "silo-000")


def test_budget_shows_and_exports_policies(home):
    for runs in (1000, 7):
        write_policy(home.policies, runs=runs)
        open_once(home)
    (account,) = json.loads(output(budget, "show", "silo-000", "--json"))
    (exported,) = json.loads(output(budget, "export", "silo-000"))
    for each in (account, exported):
        assert [recorded["policy"]["runs"] for recorded in each["policies"]] == [1000, 7]
        assert each["policies"][1]["policy"]["cap"] == ALL["cap"] | {"rule": "gdp"}
    lines = output(budget, "show", "silo-000").splitlines()
    assert [line.split(":")[0] for line in lines if line.startswith("entry")] == ["entry 2", "entry 3"]
    assert any('recorded last: {"cap"' in line and '"runs": 7' in line for line in lines)
    assert "whole" in output(budget, "verify", "silo-000")


@pytest.mark.parametrize("name", ["a b", "..", "a/b", "*", "-x", "", ".hidden", "ash\n", "é"])
def test_what_no_silo_can_be_called_has_no_policy_either(home, name):
    """The answer once was that of a silo without a policy, which is opened as a simulated one."""
    done = CliRunner().invoke(policy, ["show", "--", name])
    assert isinstance(done.exception, InputError) and f"no silo can be called {name!r}" in str(done.exception)
