"""Runs with a whole-silo target: its numbers in results, statements, tables, metrics and commands."""

import json

import pytest
import yaml
from typer.testing import CliRunner

from fedcore.configfile.reading import validated
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment, make_plan
from fedcore.experiment.result import RunResult
from fedcore.experiment.spending import spent_so_far
from fedcore.home import Home
from flows.commands.app import app
from flows.commands.show import show_run
from flows.reports.lines import summarise
from tasks.run_parameters import run_parameters
from tasks.statement import privacy_tags
from tests.flows.driving import run
from tests.flows.results import made_result
from tests.gaussian_curve import epsilon_by_hand
from tests.policies import write_policy

SILOS, ROUNDS = 4, 5  # of the config below
YAML = """
name: whole
data: {source: synthetic, silos: 4, records: 50, features: 3, test_records: 40}
privacy: {epsilon: 4, whole_silo: {epsilon: 20, delta: 0.001}}
algorithm: {name: mbsgd, rounds: 5}
cluster: {backend: in-process}
tracking: {mlflow: false}
"""


def config(**sections):
    values = yaml.safe_load(YAML)
    return validated(ExperimentConfig, values | sections, "a test")


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "home").make()


@pytest.mark.parametrize("privacy", [{}, {"ledger": "sqlite", "noise": "guarded"}], ids=["seeded", "guarded"])
def test_a_result_has_both_guarantees_and_what_each_silo_spent(home, privacy, request):
    if privacy:
        policies = request.getfixturevalue("policies")
        for at in range(SILOS):
            write_policy(policies, f"silo-{at:02}")
    made = config(
        privacy={"epsilon": 4, "whole_silo": {"epsilon": 20, "delta": 1e-3}, **privacy},
        participation={"silos_per_round": 2},
    )
    result, plan = run(home, made), make_plan(made)
    assert (result.epsilon_whole_silo_target, result.delta_whole_silo) == (20, 1e-3)
    assert 19.999 < result.epsilon_whole_silo <= 20 and result.epsilon_accounted < 4
    sigma = plan.phases[0].shares[0].sigma
    for silo in result.silos:
        mu = 2 * made.model.gradient_bound * (1 + 1e-6) * silo.releases**0.5 / sigma
        by_hand = epsilon_by_hand(mu, 1e-3) if mu else 0.0
        assert silo.epsilon_whole_silo == pytest.approx(by_hand, rel=1e-4)
    assert sum(silo.releases for silo in result.silos) == 2 * ROUNDS
    stored = json.loads(json.dumps(result.as_json()))
    assert RunResult.model_validate(stored) == result and stored["epsilon_whole_silo"] == result.epsilon_whole_silo


def test_a_result_without_the_target_has_no_word_of_it(home):
    result = run(home, config(privacy={"epsilon": 4}))
    assert "whole" not in json.dumps(result.as_json()).replace(result.run, "")


def test_statement_parameters_and_metrics_contain_it(tmp_path):
    made = Experiment.prepare(config(), tmp_path / "silos")
    tags = privacy_tags(made.config, made.plan)
    assert tags["privacy.epsilon_whole_silo_target"] == "20" and tags["privacy.delta_whole_silo"] == "0.001"
    assert float(tags["privacy.epsilon_whole_silo"]) == pytest.approx(20, rel=1e-5)
    assert "is (20, 0.001)-differentially private for its whole data set, too" in tags["privacy.statement"]
    shown = run_parameters(made.config, made.plan)
    assert shown["plan.epsilon_whole_silo_target"] == shown["privacy.whole_silo.epsilon"] == 20
    plain = Experiment.prepare(config(privacy={"epsilon": 4}), tmp_path / "silos")
    statement = privacy_tags(plain.config, plain.plan)
    assert not any("whole" in key for key in statement) and "whole data set" not in statement["privacy.statement"]
    sigma = made.plan.phases[0].shares[0].sigma
    for rounds in (1, 3, 5):
        mu = 2 * made.config.model.gradient_bound * (1 + 1e-6) * rounds**0.5 / sigma
        found = spent_so_far(made.plan, None, 1, rounds)["epsilon_whole_silo"]
        assert found == pytest.approx(epsilon_by_hand(mu, 1e-3), rel=1e-6)
    assert "epsilon_whole_silo" not in spent_so_far(plain.plan, None, 1, 1)


def test_tables_keep_runs_of_different_targets_apart():
    results = [made_result(epsilon_whole_silo_target=target) for target in (None, 8.0, 20.0, 8.0)]
    lines = summarise(results)
    assert [(line.level, line.runs) for line in lines] == [("1, whole silo 8", 2), ("1, whole silo 20", 1), ("1", 1)]


def test_plan_and_report_print_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FEDCORE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "400")
    file = tmp_path / "whole.yaml"
    file.write_text(YAML)
    done = CliRunner().invoke(app, ["plan", str(file)], catch_exceptions=False)
    assert done.exit_code == 0
    # 20 / 50, and 1e-3 / (50 e^(49 * 20 / 50)) = 6.1498e-14: no target may be larger.
    statement = " ".join(done.output.split())
    assert "whole silo, all of its records replaced: epsilon target 20, accounted 20, delta 0.001." in statement
    assert "would ask for epsilon 0.4 and delta 6.14e-14 for each of 50" in statement
    totals = json.loads(CliRunner().invoke(app, ["plan", str(file), "--json"]).output)["totals"]
    assert totals["epsilon_whole_silo"] <= totals["epsilon_whole_silo_target"] == 20
    file.write_text(YAML.replace(", whole_silo: {epsilon: 20, delta: 0.001}", ""))
    done = CliRunner().invoke(app, ["plan", str(file)], catch_exceptions=False)
    assert "whole" not in done.output.replace("whole run", "").replace("whole-", "")
    show_run(made_result(epsilon_whole_silo_target=20.0, epsilon_whole_silo=19.9999999, delta_whole_silo=1e-3), False)
    printed = " ".join(capsys.readouterr().out.split())
    assert "Whole silo, all of its records replaced: epsilon target 20, accounted 20, delta 0.001." in printed
