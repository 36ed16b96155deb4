"""Principal components of released moments, from config to result: one release, totals, kills, no swap."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.decomposition import PCA

from fedcore.accounting.gaussian import mu_of
from fedcore.data.constants.pca import Projection
from fedcore.data.silo_file import open_records
from fedcore.errors import BusyError, InputError, SiloError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment, make_plan
from fedcore.experiment.identity import run_id
from fedcore.experiment.statistics import make_statistics_plan, statistics_id
from fedcore.experiment.statistics_run import StatisticsRun
from fedcore.home import Home
from fedcore.ledger.account import account
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.planning.sensitivity.moments import unpacked
from flows import training as driving
from flows.driver import session as sessions
from flows.driver.session import Session
from flows.reports.silo_totals import totals_sentence
from flows.run_lock import drive_lock
from flows.runs import read_run, statistics_path
from flows.sweep_budget import sweep_totals
from tasks import statistics as releasing
from tasks.run_file import read_receipts
from tasks.run_store import RunStore
from tests.commits import noted
from tests.flows.driving import run
from tests.gaussian_curve import epsilon_by_hand
from tests.patience import HANGS
from tests.selection import some_in_make_test

KINDS = {"memory": {}, "sqlite": {"ledger": "sqlite"}, "guarded": {"ledger": "sqlite", "noise": "guarded"}}


def config(pca=None, privacy=None, **sections) -> ExperimentConfig:
    return ExperimentConfig.model_validate(
        {
            "name": "released",
            "data": {"pca": {"dimension": 5, "constants": "released", "epsilon": 3, **(pca or {})}},
            "privacy": {"epsilon": 2, **(privacy or {})},
            "algorithm": {"name": "mbsgd", "rounds": 3, "step": 1},
            "cluster": {"backend": "in-process"},
            "tracking": {"mlflow": False},
            **sections,
        }
    )


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "home").make()


@pytest.fixture
def answers(monkeypatch):
    """The answers that silos commit, as they commit them."""
    return noted(monkeypatch)


@pytest.mark.parametrize("kind", some_in_make_test(KINDS, ["guarded"]))
def test_what_is_said_of_a_run_is_both_composed(home, kind, request):
    if kind == "guarded":
        request.getfixturevalue("policies")
    made = config(privacy=KINDS[kind])
    result = run(home, made)
    plan, before = make_plan(made), make_statistics_plan(made)
    for silo in result.silos:
        n, delta = silo.n, 1 / silo.n**2
        statistics = before.phases[0].by_silo[silo.silo].sigma
        training = plan.phases[0].by_silo[silo.silo].sigma
        # By hand: B is half of the root of 64 pixels. A replaced record moves the moments by 3 B^2 / sqrt(2), and a
        # gradient of norm 1 by 2. Three rounds; slacks of the grid are below this precision.
        mu_1 = 3 * 4.0**2 / math.sqrt(2) / n / statistics
        mu_2 = math.sqrt(3) * 2 / n / training
        assert silo.epsilon == pytest.approx(epsilon_by_hand(math.hypot(mu_1, mu_2), delta), rel=1e-5)
        assert silo.epsilon_statistics == pytest.approx(epsilon_by_hand(mu_1, delta), rel=1e-5)
        assert silo.epsilon_statistics == pytest.approx(3, rel=1e-9)
        assert silo.epsilon_training == pytest.approx(2, rel=1e-9)
    assert result.epsilon_spent == max(silo.epsilon for silo in result.silos) > 3.5
    assert result.epsilon_accounted == pytest.approx(result.epsilon_spent, rel=1e-9)
    assert (result.epsilon_target, result.statistics) == (2, statistics_id(made))
    assert "moments that the silos released with noise" in result.noise
    folder = home.runs / run_id(made)
    statement = json.loads((folder / "model.json").read_text())
    assert float(statement["privacy.epsilon_accounted"]) == pytest.approx(result.epsilon_accounted, rel=1e-5)
    assert (statement["privacy.epsilon_statistics"], statement["privacy.epsilon_training"]) == ("3", "2")
    (composed,) = re.findall(r"is \(([\d.]+), ", statement["privacy.statement"])  # rounded up, never down
    assert result.epsilon_accounted <= float(composed) < 1.001 * result.epsilon_accounted
    assert "(epsilon 3)" in statement["privacy.statement"]
    totals = json.loads((folder / "plan.json").read_text())["totals"]
    assert totals["epsilon_accounted"] == pytest.approx(result.epsilon_accounted, rel=1e-9)
    if kind == "memory":
        return
    for version, silo in home.ledger_folders.found("o1e0"):
        ledger = SqliteLedger(silo, *home.ledger_folders.of(version, silo))
        shown = account(ledger)
        ledger.close()
        assert {each["run"]: each["state"] for each in shown["runs"]} == {
            statistics_id(made): "closed",
            run_id(made): "closed",
        }
        mine = next(each for each in result.silos if each.silo == "o1e0")
        assert shown["epsilon_spent"] == pytest.approx(mine.epsilon, rel=1e-9)


def pooled(home: Home, made: ExperimentConfig) -> np.ndarray:
    """Pixels of all silos (records, 64), each image scaled to the bound, by an independent computation."""
    run = StatisticsRun.prepare(made, home.silos)
    raw = np.vstack([open_records(replace(s, feature_bound=1e300)).X for s in run.dataset.sources])
    norms = np.linalg.norm(raw, axis=1)
    bound = made.data.pca.bound or 4.0
    assert (norms > bound).any()
    return raw * np.minimum(1, bound / norms)[:, None]


def released_moments(home: Home, made: ExperimentConfig) -> tuple[np.ndarray, np.ndarray]:
    run = StatisticsRun.prepare(made, home.silos)
    store = RunStore(statistics_path(home, run.run))
    state, _ = store.load(run.method.state)
    store.close()
    return unpacked(run.method.output(state), run.method.features, run.method.bound)


def test_without_noise_moments_are_those_of_pooled_clipped_records(home):
    made = config(pca={"epsilon": None, "bound": 3.5}, privacy={"trust": "none", "epsilon": None})
    result = run(home, made)
    assert result.epsilon_accounted is None and result.epsilon_statistics is None
    X = pooled(home, made)
    mean, second = released_moments(home, made)
    np.testing.assert_allclose(mean, X.mean(axis=0), atol=1e-13)
    np.testing.assert_allclose(second - np.outer(mean, mean), np.cov(X.T, bias=True), atol=1e-12)


def test_with_a_large_epsilon_components_are_those_of_the_pooled_records(home):
    """Silos of 55 images need such an epsilon: `fedcore plan` warns beforehand."""
    made = config(pca={"epsilon": 10_000})
    session = Session(home)
    experiment = session.experiment(made)
    session.close()
    X = pooled(home, made)
    judge, projection = PCA(5).fit(X), experiment.dataset.projection
    cosines = np.linalg.svd(projection.components @ judge.components_.T, compute_uv=False)
    assert np.degrees(np.arccos(np.clip(cosines, -1, 1))).max() < 2
    assert projection.divide_by == pytest.approx(math.sqrt(judge.explained_variance_.sum()), rel=0.01)


class Killed(BaseException):
    """Simulated kill: a BaseException, which only code for kills catches."""


def before(name, module):
    def plant(monkeypatch):
        def killed(*args, **kwargs):
            raise Killed

        monkeypatch.setattr(module, name, killed)

    return plant


def after_the_answers(monkeypatch):
    """Kills the driver after all silos have committed and sent, before it records the answers."""
    save = RunStore.save

    def saved(self, state, query, *args, **kwargs):
        if query is None:
            raise Killed
        return save(self, state, query, *args, **kwargs)

    monkeypatch.setattr(RunStore, "save", saved)


def after_one_silo(monkeypatch):
    commit = SqliteLedger.commit

    def committed(self, of, row, lease=0):
        commit(self, of, row, lease)
        if self.silo == "o3e2":
            raise Killed

    monkeypatch.setattr(SqliteLedger, "commit", committed)


def after_the_ledgers_are_closed(monkeypatch):
    set_meta = RunStore.set_meta

    def stop_at_result(self, *first, **values):
        if "result" in values and "statistics" in str(self.path):
            raise Killed
        return set_meta(self, *first, **values)

    monkeypatch.setattr(RunStore, "set_meta", stop_at_result)


STEPS = {
    "before the comparison": before("compare", releasing),
    "before the constants": before("released_constants", sessions),
    "before training": before("_train_calls", driving),
    "after the answers": after_the_answers,
    "after the ledgers are closed": after_the_ledgers_are_closed,
}


@pytest.mark.parametrize(
    ("kind", "step"),
    some_in_make_test(
        [*itertools.product(("memory", "sqlite"), STEPS), ("sqlite", "after one silo")],
        [("sqlite", "after one silo"), ("sqlite", "after the ledgers are closed")],
    ),
)
def test_a_run_killed_around_the_release_goes_on_to_the_same_bits_and_asks_nothing_again(
    tmp_path, home, answers, kind, step
):
    made = config(privacy=KINDS[kind])
    undisturbed = run(Home(tmp_path / "other").make(), made)
    once = sorted(answers)
    answers.clear()
    with pytest.MonkeyPatch.context() as patch:
        (STEPS | {"after one silo": after_one_silo})[step](patch)
        with pytest.raises(Killed):
            run(home, made)
    record = read_run(home, run_id(made))
    assert record is not None and record.result is None
    resumed = run(home, made)
    for key in ("weights_sha256", "epsilon_accounted", "silos"):
        assert getattr(resumed, key) == getattr(undisturbed, key)
    if kind == "memory" and step == "after the answers":
        # Ledgers in memory died with their process: the same question is computed again, to the same bytes.
        assert set(answers) == set(once)
    else:
        assert sorted(answers) == once
    assert len(read_receipts(statistics_path(home, statistics_id(made)))) == 25


@pytest.mark.minutes
@pytest.mark.usefixtures("policies")
def test_guarded_silos_keep_their_secret_release_over_a_kill(home, answers):
    made = config(privacy=KINDS["guarded"])
    with pytest.MonkeyPatch.context() as patch:
        after_the_answers(patch)
        with pytest.raises(Killed):
            run(home, made)
    sent = {}
    for version, silo in home.ledger_folders.found(None):
        ledger = SqliteLedger(silo, *home.ledger_folders.of(version, silo))
        (row,) = ledger.rows(statistics_id(made))
        payload = ledger.find(statistics_id(made), row.phase, row.round).payload
        sent[silo] = (np.frombuffer(payload), make_statistics_plan(made).phases[0].by_silo[silo].n)
        ledger.close()
    run(home, made)
    mean, _ = released_moments(home, made)
    weighted = sum(n * vector for vector, n in sent.values()) / sum(n for _, n in sent.values())
    np.testing.assert_allclose(mean, weighted[:64] / 4.0, rtol=1e-12)
    assert len([each for each in answers if each.run.startswith("statistics-")]) == 25


def test_cells_that_differ_in_training_share_one_release_and_the_sweep_counts_it_once(home, answers):
    cells = [
        config(),
        config(pca={"dimension": 9}, name="elsewhere"),
        config(privacy={"epsilon": 1}, repetition=2),
        config(model={"loss": {"name": "hinge"}}, algorithm={"name": "mb-subgradient", "rounds": 2}),
    ]
    session = Session(home)
    results = [run(home, cell, session) for cell in cells]
    session.close()
    assert len({result.run for result in results}) == 4
    assert {result.statistics for result in results} == {statistics_id(cells[0])}
    assert len([each for each in answers if each.run.startswith("statistics-")]) == 25
    for total in sweep_totals(home, cells):
        assert (total.cells, total.without_noise, total.statistics) == (4, 0, 1)
        mus = [mu_of(epsilon, total.delta) for epsilon in (3, 2, 2, 1, 2)]
        by_hand = epsilon_by_hand(math.sqrt(sum(mu**2 for mu in mus)), total.delta)
        assert total.epsilon == pytest.approx(by_hand, rel=1e-6)
    sentence = totals_sentence(sweep_totals(home, cells))
    assert "the 4 noised cells and 1 release(s) of moments that they share" in sentence


@pytest.mark.parametrize(
    "other",
    [
        {"pca": {"epsilon": 4}},
        {"pca": {"bound": 3}},
        {"seed": 1},
        {"privacy": {"delta": 1e-4}},
        {"privacy": {"ledger": "sqlite"}},
    ],
)
def test_what_the_released_bytes_depend_on_makes_another_release(other):
    assert statistics_id(config(**other)) != statistics_id(config())


def test_a_release_that_was_begun_counts_before_any_cell_is_trained(home):
    made = config()
    with pytest.MonkeyPatch.context() as patch:
        after_the_answers(patch)
        with pytest.raises(Killed):
            run(home, made)
    for total in sweep_totals(home, [made]):
        # The cell was begun too, and counts in full, like any cell that has not ended.
        mu = math.hypot(mu_of(3, total.delta), mu_of(2, total.delta))
        assert total.epsilon == pytest.approx(epsilon_by_hand(mu, total.delta), rel=1e-6)


def test_a_cap_sees_the_release_and_training(home):
    made = config(privacy={"ledger": "sqlite", "cap": {"epsilon": 3.2}})
    with pytest.raises(SiloError, match=r"cap of epsilon 3\.2 .* \(runs so far: 1\); run released-\w+ asks for 2"):
        run(home, made)
    other = config(pca={"epsilon": 5}, privacy={"ledger": "sqlite", "cap": {"epsilon": 3.2}}, seed=1)
    with pytest.raises(SiloError, match=r"\(runs so far: 0\); run statistics-\w+ asks for 5"):
        run(home, other)
    assert read_run(home, run_id(other)).state == "FAILED"
    room = config(privacy={"ledger": "sqlite", "cap": {"epsilon": 4}})
    assert run(home, room).epsilon_accounted < 4


def swap_projection(home: Home, made: ExperimentConfig) -> None:
    """Writes other constants with their own digest: a valid file, but not that of the release."""
    (path,) = home.silos.rglob("projection.bin")
    right = Projection.from_bytes(path.read_bytes())
    other = Projection(right.mean, right.components[::-1].copy(), right.divide_by)
    path.write_bytes(other.to_bytes())
    recipe = json.loads((path.parent / "recipe.json").read_text())
    (path.parent / "recipe.json").write_text(json.dumps(recipe | {"sha256": other.digest}))


def damage_projection(home: Home, made: ExperimentConfig) -> None:
    (path,) = home.silos.rglob("projection.bin")
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def swap_moments(home: Home, made: ExperimentConfig) -> None:
    run = StatisticsRun.prepare(made, home.silos)
    store = RunStore(statistics_path(home, run.run))
    state, _ = store.load(run.method.state)
    state.moments[3] += 1e-9
    store.save(state, None)
    store.close()


@pytest.mark.parametrize(
    ("swap", "sentence"),
    [
        (swap_projection, "does not hold the constants that were computed from the released moments"),
        (damage_projection, r"projection\.bin is missing or damaged"),
        (swap_moments, "are not those that the silos released"),
    ],
)
def test_constants_cannot_be_swapped(home, swap, sentence):
    run(home, config())
    swap(home, config())
    with pytest.raises(InputError, match=sentence):
        run(home, config(repetition=1))


def test_a_silo_looks_at_its_constants_when_it_opens(home):
    made = config()
    session = Session(home)
    experiment = session.experiment(made)
    session.close()
    swap_projection(home, made)
    with pytest.raises(SiloError, match="constants"):
        open_records(experiment.dataset.sources[0])


def test_a_release_belongs_to_its_plan(home):
    run(home, config())
    store = RunStore(statistics_path(home, statistics_id(config())))
    store.set_meta(plan="0" * 64)
    store.close()
    with pytest.raises(InputError, match=r"asked for with plan 0000.* change data\.pca\.epsilon"):
        run(home, config(repetition=1))


def test_other_code_goes_on_with_a_release_that_was_begun(home, answers, monkeypatch):
    made = config(privacy={"ledger": "sqlite"})
    with pytest.MonkeyPatch.context() as patch:
        after_the_answers(patch)
        with pytest.raises(Killed):
            run(home, made)
    monkeypatch.setattr(releasing, "versions", lambda: {"arithmetic": "7"})
    assert run(home, made).epsilon_statistics == pytest.approx(3)
    assert len([each for each in answers if each.run.startswith("statistics-")]) == 25


def test_a_ledger_that_forgets_needs_the_same_code_until_its_release_is_finished(home, answers, monkeypatch):
    with pytest.MonkeyPatch.context() as patch:
        after_the_answers(patch)
        with pytest.raises(Killed):
            run(home, config())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(releasing, "versions", lambda: {"arithmetic": "7"})
        with pytest.raises(InputError, match="asked for with arithmetic"):
            run(home, config())
    run(home, config())
    answered = len([each for each in answers if each.run.startswith("statistics-")])
    # Any code can use a finished result: that is post-processing.
    monkeypatch.setattr(releasing, "versions", lambda: {"arithmetic": "7"})
    assert run(home, config(repetition=1)).epsilon_statistics == pytest.approx(3)
    assert len([each for each in answers if each.run.startswith("statistics-")]) == answered


def test_two_drivers_do_not_release_at_once(home):
    made = config()
    with drive_lock(home, statistics_id(made), "statistics"), pytest.raises(BusyError, match="statistics-"):
        run(home, made)


def test_noise_that_swallows_the_variance_is_reported_after_the_release(home):
    """Digits silos have 55 records; at this epsilon the pooled noise is thousands of times the variance."""
    made = config(pca={"epsilon": 0.001, "dimension": 64})
    with pytest.raises(InputError, match=r"data\.pca\.epsilon is too small"):
        run(home, made)
    record = read_run(home, run_id(made))
    assert record.state == "FAILED" and "epsilon is too small" in record.message
    assert sweep_totals(home, [made])[0].statistics == 1


def test_constants_are_not_there_before_they_are_released(home):
    with pytest.raises(InputError, match="have not released their statistics yet"):
        Experiment.prepare(config(), home.silos)


KILLS = """
import os, signal, sys
from flows.driver import session
from flows.commands.app import main
session.released_constants = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
sys.argv = ["fedcore", "run", sys.argv[1]]
main()
"""


@pytest.mark.slow
@pytest.mark.minutes
def test_the_command_line_killed_between_release_and_training(tmp_path):
    """Real processes, Prefect, MLflow and Dask: kill -9 after the release, resume, and an undisturbed run."""
    path = tmp_path / "released.yaml"
    values = config(privacy=KINDS["sqlite"]).model_dump(mode="json", exclude_unset=True)
    path.write_text(json.dumps({**values, "tracking": {"mlflow": True}, "cluster": {"backend": "dask", "workers": 2}}))
    log = tmp_path / "silos.log"

    def call(home: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "FEDCORE_HOME": str(tmp_path / home), "FEDCORE_SILO_LOG": str(log)}
        return subprocess.run(
            [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=HANGS
        )

    killed = call("one", "-c", KILLS, str(path))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    released = log.read_text().count(" end statistics-")
    assert released == 25 and " end released-" not in log.read_text()
    (listed,) = json.loads(call("one", "-m", "flows.commands.app", "runs", "--json").stdout)
    assert listed["state"] == "KILLED"
    resumed = json.loads(call("one", "-m", "flows.commands.app", "resume", listed["run"], "--json").stdout)
    assert log.read_text().count(" end statistics-") == released
    plain = json.loads(call("two", "-m", "flows.commands.app", "run", str(path), "--json").stdout)
    for key in ("run", "weights_sha256", "epsilon_accounted", "epsilon_statistics", "silos"):
        assert resumed[key] == plain[key]

    planned = json.loads(call("one", "-m", "flows.commands.app", "plan", str(path), "--json").stdout)
    assert planned["statistics"]["problem"]["dim"] == 64 + 64 * 65 // 2
    text = call("one", "-m", "flows.commands.app", "plan", str(path)).stdout
    assert "moments" in text and "2,144" in text and "squared norm 16" in " ".join(text.split())
    shown = json.loads(call("one", "-m", "flows.commands.app", "budget", "show", "o1e0", "--json").stdout)
    assert [each["run"].partition("-")[0] for each in shown[0]["runs"]] == ["statistics", "released"]

    tasks = sqlite3.connect(f"file:{tmp_path / 'one' / 'prefect' / 'prefect.db'}?mode=ro", uri=True)
    names = [name for (name,) in tasks.execute("SELECT name FROM task_run")]
    assert names.count("moments") == 1 and names.count("phase 1") == 1

    from mlflow import MlflowClient

    uri = f"sqlite:///{Path(tmp_path / 'one' / 'mlflow.db')}"
    client = MlflowClient(uri, uri)
    experiments = [e.experiment_id for e in client.search_experiments()]
    (found,) = client.search_runs(experiments, "tags.`fedcore.kind` = 'experiment'")
    assert found.data.tags["privacy.epsilon_statistics"] == "3"
    spent, at_most = resumed["epsilon_accounted"], found.data.metrics["epsilon_accounted"]
    assert spent <= at_most <= spent * 1.001 and len(repr(at_most)) <= 5  # MLflow's columns show all digits
    assert spent <= float(found.data.params["plan.epsilon_accounted"]) <= spent * (1 + 1e-5)
