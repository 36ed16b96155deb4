"""MLflow goes away while a run trains: the rounds go on, and its metrics catch up, each once.

tests/tasks/test_tracking.py has the writer by itself: a store that is away at first, locked, or never comes.
"""

from __future__ import annotations

import hashlib
import sqlite3
import time

import pytest
from mlflow import MlflowClient

from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment
from fedcore.federation.rounds import rounds
from fedcore.home import Home, LedgerFolders
from flows.driver.session import Session
from flows.runs import store_path
from flows.training import train
from tasks.run_file import read_meta
from tests.patience import HANGS

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.minutes]
ROUNDS = 40


def config() -> ExperimentConfig:
    return ExperimentConfig.model_validate(
        {
            "name": "without-mlflow",
            "cluster": {"backend": "in-process"},
            "data": {"source": "synthetic", "silos": 2, "records": 60, "features": 5, "test_records": 40},
            "algorithm": {"name": "mbsgd", "rounds": ROUNDS},
            "privacy": {"epsilon": 3},
        }
    )


def test_rounds_go_on_while_mlflow_is_gone_and_metrics_catch_up_without_duplicates(tmp_path, monkeypatch):
    """Another connection locks the database from round 5 on, until training has ended and its end was queued."""
    monkeypatch.setenv("FEDCORE_HOME", str(tmp_path / "home"))
    home, made = Home.current().make(), config()
    waiting, taken = [], []

    def all_rounds(training) -> None:
        while training.phase is not None:
            if training.round == 5:
                assert session.tracker.flush(HANGS)
                # Opened only now: MLflow's writer made the file under another name first.
                taken.append(sqlite3.connect(home.root / "mlflow.db", isolation_level=None, timeout=HANGS))
                taken[0].execute("BEGIN EXCLUSIVE")
            training.advance()
        waiting.append(session.tracker.flush(2.0))

    with Session.of_driver(home) as session:
        result = train(made, session, all_rounds)
        # The run is finished on disk although MLflow has little of it.
        assert waiting == [False]
        meta = read_meta(store_path(home, result.run))
        assert meta["state"] == "FINISHED" and "tracked" not in meta
        until = time.monotonic() + HANGS
        while session.tracker.problem is None:  # SQLite waits for some seconds before it complains
            assert time.monotonic() < until
            time.sleep(0.1)
        assert "wait to be written to MLflow" in session.tracker.problem
        taken[0].execute("ROLLBACK")
        taken[0].close()
        assert session.tracker.flush(HANGS)
    assert "tracked" in read_meta(store_path(home, result.run))

    client = MlflowClient(tracking_uri=home.mlflow_uri, registry_uri=home.mlflow_uri)
    experiments = [each.experiment_id for each in client.search_experiments()]
    (parent,) = client.search_runs(experiments, "tags.`fedcore.kind` = 'experiment'")
    (phase,) = client.search_runs(experiments, "tags.`fedcore.kind` = 'phase'")
    assert (parent.info.status, phase.info.status) == ("FINISHED", "FINISHED")
    for key in ("test/error", "system/round_seconds", "communication/floats_up"):
        steps = [point.step for point in client.get_metric_history(phase.info.run_id, key)]
        assert sorted(steps) == list(range(1, ROUNDS + 1))
    assert parent.data.metrics["test_error"] == result.test_error

    floats = [point.value for point in client.get_metric_history(phase.info.run_id, "communication/floats_up")]
    # By hand: 2 silos send 5 weights and a bias in each round.
    assert sorted(floats) == [12.0 * round for round in range(1, ROUNDS + 1)]

    # The weights are those of a plain loop without any tracking.
    experiment = Experiment.prepare(made, tmp_path / "silos")
    backend = experiment.in_process(LedgerFolders.below(tmp_path))
    backend.open()
    *_, (_, _, last) = rounds(experiment.context, made.algorithm.init(experiment.start()), backend.ask)
    backend.close()
    assert hashlib.sha256(made.algorithm.output(last).tobytes()).hexdigest() == result.weights_sha256
