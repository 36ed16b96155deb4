"""Runs without a test file whose silos hold records out: measures of the model, kills, policies, MLflow."""

import math
import re

import numpy as np
import pytest
from mlflow import MlflowClient

from fedcore.errors import InputError, SiloError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import make_plan
from fedcore.experiment.identity import run_id
from fedcore.home import Home
from fedcore.ledger.account import account
from fedcore.ledger.memory import MemoryLedger
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.planning.evaluation import held_out
from flows.commands.show import show_run
from tasks.run_store import RunStore
from tests.flows.driving import run
from tests.gaussian_curve import epsilon_by_hand
from tests.policies import write_policy

KINDS = {"memory": {}, "sqlite": {"ledger": "sqlite"}, "guarded": {"ledger": "sqlite", "noise": "guarded"}}
SIZES = {"ash": 400, "birch": 250}


def table(name, n):
    """A silo's records: two columns, and a label that depends on them with some noise."""
    rng = np.random.default_rng([n, 4])
    X = rng.uniform(-1, 1, (n, 2)) * [40.0, 3.0] + [60.0, 5.0]
    z = (X[:, 0] - 60.0) / 20.0 - (X[:, 1] - 5.0) / 2.0 + 0.5 * rng.standard_normal(n)
    return X, (z > 0).astype(int)


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "home").make()


@pytest.fixture
def files(tmp_path):
    for name, n in SIZES.items():
        X, y = table(name, n)
        rows = [f"{a!r},{b!r},{label}" for (a, b), label in zip(X.tolist(), y.tolist(), strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,dose,outcome", *rows]) + "\n")
    return tmp_path


def config(files, privacy=None, evaluation=None, algorithm=None, **sections):
    return ExperimentConfig.model_validate(
        {
            "name": "evaluated",
            "data": {
                "source": "files",
                "label": "outcome",
                "silos": [{"name": name, "path": str(files / f"{name}.csv")} for name in SIZES],
                "features": {"age": {"range": [20, 100]}, "dose": {"range": [2, 8]}},
            },
            "privacy": {"epsilon": 4, **(privacy or {})},
            "algorithm": {
                "name": "localized-mbsgd",
                "rounds": [4, 3],
                "max_phases": 2,
                "lam": 0.01,
                **(algorithm or {}),
            },
            "evaluation": {"every": "phase", **(evaluation or {})},
            "cluster": {"backend": "in-process"},
            "tracking": {"mlflow": False},
            **sections,
        }
    )


@pytest.fixture
def answers(monkeypatch):
    """Number of answers that each silo committed, by address."""
    seen = []
    for kind in (MemoryLedger, SqliteLedger):
        commit = kind.commit

        def counted(self, of, row, lease=0, commit=commit):
            commit(self, of, row, lease)
            seen.append((getattr(self, "silo", None) or self._silo, row.phase, row.round))

        monkeypatch.setattr(kind, "commit", counted)
    return seen


@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_those_of_the_held_out_records_and_cost_nothing_beside_training(home, files, kind, request):
    if kind == "guarded":
        request.getfixturevalue("policies")
    made = config(files, KINDS[kind])
    result = run(home, made)
    plan = make_plan(made)
    assert [found.phase for found in result.held_out] == [2, 4] and result.test_error is None
    last = result.held_out[-1]
    assert last.records == 80 + 50 and set(last.silos) == set(SIZES)
    weights = np.array(made_weights(home, result.run))
    wrong = []
    for name, n in SIZES.items():
        X, y = table(name, n)
        at = held_out(name, n, n // 5)
        scaled = np.column_stack([(X[at, 0] - 60.0) / 40.0, (X[at, 1] - 5.0) / 3.0, np.ones(len(at))])
        wrong.append((scaled @ weights >= 0) != (y[at] == 1))
    truth = float(np.concatenate(wrong).mean())
    # By hand: an error sums 4 of 8 cells, and all noise is adjusted to sum to 0: 2 of their variances are left. Noise
    # differs in every folder, so six deviations are allowed, about 0.17 here.
    held = {name: n // 5 for name, n in SIZES.items()}
    on_a_cell = math.hypot(*(held[name] * plan.phases[3].by_silo[name].sigma for name in SIZES))
    deviation = math.sqrt(2.0) * on_a_cell / sum(held.values())
    assert abs(last.error.value - truth) < 6 * deviation < 0.25
    assert last.error.high - last.error.low > 2 * deviation and result.error == last.error.value < result.baseline
    for silo in result.silos:
        events = plan.silo_events(silo.silo)
        shards = {}
        for event in events:
            shards.setdefault((event.start, event.stop), []).append(event)
        mus = [
            math.sqrt(sum(event.count * (event.sensitivity / event.sigma) ** 2 for event in mine))
            for mine in shards.values()
        ]
        assert silo.epsilon == pytest.approx(epsilon_by_hand(max(mus), silo.delta), rel=1e-5)
        assert silo.epsilon == pytest.approx(4.0, rel=1e-4) and silo.releases == 4 + 1 + 3 + 1
    if kind == "memory":
        return
    for version, name in home.ledger_folders.found(None):
        ledger = SqliteLedger(name, *home.ledger_folders.of(version, name))
        (run_account,) = account(ledger)["runs"]
        ledger.close()
        n = SIZES[name]
        assert [phase["records"] for phase in run_account["phases"]][1::2] == [[n - n // 5 + 1, n]] * 2
        assert run_account["epsilon_spent"] == pytest.approx(4.0, rel=1e-4)


def made_weights(home, name):
    store = RunStore(home.runs / name / "checkpoint.sqlite")
    try:
        return store.models()[4]
    finally:
        store.close()


class Killed(BaseException):
    """Simulated kill: a BaseException, which only code for kills catches."""


def after_one_silo(monkeypatch):
    commit = SqliteLedger.commit

    def committed(self, of, row, lease=0):
        commit(self, of, row, lease)
        if self.silo == "ash" and row.phase == 2:
            raise Killed

    monkeypatch.setattr(SqliteLedger, "commit", committed)


def before_it_is_written_down(monkeypatch):
    save = RunStore.save

    def saved(self, state, query, *args, **kwargs):
        if query is not None and query.phase == 3:
            raise Killed
        return save(self, state, query, *args, **kwargs)

    monkeypatch.setattr(RunStore, "save", saved)


@pytest.mark.parametrize("kind", ["memory", "sqlite", "guarded"])
@pytest.mark.parametrize("step", [after_one_silo, before_it_is_written_down])
def test_a_run_killed_in_an_evaluation_goes_on_to_the_same_bits(tmp_path, home, files, answers, kind, step, request):
    if kind == "guarded":
        request.getfixturevalue("policies")
    if (kind, step) == ("memory", after_one_silo):
        pytest.skip("ledgers in memory end with their process")
    made = config(files, KINDS[kind])
    undisturbed = run(Home(tmp_path / "other").make(), made)
    once = sorted(answers)
    answers.clear()
    with pytest.MonkeyPatch.context() as patch:
        step(patch)
        with pytest.raises(Killed):
            run(home, made)
    resumed = run(home, made)
    if kind == "memory":
        assert set(answers) == set(once)
    else:
        assert sorted(answers) == once
    if kind != "guarded":  # guarded silos have keys, and so noise, of their own
        assert resumed.weights_sha256 == undisturbed.weights_sha256 and resumed.held_out == undisturbed.held_out
    assert resumed.epsilon_spent == pytest.approx(undisturbed.epsilon_spent)


def test_a_guarded_silo_whose_policy_does_not_name_evaluations_refuses_them(home, files, policies):
    write_policy(policies, methods=["localized-mbsgd"])
    with pytest.raises(SiloError, match=r"its policy allows methods = \[localized-mbsgd\]; run .* asks for evaluation"):
        run(home, config(files, KINDS["guarded"]))


def test_mlflow_and_the_terminal_show_the_measures_with_their_intervals(home, files, capsys):
    made = config(files, tracking={"mlflow": True})
    result = run(home, made)
    client = MlflowClient(tracking_uri=home.mlflow_uri)
    (experiment,) = client.search_experiments(filter_string=f"name = '{made.name}'")
    found = client.search_runs([experiment.experiment_id], f"tags.`fedcore.run_id` = '{result.run}'")
    phases = {each.data.tags["fedcore.phase"]: each for each in found if "fedcore.phase" in each.data.tags}
    assert set(phases) == {"1", "2", "3", "4"} and {each.info.status for each in phases.values()} == {"FINISHED"}
    metrics = phases["4"].data.metrics
    last = result.held_out[-1]
    assert metrics["evaluation/error"] == pytest.approx(last.error.value)
    assert metrics["evaluation/auc_low"] == pytest.approx(last.auc.low)
    assert metrics["evaluation/silos/birch/error_high"] == pytest.approx(last.silos["birch"].high)
    assert phases["4"].data.params["asks"] == "histogram" and "asks" not in phases["3"].data.params
    assert [phases[k].info.run_name for k in "34"] == ["phase 3", "phase 4, histogram"]
    (parent,) = [each for each in found if "fedcore.phase" not in each.data.tags]
    assert parent.data.metrics["evaluation/error"] == pytest.approx(last.error.value)
    show_run(result, False)
    output = " ".join(capsys.readouterr().out.split())
    assert "held-out error" in output and "held-out records of the silos (130), released with noise" in output
    assert re.search(r"area under the ROC curve [01]\.\d{3} 0\.\d{3} to [01]\.\d{3}", output)
    assert "Errors of earlier evaluations, by phase of the plan: 0." in output and "No test data" not in output


def test_a_real_label_is_refused_before_any_question(home, files, answers):
    data = config(files).data.model_dump() | {"classes": None}
    made = config(files, data=data, model={"loss": {"name": "huber"}})
    with pytest.raises(InputError, match="counts classes, and loss 'huber' takes real numbers"):
        run(home, made)
    assert not answers and not (home.runs / run_id(made) / "result.json").exists()
