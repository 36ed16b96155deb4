"""A sweep that chooses its step by patience: abandoned, chosen and untried values, also after kills and on Dask."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import yaml
from rich.console import Console

from fedcore.algorithms.mbsgd import Mbsgd
from fedcore.errors import AbandonedError, InputError
from fedcore.experiment.experiment import make_plan
from fedcore.experiment.identity import run_id
from fedcore.experiment.sweep import SweepConfig
from fedcore.home import Home
from flows.cells.prefect_rows import CellFlowRows
from flows.commands.show import show_sweep
from flows.driver.session import Session
from flows.ladders import ladder_states, tried_cells
from flows.launch import launch_run, launch_sweep
from flows.reports.ladders import ladder_table, without_a_survivor
from flows.runs import read_abandoned, read_result, read_run, store_path
from flows.services.database import make_template
from flows.sweep import _Cells, _count_in_step
from flows.sweep_budget import sweep_totals
from flows.sweep_files import finished_results, is_complete, progress, save_sweep, sweep_id, sweep_outcome
from studies.drawing import draw
from studies.study import FigureConfig
from tasks.calls import in_step
from tasks.run_file import read_done, read_rows
from tasks.run_store import RunStore
from tests.flows.driving import run
from tests.flows.test_sweep import fedcore
from tests.patience import HANGS
from tests.selection import some_in_make_test

PARENT = "11111111-2222-4333-8444-555555555555"
STEPS = [0.3, 300, 1, 3]
RULE = {"every": 4, "limit": 3}
CHOICE = "algorithm.step CHOSEN BY UNPROTECTED TRAINING LOSSES (simulation/): no epsilon covers the choice"


def sweep(patience: dict | None = RULE, steps: list | None = None, **base: object) -> SweepConfig:
    """Two ladders, by seed; 300 is abandoned, 3 survives."""
    values = {
        "data": {"source": "synthetic", "silos": 3, "records": 60, "features": 4, "test_records": 20},
        "privacy": {"epsilon": 20},  # little noise, so that chance does not decide which step survives
        "algorithm": {"name": "mbsgd", "rounds": 40, "average": "last"},
        "model": {"diameter": 1e6},
        "cluster": {"backend": "in-process"},
        "tracking": {"mlflow": False},
        **base,
    }
    grid = {"algorithm.step": steps or STEPS, "seed": [0, 1]}
    made = {"name": "patient", "base": values, "grid": grid}
    return SweepConfig.model_validate(made if patience is None else made | {"patience": patience})


@pytest.fixture
def home(tmp_path) -> Home:
    return make_home(tmp_path / "home")


def make_home(folder: Path) -> Home:
    home = Home(folder).make()
    home.prefect.mkdir()
    (home.prefect / "prefect.db").write_bytes(make_template().read_bytes())
    return home


def carry_out(home: Home, config: SweepConfig, stop_after: int | None = None) -> list[Exception]:
    """Runs the cells as the sweep's flow does, with KeyboardInterrupt after `stop_after` rounds. Returns failures."""
    done, failed = 0, []

    def took(run: str, phase: int, round: int) -> None:
        nonlocal done
        done += 1
        if done == stop_after:
            raise KeyboardInterrupt

    with Session.of_driver(home, took) as session:
        flows = CellFlowRows(home.prefect / "prefect.db", PARENT)
        try:
            cells = _Cells(session, flows, sweep_id(config), 100, config.patience, {})
            runs = ((chain[0].seed, calls) for chain, calls in cells.chains(config))
            for _, made in in_step(runs, _count_in_step(config.cells())):
                failed += [made] if isinstance(made, Exception) else []
        finally:
            flows.close()
    save_sweep_in(home, config)
    return failed


def save_sweep_in(home: Home, config: SweepConfig) -> None:
    (home.sweeps / sweep_id(config)).mkdir(parents=True, exist_ok=True)
    save_sweep(home, config)


def cell(config: SweepConfig, step: float, seed: int = 0):
    return next(each for each in config.cells() if (each.algorithm.step, each.seed) == (step, seed))


def abandoned(home: Home, config: SweepConfig) -> list[dict]:
    """Records of abandoned runs, without their code version."""
    found = [read_abandoned(home, run_id(each)) for each in config.cells()]
    return [each.model_dump(exclude={"code"}) for each in found if each is not None]


def by_hand(losses: list[float], factor: float, limit: int) -> int | None:
    """Number (from 1) of the look at which the rule ends the run, counted as in the paper's prose."""
    patience = 0
    for place, loss in enumerate(losses):
        best = min(losses[:place], default=np.inf)
        if loss < best:
            patience = 0
        if loss > factor * best:
            patience += 1
        if patience == limit:
            return place + 1
    return None


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Home:
    home = make_home(tmp_path_factory.mktemp("undisturbed") / "home")
    assert carry_out(home, sweep()) == []
    return home


def test_a_huge_step_is_abandoned_the_next_survives_and_smaller_ones_are_not_run(undisturbed):
    home, config = undisturbed, sweep()
    for seed in (0, 1):
        assert [run_id(cell(config, step, seed)) in {p.name for p in home.runs.iterdir()} for step in STEPS] == [
            False,
            True,
            False,
            True,
        ]
        gone, stored = cell(config, 300, seed), cell(config, 3, seed)
        record = read_run(home, run_id(gone))
        assert (record.state, record.result, record.sweep) == ("ABANDONED", None, sweep_id(config))
        rows = read_rows(store_path(home, run_id(gone)))
        looks = [values["simulation/train_loss"] for _, round, values in rows if round % 4 == 0]
        ended = record.abandoned
        assert ended.round == len(rows) == 4 * by_hand(looks, 1.05, 3) < ended.rounds == 40
        assert not ended.diverged and f"{looks[-1]:.4g} last" in ended.reason
        survived = [
            values["simulation/train_loss"]
            for _, n, values in read_rows(store_path(home, run_id(stored)))
            if n % 4 == 0
        ]
        assert len(survived) == 10 and by_hand(survived, 1.05, 3) is None
        files = {path.name for path in (home.runs / run_id(gone)).iterdir()}
        assert {"abandoned.json", "ledger.json", "plan.json", "config.yaml"} <= files and "model.json" not in files
        for file in ("model.json", "result.json", "ledger.json"):
            assert (home.runs / run_id(stored) / file).read_text().count(CHOICE) == 1
    assert is_complete(home, config) and progress(home, config) == (2, 2, "ladders decided")


def test_what_is_shown_names_the_choice_the_abandoned_and_the_untried(undisturbed, capsys):
    config = sweep()
    results = finished_results(undisturbed, config)
    outcome = sweep_outcome(undisturbed, config, results).as_json()
    assert [(r["seed"], r["run"]) for r in outcome["results"]] == [(s, run_id(cell(config, 3, s))) for s in (0, 1)]
    assert all(result["noise"].count(CHOICE) == 1 for result in outcome["results"])
    assert outcome["patience"] == {"key": "algorithm.step", "factor": 1.05, **RULE, "statement": CHOICE}
    for seed, ladder in enumerate(outcome["ladders"]):
        assert ladder["apart"] == {"seed": seed} and ladder["decided"]
        assert (ladder["chosen"], ladder["run"]) == (3, run_id(cell(config, 3, seed)))
        assert ladder["not_tried"] == [1, 0.3] and ladder["open"] == []
        (gone,) = ladder["abandoned"]
        assert gone["value"] == 300 and gone["round"] < 40 and "above 1.05 times" in gone["reason"]
    show_sweep(sweep_outcome(undisturbed, config, results), as_json=False)
    said = " ".join(capsys.readouterr().out.split())
    assert "CHOSEN BY UNPROTECTED TRAINING LOSSES" in said and "What abandoned runs released is charged" in said
    text = Console(file=StringIO(), width=200)
    text.print(ladder_table(ladder_states(undisturbed, config), config.patience))
    assert f"seed 0 3 300 ({outcome['ladders'][0]['abandoned'][0]['round']}) 1, 0.3" in " ".join(
        text.file.getvalue().split()
    )


def test_an_abandoned_run_is_charged_for_what_it_released_and_the_untried_for_nothing(undisturbed):
    config = sweep()
    ended = read_abandoned(undisturbed, run_id(cell(config, 300)))
    plan = make_plan(cell(config, 300))
    part = plan.until(1, ended.round)
    for silo in ended.silos:
        assert silo.releases == ended.round
        assert silo.epsilon == pytest.approx(part.silo_epsilon(silo.silo), rel=1e-9)
        assert silo.epsilon < 0.98 * plan.silo_epsilon(silo.silo)
    tried = tried_cells(undisturbed, config)
    assert sorted((each.seed, each.algorithm.step) for each in tried) == [(0, 3), (0, 300), (1, 3), (1, 300)]
    alone = sweep_totals(undisturbed, [cell(config, 300)])
    assert [total.epsilon for total in alone] == pytest.approx([silo.epsilon for silo in ended.silos], rel=1e-9)
    both = [total for total in sweep_totals(undisturbed, tried) if total.seed == 0]
    assert all(total.cells == 2 and total.epsilon > before.epsilon for total, before in zip(both, alone, strict=True))


def test_prefect_shows_a_state_of_its_own(undisturbed):
    with contextlib.closing(sqlite3.connect(undisturbed.prefect / "prefect.db")) as db:
        shown = db.execute("SELECT state_name, state_type FROM flow_run").fetchall()
        said = db.execute("SELECT message FROM flow_run_state WHERE name = 'Abandoned'").fetchall()
        phases = db.execute("SELECT state_name FROM task_run WHERE name = 'phase 1'").fetchall()
    assert sorted(shown) == [("Abandoned", "COMPLETED")] * 2 + [("Completed", "COMPLETED")] * 2
    assert len(said) == 2 and all("abandoned by the patience of sweep patient-" in text for (text,) in said)
    assert sorted(phases) == [("Abandoned",)] * 2 + [("Completed",)] * 2


@pytest.mark.parametrize("stops", [[3, 1, 40], pytest.param([30, 30], marks=pytest.mark.minutes)])
@pytest.mark.parametrize("ledger", some_in_make_test(["memory", "sqlite"], ["sqlite"]))
def test_a_killed_sweep_comes_to_the_same_choice_and_releases_nothing_twice(
    home, undisturbed, tmp_path, monkeypatch, stops, ledger
):
    log = tmp_path / "silos.log"
    monkeypatch.setenv("FEDCORE_SILO_LOG", str(log))
    config = sweep(privacy={"epsilon": 20, "ledger": ledger})
    for rounds in stops:
        with pytest.raises(KeyboardInterrupt):
            carry_out(home, config, stop_after=rounds)
    assert carry_out(home, config) == []
    computed = log.read_text()
    assert carry_out(home, config) == [] and log.read_text() == computed, "what is decided is not asked again"
    if ledger == "memory":  # the ledger is part of a run's parameters, and so of its noise
        assert abandoned(home, config) == abandoned(undisturbed, config)
        for seed in (0, 1):
            run = run_id(cell(config, 3, seed))
            assert read_result(home, run).weights_sha256 == read_result(undisturbed, run).weights_sha256
    done = ladder_states(home, config)
    assert [[rung.state for rung in ladder.rungs] for ladder in done] == [
        ["abandoned", "chosen", "not tried", "not tried"]
    ] * 2
    for each in abandoned(home, config):
        assert {silo["releases"] for silo in each["silos"]} == {each["round"]}


def killed_before_abandoned(home, config, monkeypatch):
    """Kills a driver after silos have closed a run and before its state is ABANDONED."""

    def killed(self, *first, **values):
        if values.get("state") == "ABANDONED":
            raise KeyboardInterrupt
        before(self, *first, **values)

    before = RunStore.set_meta
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(RunStore, "set_meta", killed)
        carry_out(home, config)


def test_a_driver_killed_between_silos_closing_a_run_and_its_state_abandons_it_again(home, undisturbed, monkeypatch):
    config = sweep(privacy={"epsilon": 20, "ledger": "sqlite"})
    killed_before_abandoned(home, config, monkeypatch)
    gone = cell(config, 300)
    assert read_run(home, run_id(gone)).state == "KILLED"
    rounds = read_done(store_path(home, run_id(gone)))
    assert carry_out(home, config) == []
    assert read_abandoned(home, run_id(gone)).round == rounds == read_done(store_path(home, run_id(gone)))


def wild(monkeypatch, at: int) -> None:
    """Makes steps above 100 leave the range of numbers that silos accept in this round."""
    tame = Mbsgd.server_update

    def server_update(self, state, messages, phase):
        after = tame(self, state, messages, phase)
        return replace(after, w=after.w * np.nan) if self.step > 100 and state.round == at else after

    monkeypatch.setattr(Mbsgd, "server_update", server_update)


@pytest.mark.parametrize("ledger", some_in_make_test(["memory", "sqlite"], ["sqlite"]))
def test_divergence_is_a_reason_of_its_own_and_its_round_is_charged(home, monkeypatch, ledger):
    config = sweep(privacy={"epsilon": 20, "ledger": ledger})
    wild(monkeypatch, at=7)
    killed_before_abandoned(home, config, monkeypatch)
    assert carry_out(home, config) == []
    for seed in (0, 1):
        ended = read_abandoned(home, run_id(cell(config, 300, seed)))
        assert (ended.round, ended.diverged) == (7, True) and "training diverged" in ended.reason
        assert {silo.releases for silo in ended.silos} == {7}
        assert read_result(home, run_id(cell(config, 3, seed))) is not None
    text = Console(file=StringIO(), width=200)
    text.print(ladder_table(ladder_states(home, config), config.patience))
    assert "300 (7, diverged)" in text.file.getvalue()


@pytest.mark.slow
@pytest.mark.minutes
def test_divergence_of_a_shuffled_run_counts_the_requested_batch(home, monkeypatch):
    monkeypatch.setenv("FEDCORE_HOME", str(home.root))
    config = sweep(
        RULE,
        steps=[300, 3],
        algorithm={"name": "mbsgd", "rounds": 8, "average": "last"},
        data={"source": "synthetic", "silos": 20, "records": 10, "features": 3, "test_records": 20},
        privacy={"epsilon": 8, "delta": 1e-5, "trust": "shuffler", "ledger": "sqlite"},
    )
    wild(monkeypatch, at=3)
    assert carry_out(home, config) == []
    assert [ladder.chosen.value for ladder in ladder_states(home, config)] == [3, 3]
    ended = read_abandoned(home, run_id(cell(config, 300)))
    assert (ended.round, ended.diverged, {silo.releases for silo in ended.silos}) == (3, True, {3})


def test_without_patience_divergence_fails_as_ever(home, monkeypatch):
    wild(monkeypatch, at=7)
    (failed, *_) = carry_out(home, sweep(None, steps=[300]))
    assert isinstance(failed, InputError) and not isinstance(failed, AbandonedError)
    assert read_run(home, run_id(cell(sweep(), 300))).state == "FAILED"


def test_an_abandoned_run_is_not_resumed_and_gives_the_reason(undisturbed, monkeypatch, tmp_path):
    monkeypatch.setenv("FEDCORE_HOME", str(undisturbed.root))
    gone = cell(sweep(), 300)
    sentence = (
        rf"run {run_id(gone)} was abandoned by the patience of sweep {sweep_id(sweep())} after round \d+ of 40, by "
        r"training losses of raw records: .* its silos have closed it, so it does not go on: set repetition"
    )
    with pytest.raises(InputError, match=sentence):
        launch_run(gone, None)
    with pytest.raises(AbandonedError, match=sentence):
        run(undisturbed, gone)
    failed = carry_out(undisturbed, sweep(None, steps=[300]))
    assert len(failed) == 2 and all("does not go on" in str(each) for each in failed)


def test_another_patience_judges_by_the_stored_losses(undisturbed):
    stricter, laxer = sweep(RULE | {"limit": 2}), sweep(RULE | {"limit": 9})
    assert (
        ladder_states(undisturbed, stricter)[0].rungs[0].round < ladder_states(undisturbed, sweep())[0].rungs[0].round
    )
    with pytest.raises(InputError, match="this sweep's patience would not have abandoned it there"):
        ladder_states(undisturbed, laxer)


def test_a_run_that_was_finished_before_is_judged_or_refused(home):
    config = sweep()
    for step in (300, 3):
        for seed in (0, 1):
            run(home, cell(config, step, seed))
    assert read_run(home, run_id(cell(config, 300))).state == "FINISHED"
    assert carry_out(home, config) == []
    assert [[rung.state for rung in ladder.rungs] for ladder in ladder_states(home, config)] == [
        ["abandoned", "chosen", "not tried", "not tried"]
    ] * 2
    rare = {"tracking": {"mlflow": False, "evaluate_every": 7}, "seed": 9}
    early = sweep(None, **rare)
    run(home, cell(early, 300).model_copy(update={"seed": 2}))
    late = SweepConfig.model_validate(
        sweep(**rare).model_dump(mode="json") | {"grid": {"algorithm.step": [300], "seed": [2]}}
    )
    with pytest.raises(InputError, match=r"has no training loss of round 4, at which patience\.every = 4 looks"):
        ladder_states(home, late)


def test_losses_are_computed_at_patiences_looks_and_at_the_configs_rounds(home):
    config = sweep(tracking={"mlflow": False, "evaluate_every": 10})
    assert carry_out(home, config) == []
    rows = read_rows(store_path(home, run_id(cell(config, 3))))
    have = [round for _, round, values in rows if "simulation/train_loss" in values]
    assert have == sorted({*range(4, 41, 4), *range(10, 41, 10)})
    assert [round for _, round, values in rows if "test/error" in values] == [10, 20, 30, 40]


def test_a_ladder_without_a_survivor_is_named(home, capsys):
    config = sweep(steps=[300, 500])
    assert carry_out(home, config) == []
    assert is_complete(home, config) and finished_results(home, config) == []
    outcome = sweep_outcome(home, config, [])
    assert [ladder["chosen"] for ladder in outcome.as_json()["ladders"]] == [None, None]
    assert "of 2 of 2 ladders no value of algorithm.step survived" in without_a_survivor(outcome.ladders)
    show_sweep(outcome, as_json=False)
    assert "give smaller ones" in " ".join(capsys.readouterr().out.split())


def test_a_sweep_that_patience_would_never_look_at_is_refused(home, monkeypatch):
    monkeypatch.setenv("FEDCORE_HOME", str(home.root))
    with pytest.raises(InputError, match=r"patience\.every = 41: mbsgd has 40 rounds of training"):
        launch_sweep(sweep({"every": 41}), None)


@pytest.mark.slow
def test_ladders_go_side_by_side_on_dask_to_the_same_choice(home, undisturbed):
    config = sweep(cluster={"backend": "dask", "workers": 2})
    assert _count_in_step(config.cells()) > 1
    with pytest.raises(KeyboardInterrupt):
        carry_out(home, config, stop_after=50)
    begun = [read_done(store_path(home, run_id(cell(config, 300, seed)))) for seed in (0, 1)]
    assert min(begun) > 0, "both ladders had begun"
    assert carry_out(home, config) == []
    assert abandoned(home, config) == [each | {"sweep": sweep_id(config)} for each in abandoned(undisturbed, sweep())]
    for seed in (0, 1):
        run = run_id(cell(config, 3, seed))
        assert read_result(home, run).weights_sha256 == read_result(undisturbed, run).weights_sha256


@pytest.mark.slow
@pytest.mark.minutes
def test_a_sweep_whose_driver_is_killed_outright_resumes_to_the_same_choice(tmp_path, undisturbed):
    config = sweep()
    home, path = tmp_path / "home", tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    command = [sys.executable, "-m", "flows.commands.app", "sweep", str(path)]
    gone = [cell(config, 300, seed) for seed in (0, 1)]
    for begun in (cell(config, 300, 0), cell(config, 3, 1)):
        process = subprocess.Popen(command, env=os.environ | {"FEDCORE_HOME": str(home)}, stdout=subprocess.DEVNULL)
        until = time.monotonic() + HANGS
        while read_done(store_path(Home(home), run_id(begun))) < 2:
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.005)
        process.kill()
        process.wait()
    assert read_abandoned(Home(home), run_id(gone[0])) is not None
    values = json.loads(fedcore(home, "resume", sweep_id(config), "--json"))
    assert [ladder["chosen"] for ladder in values["ladders"]] == [3, 3]
    assert abandoned(Home(home), config) == abandoned(undisturbed, config)
    for result in values["results"]:
        assert result["weights_sha256"] == read_result(undisturbed, result["run"]).weights_sha256


@pytest.mark.hours
@pytest.mark.minutes
@pytest.mark.slow
def test_the_command_line_runs_shows_and_reports_it(tmp_path, monkeypatch):
    from mlflow import MlflowClient

    home = tmp_path / "home"
    config = sweep(tracking={"mlflow": True})
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    first = json.loads(fedcore(home, "sweep", str(path), "--json"))
    assert [ladder["chosen"] for ladder in first["ladders"]] == [3, 3]
    assert json.loads(fedcore(home, "report", first["sweep"], "--json")) == first
    assert json.loads(fedcore(home, "resume", first["sweep"], "--json")) == first
    stored = json.loads((home / "sweeps" / first["sweep"] / "ladders.json").read_text())
    assert stored["ladders"] == first["ladders"] and stored["statement"] == CHOICE
    listed = fedcore(home, "runs")
    assert "2 of 2 ladders decided" in listed and listed.count("ABANDONED") == 2

    uri = f"sqlite:///{home / 'mlflow.db'}"
    client = MlflowClient(uri, uri)
    experiments = [each.experiment_id for each in client.search_experiments()]
    runs = client.search_runs(experiments, "tags.`fedcore.kind` = 'experiment'")
    assert sorted(each.info.status for each in runs) == ["FINISHED"] * 2 + ["KILLED"] * 2
    for each in runs:
        assert each.data.tags["privacy.choice"] == CHOICE
        assert ("fedcore.abandoned" in each.data.tags) == (each.info.status == "KILLED")
    (summary,) = client.search_runs(experiments, "tags.`fedcore.kind` = 'sweep'")
    assert summary.info.status == "FINISHED" and summary.data.params["choice"] == CHOICE
    assert summary.data.params["cells_at_most"] == "8" and summary.data.params["patience.limit"] == "3"
    (best,) = client.search_model_versions("name = 'patient'")
    assert best.tags["privacy.choice"].startswith(f"{CHOICE}. lowest test error of 2 cells")

    # Lost in MLflow, or never written: a resume writes abandoned runs too, and asks no silo.
    gone = {each.data.tags["fedcore.run_id"] for each in runs if each.info.status == "KILLED"}
    for each in client.search_runs(experiments):
        if each.data.tags.get("fedcore.run_id") in gone:
            client.delete_run(each.info.run_id)
    for each in gone:
        store = RunStore(store_path(Home(home), each))
        store.set_meta(tracked=None)
        store.close()
    log = tmp_path / "silos.log"
    monkeypatch.setenv("FEDCORE_SILO_LOG", str(log))
    assert json.loads(fedcore(home, "resume", first["sweep"], "--json")) == first
    assert not log.exists()
    again = client.search_runs(experiments, "tags.`fedcore.kind` = 'experiment' and attributes.status = 'KILLED'")
    assert {each.data.tags["fedcore.run_id"] for each in again} == gone
    assert all("after round" in each.data.tags["fedcore.abandoned"] for each in again)


def test_a_figure_is_drawn_from_the_chosen_cells(undisturbed):
    config = sweep()
    figure = FigureConfig(name="steps", title="Steps", sweep="sweep.yaml")
    folder = draw(undisturbed, "patient", figure, config.cells(), finished_results(undisturbed, config))
    assert json.loads((folder / "table.json").read_text()) and "mbsgd" in (folder / "table.md").read_text()
