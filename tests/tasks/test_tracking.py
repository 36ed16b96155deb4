"""Tracking on a real MLflow store: each run, point and model once, whatever is repeated, and nothing lost."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from fedcore.data.constants.pca import Projection
from fedcore.data.records import prepare_records
from fedcore.experiment.served.phase_model import PhaseModel
from tasks.mlflow.store import MOST_KNOWN
from tasks.tracking.run_writer import View, cell_tag
from tasks.tracking.tracker import TrackedRun, Tracker
from tasks.tracking_stores import close_stale, tracking_store
from tests.patience import HANGS

PHASES, ROUNDS = 2, 6
W = np.array([0.5, -1.5, 0.25])
MODEL = PhaseModel(W, bias=True, feature_names=("age", "dose"), classes=("no", "yes"), divide_by=4.0)
PRIVACY = {"epsilon": "1.0", "trust": "inter-silo"}
fresh_id = map("run-{}".format, count())


class Place:
    """A store on disk, and what a person would see of it."""

    def __init__(self, root: Path) -> None:
        self.uri, self.artifacts = f"sqlite:///{root / 'mlflow.db'}", root / "artifacts"

    def tracker(self) -> Tracker:
        return Tracker(tracking_store(self.uri, self.artifacts))

    @property
    def client(self):
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)

    def runs(self, run_id: str, kind: str):
        experiment = self.client.get_experiment_by_name("tests").experiment_id
        condition = f"tags.`fedcore.run_id` = '{run_id}' AND tags.`fedcore.kind` = '{kind}'"
        found = self.client.search_runs([experiment], condition)
        return sorted(found, key=lambda run: run.data.tags.get("fedcore.phase", ""))

    def points(self, run, key: str) -> list[tuple[int, float]]:
        history = self.client.get_metric_history(run.info.run_id, key)
        return sorted((point.step, point.value) for point in history)


@pytest.fixture(scope="session")
def place(tmp_path_factory) -> Place:
    return Place(tmp_path_factory.mktemp("mlflow"))


@pytest.fixture
def run_id() -> str:
    return next(fresh_id)


def drive(
    tracker: Tracker, run_id: str, phases: int = PHASES, last_rounds: int = ROUNDS, status: str | None = "FINISHED"
) -> TrackedRun:
    """The calls of a driver; `last_rounds` and `status` None stop it in the middle of the last phase."""
    params = {"privacy": {"epsilon": 1.0}, "seed": 3}
    run = tracker.begin(run_id, "tests", f"name of {run_id}", params, {"fedcore.sweep": "s"})
    for phase in range(phases):
        run.begin_phase(phase, {"sigma": 0.5 + phase})
        is_last = phase == phases - 1
        for step in range(last_rounds if is_last else ROUNDS):
            values = {"test/error": 0.5 / (step + 1), "test/loss": 0.1 * step}
            run.metrics(phase, step, values, phase * ROUNDS + step)
        if not (is_last and status is None):
            run.end_phase(phase, {"epsilon_accounted": 0.9}, MODEL)
    if status is not None:
        texts = {"config.yaml": "seed: 3\n", "plan/plan.json": "{}"}
        run.finish(status, {"seconds": 2.0}, texts, MODEL, f"model-{run_id}", PRIVACY)
    return run


def check_whole(place: Place, run_id: str) -> None:
    """One FINISHED parent, one FINISHED child per phase, each point, model and version once."""
    (parent,) = place.runs(run_id, "experiment")
    children = place.runs(run_id, "phase")
    assert [child.data.tags["fedcore.phase"] for child in children] == [str(phase) for phase in range(PHASES)]
    assert {run.info.status for run in [parent, *children]} == {"FINISHED"}
    assert {child.data.tags["mlflow.parentRunId"] for child in children} == {parent.info.run_id}
    for child in children:
        assert place.points(child, "test/error") == [(step, 0.5 / (step + 1)) for step in range(ROUNDS)]
        assert place.points(child, "test/loss") == [(step, 0.1 * step) for step in range(ROUNDS)]
        assert place.points(child, "epsilon_accounted") == [(0, 0.9)]
    assert place.points(parent, "seconds") == [(0, 2.0)]
    curve = [(phase * ROUNDS + step, 0.5 / (step + 1)) for phase in range(PHASES) for step in range(ROUNDS)]
    assert place.points(parent, "test/error") == curve
    assert parent.data.tags["mlflow.source.name"].startswith("fedcore ") and parent.data.tags["mlflow.user"]
    assert parent.data.params == {"privacy.epsilon": "1.0", "seed": "3"}
    assert {"config.yaml", "plan"} <= {item.path for item in place.client.list_artifacts(parent.info.run_id)}
    for run in [parent, *children]:
        models = place.client.search_logged_models([run.info.experiment_id], f"source_run_id = '{run.info.run_id}'")
        assert [(model.name, str(model.status)) for model in models] == [("model", "READY")]
        assert [output.model_id for output in run.outputs.model_outputs] == [models[0].model_id]
    (version,) = place.client.search_model_versions(f"name = 'model-{run_id}'")
    assert version.run_id == parent.info.run_id
    assert version.tags == PRIVACY
    assert place.client.get_model_version_by_alias(f"model-{run_id}", "latest-private").version == version.version


def test_a_run_is_one_parent_and_one_child_per_phase(place, run_id):
    tracker = place.tracker()
    drive(tracker, run_id)
    assert tracker.close(HANGS), tracker.problem
    assert tracker.problem is None
    check_whole(place, run_id)


def test_calls_return_at_once(place, run_id):
    tracker = place.tracker()
    run = tracker.begin(run_id, "tests", "fast", {}, {})
    run.begin_phase(0, {})
    seconds = []
    for step in range(300):
        start = time.perf_counter()
        run.metrics(0, step, {"test/loss": 1.0})
        seconds.append(time.perf_counter() - start)
    assert np.median(seconds) < 1e-4
    run.finish("KILLED")
    assert tracker.close(HANGS), tracker.problem
    (child,) = place.runs(run_id, "phase")
    assert child.info.status == "KILLED"
    assert len(place.points(child, "test/loss")) == 300


def test_a_resumed_driver_doubles_nothing(place, run_id):
    first = place.tracker()
    drive(first, run_id, last_rounds=4, status=None)
    assert first.close(HANGS), first.problem
    resumed = place.tracker()
    drive(resumed, run_id)
    assert resumed.close(HANGS), resumed.problem
    check_whole(place, run_id)


def test_all_calls_again_change_nothing(place, run_id):
    ids = []
    for _ in range(2):
        tracker = place.tracker()
        run = drive(tracker, run_id)
        ids.append(run.address(HANGS))
        run.finish("FINISHED", {"seconds": 2.0}, {}, MODEL, f"model-{run_id}", {})
        assert tracker.close(HANGS), tracker.problem
    assert ids[0] == ids[1]
    check_whole(place, run_id)


def test_runs_that_go_on_side_by_side_are_told_apart(place):
    """By hand: rows of three runs in turns, and one of them ends before the others."""
    tracker, names = place.tracker(), [next(fresh_id) for _ in range(3)]
    runs = [tracker.begin(name, "tests", name, {"seed": seed}, {}) for seed, name in enumerate(names)]
    for run in runs:
        run.begin_phase(0, {"sigma": 1.0})
    for step in range(ROUNDS):
        for seed, run in enumerate(runs):
            if seed > 0 or step < 3:
                run.metrics(0, step, {"test/error": seed + step / 100})
        if step == 3:
            runs[0].end_phase(0, {}, MODEL)
            runs[0].finish("FINISHED")
    runs[2].finish("KILLED")
    assert tracker.close(HANGS), tracker.problem
    for seed, (name, status) in enumerate(zip(names, ("FINISHED", "RUNNING", "KILLED"), strict=True)):
        (parent,), (phase,) = place.runs(name, "experiment"), place.runs(name, "phase")
        assert (parent.info.status, phase.info.status) == (status, status)
        assert parent.data.params == {"seed": str(seed)}
        steps = range(3 if seed == 0 else ROUNDS)
        assert place.points(phase, "test/error") == [(step, seed + step / 100) for step in steps]


def test_a_long_run_is_not_forgotten_while_many_short_ones_begin_and_end(place, run_id):
    """Cells of a sweep go side by side: the longest is still at work when a hundred others have ended."""
    tracker = place.tracker()
    long = tracker.begin(run_id, "tests", "long", {}, {})
    long.begin_phase(0, {})
    for _ in range(2 * MOST_KNOWN):
        tracker.begin(next(fresh_id), "tests", "short", {}, {}).finish("FINISHED")
    long.metrics(0, 1, {"test/error": 0.25})
    long.end_phase(0, {})
    long.finish("FINISHED")
    assert tracker.close(HANGS), tracker.problem
    (child,) = place.runs(run_id, "phase")
    assert place.points(child, "test/error") == [(1, 0.25)] and child.info.status == "FINISHED"


def test_a_model_that_a_killed_driver_left_half_logged_is_completed(place, run_id):
    first = place.tracker()
    drive(first, run_id, last_rounds=ROUNDS, status=None)
    assert first.close(HANGS), first.problem
    (parent,), last_child = place.runs(run_id, "experiment"), place.runs(run_id, "phase")[-1]
    for run in (parent, last_child):
        place.client.create_logged_model(run.info.experiment_id, "model", run.info.run_id)
    resumed = place.tracker()
    drive(resumed, run_id)
    assert resumed.close(HANGS), resumed.problem
    check_whole(place, run_id)


def test_a_failed_run_is_resumed_under_the_same_id_and_keeps_its_parameters(place, run_id):
    tracker = place.tracker()
    run = tracker.begin(run_id, "tests", "first", {"seed": 3}, {})
    run.begin_phase(0, {})
    run.finish("FAILED", {"seconds": 1.0})
    run = tracker.begin(run_id, "tests", "again", {"seed": 4, "added": 1}, {"link": "page"})
    run.finish("FINISHED", {"seconds": 5.0})
    assert tracker.close(HANGS), tracker.problem
    (parent,) = place.runs(run_id, "experiment")
    assert parent.info.status == "FINISHED"
    assert parent.data.params == {"seed": "3", "added": "1"}
    assert parent.data.tags["link"] == "page"
    assert parent.data.metrics["seconds"] == 5.0
    assert place.runs(run_id, "phase")[0].info.status == "FAILED"


def test_values_that_are_not_finite_are_nan(place, run_id):
    tracker = place.tracker()
    run = tracker.begin(run_id, "tests", "diverged", {}, {})
    run.begin_phase(0, {})
    for step, value in enumerate([1.0, math.inf, math.nan]):
        run.metrics(0, step, {"loss": value})
    run.end_phase(0, {"epsilon": math.inf})
    assert tracker.close(HANGS), tracker.problem
    (child,) = place.runs(run_id, "phase")
    history = place.client.get_metric_history(child.info.run_id, "loss")
    assert history[0].value == 1.0
    assert all(math.isnan(point.value) for point in history[1:])
    assert math.isnan(child.data.metrics["epsilon"])


def test_what_is_done_once_all_is_on_disk_finds_it_there(place, run_id):
    tracker, found = place.tracker(), []
    drive(tracker, run_id)
    done = threading.Event()

    def look():
        found.extend(run.info.status for run in (*place.runs(run_id, "experiment"), *place.runs(run_id, "phase")))
        done.set()

    tracker.once_on_disk(look)
    assert done.wait(HANGS), "before it is closed"
    assert found == ["FINISHED"] * (1 + PHASES)
    tracker.begin(run_id, "tests", "lost", {}, {}).metrics(99, 0, {"loss": 1.0})
    tracker.once_on_disk(lambda: found.append("told"))
    assert not tracker.close(HANGS) and "told" not in found


def test_a_mistake_in_one_entry_is_told_and_stops_nothing(place, run_id):
    tracker = place.tracker()
    run = tracker.begin(run_id, "tests", "mistake", {}, {})
    run.metrics(7, 0, {"loss": 1.0})
    run.finish("FINISHED", {"a key with a ?": 1.0})
    run.finish("FINISHED")
    assert not tracker.close(HANGS)
    assert "phase 7 was not begun" in tracker.problem
    assert place.runs(run_id, "experiment")[0].info.status == "FINISHED"


def test_a_store_that_is_away_at_first_loses_nothing(tmp_path):
    blocked = tmp_path / "volume"
    blocked.write_text("not mounted")
    place = Place(blocked)
    tracker = place.tracker()
    run = drive(tracker, "late")
    assert run.address(0.1) is None
    assert not tracker.flush(4.0)
    assert "wait to be written" in tracker.problem
    blocked.unlink()
    assert tracker.close(HANGS), tracker.problem
    check_whole(place, "late")


def test_a_locked_database_delays_but_loses_nothing(tmp_path):
    place = Place(tmp_path)
    first = place.tracker()
    drive(first, "locked", phases=1, last_rounds=2, status=None)
    assert first.close(HANGS), first.problem
    with sqlite3.connect(tmp_path / "mlflow.db", isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        resumed = place.tracker()
        drive(resumed, "locked")
        assert not resumed.flush(2.0)
        other.execute("ROLLBACK")
    assert resumed.close(HANGS), resumed.problem
    check_whole(place, "locked")


def test_a_store_that_never_comes_is_told_and_raises_nothing(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    tracker = Place(blocked).tracker()
    run = tracker.begin("never", "tests", "never", {}, {})
    assert not tracker.close(1.0)
    assert "wait to be written" in tracker.problem
    run.finish("FINISHED")
    assert "after tracking was closed" in tracker.problem


def test_a_half_made_database_is_not_left_behind(tmp_path):
    (tmp_path / "mlflow.db.making").write_text("of a driver that was killed")
    place = Place(tmp_path)
    tracker = place.tracker()
    drive(tracker, "after")
    assert tracker.close(HANGS), tracker.problem
    check_whole(place, "after")
    assert not list(tmp_path.glob("*.making*"))


def left_behind(ends):
    """A `LeftBehind` with the ends of runs and sweeps by id; others have a driver. It locks an id for the block."""
    asked, held = [], set()

    @contextmanager
    def left(kind, name):
        asked.append((kind, name))
        held.add(name)
        yield ends.get(name)
        held.remove(name)

    return left, asked, held


def test_stale_runs_are_closed_and_living_ones_are_not(place):
    stale, living = next(fresh_id), next(fresh_id)
    for run_id in (stale, living):
        tracker = place.tracker()
        drive(tracker, run_id, status=None)
        assert tracker.close(HANGS), tracker.problem
    left, asked, held = left_behind({stale: "KILLED"})
    assert close_stale(place.uri, left) == [stale]
    assert len(asked) == len(set(asked)) and not held
    for run_id, status in ((stale, "KILLED"), (living, "RUNNING")):
        assert place.runs(run_id, "experiment")[0].info.status == status
        assert place.runs(run_id, "phase")[-1].info.status == status
    tracker = place.tracker()
    tracker.close_stale(left_behind({living: "FAILED"})[0])
    assert tracker.close(HANGS), tracker.problem
    assert place.runs(living, "experiment")[0].info.status == "FAILED"


def test_a_finished_run_that_was_not_told_in_full_is_finished_and_says_that_something_is_missing(place):
    run_id = next(fresh_id)
    tracker = place.tracker()
    drive(tracker, run_id, status=None)
    assert tracker.close(HANGS), tracker.problem
    assert close_stale(place.uri, left_behind({run_id: "FINISHED"})[0]) == [run_id]
    (parent,), phases = place.runs(run_id, "experiment"), place.runs(run_id, "phase")
    assert parent.info.status == "FINISHED" and "fedcore resume" in parent.data.tags["fedcore.missing"]
    assert [phase.info.status for phase in phases] == ["FINISHED", "KILLED"]
    tracker = place.tracker()
    drive(tracker, run_id)
    assert tracker.close(HANGS), tracker.problem
    check_whole(place, run_id)
    assert "fedcore.missing" not in place.runs(run_id, "experiment")[0].data.tags


def test_a_run_that_ends_between_the_look_and_the_write_stays_finished(place):
    """The other driver has seen it RUNNING and asks who drives it when its last entries arrive."""
    run_id = next(fresh_id)
    driver = place.tracker()
    run = drive(driver, run_id, status=None)
    assert driver.flush(HANGS)
    ending = threading.Event()

    @contextmanager
    def left(kind, name):
        if name == run_id and not ending.is_set():
            ending.set()
            run.finish("FINISHED")
            driver.flush(1.0)  # in vain where the look and the write are one transaction
        yield "KILLED" if name == run_id else None

    close_stale(place.uri, left)
    assert ending.is_set() and driver.close(HANGS), driver.problem
    assert place.runs(run_id, "experiment")[0].info.status == "FINISHED"


def test_what_is_held_until_it_is_told_is_let_go_in_any_case(tmp_path):
    delivered, given_up, late = threading.Event(), threading.Event(), threading.Event()
    tracker = Place(tmp_path).tracker()
    tracker.begin("told", "tests", "told", {}, {})
    tracker.once_delivered(delivered.set)
    assert tracker.close(HANGS) and delivered.is_set()
    tracker.once_delivered(late.set)
    assert late.is_set()
    blocked = tmp_path / "file"
    blocked.write_text("")
    tracker = Place(blocked).tracker()
    tracker.begin("never", "tests", "never", {}, {})
    tracker.once_delivered(given_up.set)
    assert not given_up.wait(0.3) and not tracker.close(1.0)
    assert given_up.wait(HANGS) and "wait to be written" in tracker.problem


def test_no_store_has_no_stale_runs(tmp_path):
    assert close_stale(f"sqlite:///{tmp_path / 'mlflow.db'}", left_behind({})[0]) == []
    assert not list(tmp_path.iterdir())


def test_a_sweep_has_one_summary_with_tables_plot_and_totals(place, tmp_path):
    plot, view = tmp_path / "error.png", View("sweep-1", "sweep-1", ("params.`step`",))
    plot.write_bytes(b"picture")
    tables = {"table.json": {"method": ["a", "b"], "error": [0.1, 0.2]}, "budget.json": {"silo": ["x"]}}
    for _ in range(2):
        tracker = place.tracker()
        tracker.begin_sweep("sweep-1", "tests", {"cells": 2}, view)
        tracker.finish_sweep("FINISHED", view, tables, [plot], {"epsilon_all_cells": 2.5}, "what it cost")
        assert tracker.close(HANGS), tracker.problem
    (run,) = place.runs("sweep-1", "sweep")
    assert run.data.tags["fedcore.sweep"] == "sweep-1" and run.data.metrics == {"epsilon_all_cells": 2.5}
    assert run.data.tags["mlflow.note.content"] == "what it cost"
    shown = json.loads(run.data.tags["mlflow.loggedArtifacts"])
    assert shown == [{"path": name, "type": "table"} for name in tables]
    assert len(place.points(run, "epsilon_all_cells")) == 1
    folder = Path(place.client.download_artifacts(run.info.run_id, "", str(tmp_path)))
    table = json.loads((folder / "table.json").read_text())
    assert table == {"columns": ["method", "error"], "data": [["a", 0.1], ["b", 0.2]]}
    assert (folder / "error.png").read_bytes() == b"picture"


def test_runs_are_in_the_experiment_of_their_name_and_stay_where_they_were_made(place, run_id):
    for named in ("first name", "second name"):  # the second as a driver that calls it otherwise
        tracker = place.tracker()
        run = tracker.begin(run_id, named, "one", {}, {})
        run.begin_phase(1, {})
        run.end_phase(1, {"epsilon_accounted": 0.5}, MODEL)
        run.finish("FINISHED", model=MODEL)
        assert tracker.close(HANGS), tracker.problem
    assert place.client.get_experiment_by_name("second name") is None
    made = place.client.get_experiment_by_name("first name").experiment_id
    found = place.client.search_runs([made], f"tags.`fedcore.run_id` = '{run_id}'")
    assert sorted(each.data.tags["fedcore.kind"] for each in found) == ["experiment", "phase"]
    assert len(place.client.search_logged_models([made])) == 2
    assert run.address(0) == (int(made), next(r.info.run_id for r in found if r.data.tags["fedcore.kind"] != "phase"))


def test_a_cell_of_two_sweeps_is_found_by_the_filter_of_either(place):
    cell, other = next(fresh_id), next(fresh_id)
    tracker = place.tracker()
    for sweep, cells in (("s-1", [cell]), ("s-2", [cell, other])):
        view = View(sweep, sweep, ("params.`step`",), f"tags.`{cell_tag(sweep)}` = 'yes'")
        tracker.begin_sweep(sweep, "sweeps", {}, view, cells)
        if sweep == "s-1":
            tracker.begin(cell, "sweeps", "cell", {}, {cell_tag(sweep): "yes"}).finish("FINISHED")
            tracker.begin(other, "sweeps", "other", {}, {}).finish("FINISHED")
        tracker.finish_sweep("FINISHED", view, {})
    assert tracker.close(HANGS), tracker.problem
    experiment = place.client.get_experiment_by_name("sweeps")
    by_filter = {}
    for sweep in ("s-1", "s-2"):
        kept = json.loads(experiment.tags[f"mlflow.sharedViewState.{sweep}"])
        state = json.loads(kept["state"])
        assert kept["name"] == sweep and state["selectedColumns"] == ["params.`step`"]
        found = place.client.search_runs([experiment.experiment_id], state["searchFilter"])
        by_filter[sweep] = {run.data.tags["fedcore.run_id"] for run in found}
    assert by_filter == {"s-1": {cell}, "s-2": {cell, other}}


def test_columns_that_find_no_room_in_a_view_are_left_out(place):
    tracker = place.tracker()
    columns = tuple(f"params.`{'k' * 90}{number}`" for number in range(100))
    tracker.begin_sweep("s-3", "wide", {}, View("s-3", "s-3", columns))
    assert tracker.close(HANGS), tracker.problem
    text = place.client.get_experiment_by_name("wide").tags["mlflow.sharedViewState.s-3"]
    kept = json.loads(json.loads(text)["state"])["selectedColumns"]
    assert 40 < len(kept) < 60 and kept == list(columns[: len(kept)]) and len(text) <= 5000


@pytest.mark.slow
@pytest.mark.minutes
def test_two_processes_write_to_a_store_that_neither_found(tmp_path):
    place = Place(tmp_path)
    script = (
        "import sys; from pathlib import Path; sys.path.insert(0, str(Path(sys.argv[1])))\n"
        "from tests.tasks.test_tracking import Place, drive\n"
        "tracker = Place(Path(sys.argv[2])).tracker(); drive(tracker, sys.argv[3])\n"
        "sys.exit(0 if tracker.close(600) else tracker.problem)\n"
    )
    project = Path(__file__).parents[2]
    command = [sys.executable, "-c", script, str(project), str(tmp_path)]
    both = [
        subprocess.Popen([*command, name], cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for name in ("one", "two")
    ]
    for process in both:
        out, err = process.communicate(timeout=2 * HANGS)
        assert process.returncode == 0, err.decode()
        assert (out, err) == (b"", b"")  # MLflow too prints nothing on the terminal
    check_whole(place, "one")
    check_whole(place, "two")


def test_importing_tracking_does_not_import_mlflow():
    script = "import sys, tasks.tracking.tracker, tasks.tracking_stores; sys.exit('mlflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[2]).returncode == 0


def test_the_thread_ends(place, run_id):
    before = set(threading.enumerate())  # those of earlier tests may end meanwhile
    tracker = place.tracker()
    assert tracker.close(HANGS)
    assert set(threading.enumerate()) <= before


def test_the_input_example_is_made_up(place, run_id):
    tracker = place.tracker()
    drive(tracker, run_id)
    assert tracker.close(HANGS), tracker.problem
    (parent,) = place.runs(run_id, "experiment")
    (model,) = place.client.search_logged_models([parent.info.experiment_id], f"source_run_id = '{parent.info.run_id}'")
    from mlflow.artifacts import download_artifacts
    from mlflow.models import Model

    folder = Path(download_artifacts(artifact_uri=model.artifact_location))
    assert json.loads((folder / "input_example.json").read_text())["data"] == [[0.0, 0.0]]
    signature = Model.load(str(folder)).signature
    assert signature.inputs.input_names() == ["age", "dose"]
    assert {str(kind) for kind in signature.inputs.input_types()} == {"DataType.double"}


@pytest.mark.parametrize("classes", [("no", "yes"), (0, 1), (3, "even")])
@pytest.mark.parametrize("bias", [True, False])
def test_the_estimator_predicts_the_sign_of_the_predictor(classes, bias):
    rng = np.random.default_rng(1)
    raw = rng.normal(size=(200, 3)) * 5
    w = rng.normal(size=3 + bias)
    model = PhaseModel(w, bias, ("a", "b", "c"), classes, divide_by=4.0, feature_bound=0.5)
    X = prepare_records(raw, np.zeros(200), bias, 0.5, 4.0).X
    expected = [str(classes[int(z >= 0)]) for z in X @ w]
    assert [str(label) for label in model.estimator().predict(model.example().iloc[[0] * 200] * 0 + raw)] == expected


def test_a_model_of_zeros_predicts_as_training_counts_it():
    model = PhaseModel(np.zeros(2), True, ("a",), (0, 1))
    assert model.estimator().predict(model.example()).tolist() == [1]


def test_the_estimator_of_a_real_label_scales_records_as_training_does():
    rng = np.random.default_rng(2)
    raw, w = rng.normal(size=(50, 3)) * 5, rng.normal(size=4)
    model = PhaseModel(w, True, ("a", "b", "c"), None, divide_by=4.0, feature_bound=0.5)
    expected = prepare_records(raw, np.zeros(50), True, 0.5, 4.0).X @ w
    np.testing.assert_array_equal(model.estimator().predict(raw), expected)


@pytest.mark.parametrize("bias", [True, False])
def test_the_estimator_of_projected_records_takes_raw_ones(bias):
    rng = np.random.default_rng(3)
    raw, w = rng.normal(size=(200, 3)) * 5 + 7, rng.normal(size=2 + bias)
    projection = Projection.fit([raw[:50] / 4.0], 2)
    model = PhaseModel(w, bias, ("a", "b", "c"), (0, 1), 4.0, 0.5, projection)
    X = prepare_records(raw, np.zeros(200), bias, 0.5, 4.0, projection).X
    expected = (X @ w >= 0).astype(int).tolist()
    assert 0 < sum(expected) < 200
    assert model.estimator().predict(model.example().iloc[[0] * 200] * 0 + raw).tolist() == expected


def test_a_projection_fits_its_model():
    projection = Projection.fit([np.eye(3)], 2)
    with pytest.raises(ValueError, match=r"w has shape \(4,\)"):
        PhaseModel(np.zeros(4), True, ("a", "b", "c"), (0, 1), projection=projection)
    with pytest.raises(ValueError, match="not built"):
        PhaseModel(np.zeros(3), True, ("a", "b", "c"), None, projection=projection)


def test_a_model_of_another_width_is_refused():
    with pytest.raises(ValueError, match=r"w has shape \(2,\)"):
        PhaseModel(np.zeros(2), True, ("a", "b"), (0, 1))


@pytest.mark.slow
@pytest.mark.minutes
@pytest.mark.parametrize("real_label", [False, True])
def test_mlflow_models_predict_serves_the_model(place, run_id, tmp_path, real_label):
    classes = None if real_label else ("no", "yes")
    model = PhaseModel(W, True, ("age", "dose"), classes, divide_by=4.0, feature_bound=0.5)
    tracker = place.tracker()
    run = tracker.begin(run_id, "tests", "served", {}, {})
    run.finish("FINISHED", model=model, register_as=f"model-{run_id}")
    assert tracker.close(HANGS), tracker.problem
    raw = np.array([[4.0, 1.0], [1.0, 4.0], [-3.0, 0.5], [2.0, 2.0]])
    given, answer = tmp_path / "input.json", tmp_path / "output.json"
    given.write_text(json.dumps({"dataframe_split": {"columns": ["age", "dose"], "data": raw.tolist()}}))
    uri = f"runs:/{run.address(0).id}/model" if real_label else f"models:/model-{run_id}/1"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "mlflow",
            "models",
            "predict",
            "-m",
            uri,
            "-i",
            str(given),
            "-t",
            "json",
            "-o",
            str(answer),
            "--env-manager",
            "local",
        ],
        check=True,
        timeout=2 * HANGS,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        env=os.environ | {"MLFLOW_TRACKING_URI": place.uri},
    )
    predictor = prepare_records(raw, np.zeros(4), True, 0.5, 4.0).X @ W
    got = json.loads(answer.read_text())["predictions"]
    if real_label:
        np.testing.assert_allclose(got, predictor, rtol=1e-12)
    else:
        assert got == ["yes" if z >= 0 else "no" for z in predictor]
