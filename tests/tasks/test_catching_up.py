"""A tracker that is slower than rounds: what waits is bounded, the rest comes from the checkpoint, each point once."""

import threading
import time
from contextlib import closing

import pytest

from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment
from fedcore.home import LedgerFolders
from tasks import round_metrics
from tasks.mlflow.store import MlflowStore
from tasks.run_file import rows_of_phase
from tasks.run_store import RunStore
from tasks.tracking import tracker
from tasks.tracking.tracker import Tracker
from tasks.tracking_stores import tracking_store
from tasks.training import Training
from tests.patience import HANGS

PHASES, ROUNDS = 5, 12


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Experiment:
    config = ExperimentConfig.model_validate(
        {
            "data": {"source": "synthetic", "silos": 3, "records": 40, "features": 2},
            "privacy": {"epsilon": 2},
            "algorithm": {"name": "localized-mbsgd", "rounds": ROUNDS, "lam": 0.1, "step": 1},
        }
    )
    return Experiment.prepare(config, tmp_path_factory.mktemp("silos"))


class Slow:
    """MLflow's store, whose rows wait until they may be written; it records the number of rows in each call."""

    def __init__(self, monkeypatch) -> None:
        self.open, self.most = threading.Event(), 0
        self.dead: list[MlflowStore] = []
        real = MlflowStore.write_rows

        def write_rows(store, rows):
            self.most = max(self.most, len(rows))
            assert self.open.wait(HANGS)
            while store in self.dead:  # its process has ended: what waits there is lost
                time.sleep(HANGS)
            real(store, rows)

        monkeypatch.setattr(MlflowStore, "write_rows", write_rows)


@pytest.fixture
def slow(monkeypatch) -> Slow:
    monkeypatch.setattr(round_metrics, "MOST_WAITING", 6)
    monkeypatch.setattr(tracker, "PORTION", 4)
    return Slow(monkeypatch)


class Driver:
    """A run's driver, with a tracker of its own."""

    def __init__(self, made, folder, wait=True) -> None:
        self.uri = f"sqlite:///{folder / 'mlflow.db'}"
        self.tracker = Tracker(tracking_store(self.uri, folder / "artifacts"))
        self.run = self.tracker.begin(made.run, "tests", made.run, {}, {})
        self.store = RunStore(folder / "run.sqlite", wait=wait)
        backend = made.in_process(LedgerFolders.below(folder))
        self.training = Training(made, backend, self.store, self.run)
        self.training.start()

    def rounds(self, count=None) -> None:
        while self.training.phase is not None and count != 0:
            self.training.advance()
            count = None if count is None else count - 1

    def finish(self) -> None:
        self.training.finish()
        self.run.finish("FINISHED")

    def end(self) -> None:
        self.store.close()
        assert self.tracker.close(HANGS), self.tracker.problem


def check_whole(uri: str, made: Experiment, folder) -> None:
    """Every value of every round is in MLflow once, of its phase and of the run, as the checkpoint has it."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    runs = client.search_runs([client.get_experiment_by_name("tests").experiment_id])
    by_kind = {run.data.tags.get("fedcore.phase", "whole"): run.info.run_id for run in runs}
    assert len(runs) == 1 + PHASES
    with closing(RunStore(folder / "run.sqlite")) as store:
        rows = list(store.metric_rows())
    assert len(rows) == PHASES * ROUNDS
    for key in rows[0].values:
        points = {
            name: [(point.step, point.value) for point in client.get_metric_history(run, key)]
            for name, run in by_kind.items()
        }
        values = [(made.plan.position(row.phase, row.round), row.values[key]) for row in rows if key in row.values]
        if key == "system/round_seconds":  # a round that was sent, not stored, and repeated took another time
            assert sorted(step for step, _ in points["whole"]) == [position for position, _ in values]
            continue
        assert sorted(points["whole"]) == values
        for phase in range(1, PHASES + 1):
            mine = [(row.round, row.values[key]) for row in rows if row.phase == phase and key in row.values]
            assert sorted(points[str(phase)])[: len(mine)] == mine


@pytest.mark.parametrize("wait", [True, False])
def test_all_rounds_arrive_of_a_store_that_was_away_for_all_of_them(made, tmp_path, slow, wait):
    driver, waited = Driver(made, tmp_path, wait), []
    while driver.training.phase is not None:
        driver.rounds(1)
        waited.append(driver.run.waiting)
    # Besides the 6 that may wait, each phase adds four: its begin, the rounds left out, its last round, its end.
    assert max(waited) <= 6 + 4 * PHASES
    driver.finish()
    slow.open.set()
    driver.end()
    assert slow.most <= 6
    check_whole(driver.uri, made, tmp_path)


def test_a_store_that_comes_back_is_caught_up_with_in_between(made, tmp_path, slow):
    driver = Driver(made, tmp_path)
    driver.rounds(10)
    assert driver.training._tracked._left is not None
    slow.open.set()
    assert driver.tracker.flush(HANGS)
    driver.rounds(1)
    assert driver.training._tracked._left is None
    driver.rounds()
    driver.finish()
    driver.end()
    check_whole(driver.uri, made, tmp_path)


@pytest.mark.parametrize("stops", [[3], [10], [10, 20], [11, 1, 1], [12], [13, 8], [60]])
@pytest.mark.parametrize("written", [True, False])
def test_a_run_that_is_killed_and_resumed_writes_each_point_once(made, tmp_path, slow, stops, written):
    """`written`: MLflow took the waiting entries before the process end; rounds that were left out are never there."""
    for count in stops:
        driver = Driver(made, tmp_path)
        driver.rounds(count)
        driver.store.close()
        if written:
            slow.open.set()
            assert driver.tracker.flush(HANGS)
            slow.open.clear()
        else:
            slow.dead.append(driver.tracker._store)
    last = Driver(made, tmp_path)
    slow.open.set()
    last.rounds()
    last.finish()
    last.end()
    check_whole(last.uri, made, tmp_path)


def test_rounds_that_are_not_written_yet_are_waited_for_and_a_file_that_is_gone_holds_nobody_up(
    made, tmp_path, slow, monkeypatch
):
    slow.open.set()
    driver = Driver(made, tmp_path)
    driver.rounds(5)
    with pytest.raises(Exception, match="has 4 of 9 rounds so far"):
        list(rows_of_phase(tmp_path / "run.sqlite", 1, 1, 9))
    assert driver.tracker.flush(HANGS)
    driver.training._tracked._read(1, 1, 5)  # the last of them is in no checkpoint before the next round
    assert not driver.tracker.flush(0.3)
    driver.rounds(1)
    assert driver.tracker.flush(HANGS)
    monkeypatch.setattr(tracker, "MOST_READS", 2)
    driver.run.metrics_of(1, lambda: rows_of_phase(tmp_path / "gone.sqlite", 1, 1, 9), 0)
    assert driver.tracker.flush(HANGS)
    assert "LookupError: rounds of run" in driver.tracker.problem
    driver.store.close()
    driver.tracker.close(HANGS)
