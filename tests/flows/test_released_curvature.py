"""Released curvature, from config to result: one release, totals, and steps that depend on it.

tests/flows/test_released.py has the kills, locks and bindings of all released statistics.
"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy.stats import norm
from typer.testing import CliRunner

from fedcore.data.silo_file import open_records
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment, make_plan
from fedcore.experiment.identity import run_id
from fedcore.experiment.loading import load_experiment
from fedcore.experiment.statistics import make_statistics_plan, statistics_id
from fedcore.experiment.statistics_run import StatisticsRun
from fedcore.home import Home
from fedcore.ledger.account import account
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.messages import Releases
from flows.commands.app import app
from flows.driver.session import Session
from flows.runs import read_run
from flows.sweep_budget import sweep_totals
from tests.flows.driving import run
from tests.gaussian_curve import epsilon_by_hand
from tests.selection import some_in_make_test

KINDS = {"memory": {}, "sqlite": {"ledger": "sqlite"}, "guarded": {"ledger": "sqlite", "noise": "guarded"}}
N = (60, 90)


@pytest.fixture
def files(tmp_path):
    """Files of two silos with columns far off centre, so that one direction has nearly all of the second moments."""
    rng = np.random.default_rng(0)
    for name, n in zip(("north", "south"), N, strict=True):
        a, b = rng.normal(70, 6, n), rng.normal(3, 0.3, n)
        lines = [f"{x},{y},{int(x > 70)},p{k // 2}" for k, (x, y) in enumerate(zip(a, b, strict=True))]
        (tmp_path / f"{name}.csv").write_text("a,b,ill,who\n" + "\n".join(lines) + "\n")
    return tmp_path


RELEASED = {"constants": "released", "epsilon": 0.5}
BARE = {"trust": "none", "epsilon": None}


def config(folder, smoothness=RELEASED, privacy=None, algorithm=None, **sections) -> ExperimentConfig:
    return ExperimentConfig.model_validate(
        {
            "name": "curvature",
            "data": {
                "source": "files",
                "label": "ill",
                "silos": [{"name": name, "path": str(folder / f"{name}.csv")} for name in ("north", "south")],
                "features": {"a": {"range": [20, 90]}, "b": {"range": [0, 5]}},
            },
            "privacy": {"epsilon": 2, **(privacy or {})},
            "algorithm": {
                "name": "localized-accelerated",
                "rounds": 4,
                "lam": 0.01,
                "max_phases": 2,
                "smoothness": smoothness,
                **(algorithm or {}),
            },
            "cluster": {"backend": "in-process"},
            "tracking": {"mlflow": False},
            **sections,
        }
    )


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "home").make()


def prepared(folder):
    """Records of each silo by hand (n, 3): columns mapped to -1 to 1, a 1 for the bias, over the longest norm."""
    made = []
    for name in ("north", "south"):
        rows = np.genfromtxt(folder / f"{name}.csv", delimiter=",", skip_header=1)[:, :2]
        unit = np.clip(np.column_stack([2 * (rows[:, 0] - 20) / 70 - 1, 2 * rows[:, 1] / 5 - 1]), -1, 1)
        made.append(np.column_stack([unit, np.ones(len(unit))]) / math.sqrt(3))
    return made


def largest(X):
    return float(np.linalg.svd(X, compute_uv=False)[0] ** 2 / len(X))


@pytest.mark.parametrize("kind", some_in_make_test(KINDS, ["guarded"]))
def test_what_is_said_of_a_run_is_both_composed(home, files, kind, request):
    if kind == "guarded":
        request.getfixturevalue("policies")
    made = config(files, privacy=KINDS[kind])
    result = run(home, made)
    plan, before = make_plan(made), make_statistics_plan(made)
    assert before.problem.objective.dim == 1
    for silo in result.silos:
        n, delta = silo.n, 1 / silo.n**2
        # By hand: a replaced record of norm 1 moves the eigenvalue by 1 / n; four rounds of norm 1 on half of them.
        share = plan.phases[0].by_silo[silo.silo]
        mu_1 = 1 / n / before.phases[0].by_silo[silo.silo].sigma
        mu_2 = math.sqrt(4) * 2 / share.n / share.sigma
        assert silo.epsilon == pytest.approx(epsilon_by_hand(math.hypot(mu_1, mu_2), delta), rel=1e-4)
        assert silo.epsilon_statistics == pytest.approx(0.5, rel=1e-9)
        assert silo.epsilon_training == pytest.approx(2, rel=1e-6)
    assert result.statistics == statistics_id(made)
    assert "its steps follow from eigenvalues of second moments that the silos released with noise" in result.noise
    statement = json.loads((home.runs / run_id(made) / "model.json").read_text())
    assert (statement["privacy.epsilon_statistics"], statement["privacy.epsilon_training"]) == ("0.5", "2")
    assert "for its curvature (epsilon 0.5)" in statement["privacy.statement"]
    shown = json.loads((home.runs / run_id(made) / "plan.json").read_text())
    assert shown["totals"]["epsilon_accounted"] == pytest.approx(result.epsilon_accounted, rel=1e-9)
    assert 0 < shown["problem"]["smoothness"] <= 0.25
    for version, silo in () if kind == "memory" else home.ledger_folders.found("north"):
        ledger = SqliteLedger(silo, *home.ledger_folders.of(version, silo))
        found = account(ledger)
        ledger.close()
        assert {each["run"]: each["state"] for each in found["runs"]} == {
            statistics_id(made): "closed",
            run_id(made): "closed",
        }


@pytest.mark.parametrize("weights", ["equal", "records", [0.25, 0.75]])
def test_without_noise_beta_is_a_quarter_of_the_weighted_mean_of_the_files_eigenvalues(home, files, weights):
    made = config(files, {"constants": "released"}, BARE, participation={"weights": weights})
    session = Session(home)
    experiment = session.experiment(made)
    session.close()
    parts = {"equal": (0.5, 0.5), "records": (0.4, 0.6)}.get(str(weights), (0.25, 0.75))
    mine = [largest(X) for X in prepared(files)]
    assert experiment.smoothness == pytest.approx(0.25 * np.dot(parts, mine), rel=1e-12)
    assert experiment.plan.problem.objective.smoothness == experiment.method.smoothness == experiment.smoothness
    pooled = sum(p * X.T @ X / len(X) for p, X in zip(parts, prepared(files), strict=True))
    assert experiment.smoothness >= 0.25 * np.linalg.eigvalsh(pooled)[-1]
    # The records are the same as in training, bit by bit.
    released, trained = StatisticsRun.prepare(made, home.silos).dataset, experiment.dataset
    for one, other in zip(released.sources, trained.sources, strict=True):
        assert open_records(one).X.tobytes() == open_records(other).X.tobytes()


def test_persons_of_two_rows_each_have_the_eigenvalue_of_their_means(home, files):
    made = config(files, {"constants": "released"}, BARE)
    data = {**made.model_dump(mode="json")["data"], "person": "who", "person_rows": 3}
    session = Session(home)
    experiment = session.experiment(config(files, {"constants": "released"}, BARE, data=data))
    session.close()
    assert [silo.n for silo in experiment.plan.problem.silos] == [30, 45]
    assert experiment.smoothness == pytest.approx(0.25 * np.mean([largest(X) for X in prepared(files)]), rel=1e-12)


def test_held_out_records_are_evaluated_beside_a_known_curvature(home, files):
    plain, known = (run(home, config(files, b, evaluation={"every": "phase"})) for b in ("worst-case", 0.25))
    assert len(known.held_out) == 2 and known.rounds == plain.rounds


def test_with_noise_beta_is_the_released_mean_and_its_quantile(home, files, monkeypatch):
    made, seen = config(files), []
    keep = StatisticsRun.constants
    monkeypatch.setattr(StatisticsRun, "constants", lambda self, root, m: (seen.append(m), keep(self, root, m))[1])
    session = Session(home)
    experiment = session.experiment(made)
    session.close()
    sigmas = [share.sigma for share in make_statistics_plan(made).phases[0].shares]
    by_hand = seen[0].mean() + norm.ppf(0.99) * math.hypot(*sigmas) / 2
    assert experiment.smoothness == pytest.approx(0.25 * min(by_hand, 1.0), rel=1e-9)
    noise = (seen[0] - [largest(X) for X in prepared(files)]) / sigmas
    assert np.all(noise != 0) and np.abs(noise).max() < 5


def test_sigma_and_price_are_those_that_were_planned_before_the_release(home, files):
    made = config(files)
    session = Session(home)
    experiment = session.experiment(made)
    session.close()
    planned = make_plan(made)
    assert [phase.shares for phase in experiment.plan.phases] == [phase.shares for phase in planned.phases]
    assert experiment.plan.epsilon_accounted == planned.epsilon_accounted
    assert experiment.plan.digest != planned.digest and planned.problem.objective.smoothness == 0.25


def test_runs_that_differ_in_training_or_weights_share_one_release(home, files):
    first = config(files)
    others = [config(files, algorithm={"lam": 0.1}), config(files, participation={"weights": "records"})]
    assert {statistics_id(each) for each in others} == {statistics_id(first)}
    session, betas = Session(home), []
    for each in (first, *others):
        run(home, each, session)
        betas.append(session.experiment(each).smoothness)
    session.close()
    assert betas[0] == betas[1] != betas[2]
    assert len(list(home.statistics.iterdir())) == 1
    totals = sweep_totals(home, [first, *others], [])
    assert [(total.cells, total.statistics) for total in totals] == [(3, 1), (3, 1)]


def test_a_scale_acts_after_the_release(home, files):
    """beta by hand from one release: the bound times the scale, at most the worst case, 1/4 of 1."""
    configs = [config(files, {**RELEASED, "scale": scale}) for scale in (1.0, 0.5, 1e6)]
    session = Session(home)
    betas = [session.experiment(each).smoothness for each in configs]
    session.close()
    assert betas[1] == pytest.approx(betas[0] / 2, rel=1e-15) and betas[2] == 0.25
    assert len({statistics_id(each) for each in configs}) == 1 and len({run_id(each) for each in configs}) == 3
    assert len(list(home.statistics.iterdir())) == 1
    for scale in (0, -1, "much", True):
        with pytest.raises(ValueError, match="scale"):
            config(files, {**RELEASED, "scale": scale})


@pytest.mark.parametrize(
    "change",
    [
        {"smoothness": {"constants": "released", "epsilon": 0.6}},
        {"model": {"bias": False}},
        {"model": {"feature_bound": 2}},
        {"privacy": {"delta": 1e-6}},
        {"seed": 1},
    ],
)
def test_what_the_released_bytes_depend_on_makes_another_release(files, change):
    assert statistics_id(config(files, **change)) != statistics_id(config(files))


def test_a_run_without_the_key_is_that_of_its_default(files):
    plain, named = config(files, "worst-case"), config(files)
    less = config(files)
    bare = {k: v for k, v in less.model_dump(mode="json")["algorithm"].items() if k != "smoothness"}
    again = ExperimentConfig.model_validate({**plain.model_dump(mode="json"), "algorithm": bare})
    assert run_id(again) == run_id(plain) != run_id(named)
    numbers = {run_id(config(files, each)) for each in (0.1, 0.2, RELEASED, {"constants": "released", "epsilon": 0.1})}
    assert len(numbers) == 4


def test_a_driver_that_was_stopped_within_a_known_curvature_goes_on_to_the_same_bits(tmp_path, files):
    made, ends = config(files, 0.2), []
    for at in (None, 1, 3, 5):
        home = Home(tmp_path / f"home-{at}").make()
        session, count = Session(home), 0

        def rounds(training, at=at):
            nonlocal count
            while training.phase is not None:
                if count == at:
                    count += 1
                    raise KeyboardInterrupt
                training.advance()
                count += 1

        from flows.training import train

        if at is not None:
            with pytest.raises(KeyboardInterrupt):
                train(made, session, rounds)
        ends.append(train(made, session, rounds).weights_sha256)
        session.close()
    assert len(set(ends)) == 1


def test_a_run_whose_number_is_too_small_fails_with_the_sentence(home, files):
    made = config(files, 1e-4, BARE, {"rounds": 40, "lam": 1e-5, "max_phases": 1}, model={"diameter": 1000})
    with pytest.raises(InputError, match=r"algorithm.smoothness = 0.0001 is less than the curvature 0.\d+ of the loss"):
        run(home, made)
    record = read_run(home, run_id(made))
    assert record.state == "FAILED" and "give at least" in record.message
    with pytest.raises(InputError, match="give at least"):  # again, from where it is
        run(home, made)


def test_nothing_is_trained_before_the_release(files, home):
    with pytest.raises(InputError, match="have not released their eigenvalues yet"):
        Experiment.prepare(config(files), home.silos)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["algorithm.smoothness=released"], "algorithm.smoothness.epsilon is missing"),
        (["algorithm.smoothness=0"], "algorithm.smoothness = 0: choose worst-case, released, or a public number"),
        (["algorithm.smoothness=best"], "algorithm.smoothness = 'best': choose worst-case"),
        (["algorithm.smoothness={epsilon: -1}"], "algorithm.smoothness.epsilon = -1: it should be greater than 0"),
        (["algorithm.smoothness={epsilom: 1}"], "smoothness.epsilom is not a known key; did you mean epsilon"),
        (["algorithm.name=mbsgd", "algorithm.smoothness=1"], "algorithm.smoothness is not a known key"),
        (["algorithm.rounds=null", "algorithm.smoothness={epsilon: 1}"], "give algorithm.rounds"),
        (["algorithm.smoothness={epsilon: 1}", "privacy.trust=none", "privacy.epsilon=null"], "has no meaning"),
        (
            ["algorithm.smoothness={epsilon: 1}", "data.pca={constants: released, epsilon: 1}"],
            "one release before training is supported",
        ),
        (
            [
                "algorithm.smoothness={epsilon: 1}",
                "model.loss.name=hinge",
                "model.smoothing={name: convolution, estimate: sampled}",
            ],
            "take estimate = exact",
        ),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, overrides, sentence):
    path = tmp_path / "c.yaml"
    path.write_text("privacy: {epsilon: 1}\nalgorithm: {name: localized-accelerated, rounds: 3, lam: 0.1}\n")
    with pytest.raises(InputError) as error:
        load_experiment(path, overrides)
    assert sentence in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("epsilon", [1e-13, 1e9])
def test_a_target_that_no_release_has_is_refused_by_its_own_key(files, epsilon):
    made = config(files, {"constants": "released", "epsilon": epsilon})
    with pytest.raises(InputError, match=r"^algorithm\.smoothness\.epsilon = .* must lie between 1e-12 and 10000$"):
        make_statistics_plan(made)


def test_on_dask_the_release_and_the_run_have_the_bits_of_one_process(tmp_path, files):
    ends = []
    for backend in ("in-process", "dask"):
        home = Home(tmp_path / backend).make()
        ends.append(run(home, config(files, cluster={"backend": backend, "workers": 2})))
    assert ends[0].weights_sha256 == ends[1].weights_sha256 and ends[0].statistics == ends[1].statistics


def test_each_silo_sends_one_number_before_training(home, files, monkeypatch):
    sent, to_bytes = [], Releases.to_bytes

    def noting(releases):
        sent.extend((silo, len(payload)) for silo, payload in zip(releases.silos, releases.payloads, strict=True))
        return to_bytes(releases)

    monkeypatch.setattr(Releases, "to_bytes", noting)
    session = Session(home)
    session.experiment(config(files))
    session.close()
    assert sorted(set(sent)) == [("north", 1), ("south", 1)]


def printed(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


@pytest.fixture
def written(files, tmp_path, monkeypatch):
    """Writes the config as a file, in a home of the command line's."""
    monkeypatch.setenv("FEDCORE_HOME", str(tmp_path / "home"))
    path = tmp_path / "curvature.yaml"
    path.write_text(json.dumps(config(files, privacy=KINDS["sqlite"]).model_dump(mode="json")))
    return str(path)


def test_plan_takes_the_worst_case_until_the_release_and_shows_it(written):
    output = printed("plan", written)
    assert "eigenvalues: before training each silo releases 1 number, once for all runs that share them" in output
    assert "Until then this plan takes the worst case, smoothness 0.25" in output
    values = json.loads(printed("plan", written, "--json"))
    assert values["totals"]["epsilon_statistics"] == pytest.approx(0.5, rel=1e-6)
    sigmas = [share["sigma"] for share in values["statistics"]["phases"][0]["shares"]]
    assert values["statistics"]["eigenvalue_noise"] == pytest.approx(np.hypot(*np.multiply(N, sigmas)) / sum(N))
    assert "eigenvalues" not in printed("plan", written, "algorithm.smoothness=0.1")


def test_budget_show_lists_the_release_beside_the_run(written, home, files):
    made = config(files, privacy=KINDS["sqlite"])
    run(home, made)
    (found,) = [silo for silo in json.loads(printed("budget", "show", "--json")) if silo["silo"] == "north"]
    assert {each["run"]: each["releases"] for each in found["runs"]} == {statistics_id(made): 1, run_id(made): 8}


def test_tune_does_not_simulate_the_release(written):
    with pytest.raises(InputError, match="simulated silos do not release their curvature"):
        CliRunner().invoke(app, ["tune", written], catch_exceptions=False)


@pytest.mark.minutes
def test_the_audit_of_a_config_is_about_the_release_too(written):
    values = json.loads(printed("audit", written, "privacy.ledger=memory", "--json"))
    assert values["statistics"]["method"] == "largest-eigenvalue" and values["statistics"]["passed"]
