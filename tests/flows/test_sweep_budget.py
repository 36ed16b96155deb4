"""What a sweep costs when its cells ended in different ways."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from fedcore.accounting.composition import spent
from fedcore.accounting.events import GaussianRelease
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import make_plan
from fedcore.experiment.identity import SCHEMA, run_id
from fedcore.home import Home
from fedcore.messages import Receipt, kept
from flows.drive import drive
from flows.runs import store_path
from flows.session import Session
from flows.sweep_budget import sweep_totals, totals_sentence
from tasks.run_store import RunStore
from tasks.training import Training


def cell(epsilon: float, **sections: object) -> ExperimentConfig:
    values = {
        "name": "cell", "data": {"source": "synthetic", "silos": 3, "records": 50, "features": 4, "test_records": 10},
        "algorithm": {"name": "mbsgd", "rounds": 6}, "privacy": {"epsilon": epsilon}, **sections,
    }  # fmt: skip
    return ExperimentConfig.model_validate(values)


def begin(home: Home, config: ExperimentConfig) -> None:
    path = store_path(home, run_id(config))
    path.parent.mkdir(parents=True)
    store = RunStore(path)
    store.set_meta(state="RUNNING", parameters=config.model_dump_json(), rounds=6, schema=SCHEMA)
    store.close()


def test_a_cell_that_was_begun_counts_in_full_and_others_not_at_all(tmp_path):
    home = Home(tmp_path).make()
    begun, waiting = cell(2.0), cell(8.0)
    assert sweep_totals(home, [begun, waiting]) == [] and totals_sentence([]) == "No silo was asked."
    begin(home, begun)
    totals = sweep_totals(home, [begun, waiting])
    assert [total.cells for total in totals] == [1, 1, 1]
    for total in totals:
        assert total.epsilon == pytest.approx(make_plan(begun).silo_epsilon(total.silo), rel=1e-9)
        assert total.epsilon == pytest.approx(2.0, rel=1e-9)


def test_receipts_that_are_missing_lower_no_total(tmp_path):
    """Of silos drawn now and then, each is charged for its own rounds; in full where a file has fewer receipts."""
    home = Home(tmp_path).make()
    config = cell(
        2.0, participation={"silos_per_round": 2}, cluster={"backend": "in-process"}, tracking={"mlflow": False}
    )

    def all_rounds(training: Training) -> None:
        while training.phase is not None:
            training.advance()

    with Session.of_driver(home) as session:
        result = drive(config, session, all_rounds)
    full = make_plan(config)
    totals = sweep_totals(home, [config])
    drawn = {silo.silo: silo for silo in result.silos}
    assert sorted(silo.releases for silo in result.silos)[0] < full.rounds
    for total in totals:
        assert total.epsilon == pytest.approx(drawn[total.silo].epsilon, rel=1e-9)
    with closing(sqlite3.connect(store_path(home, result.run))) as db, db:
        db.execute("DELETE FROM receipts WHERE round = (SELECT MAX(round) FROM receipts)")
    more = sweep_totals(home, [config])
    with closing(sqlite3.connect(store_path(home, result.run))) as db, db:
        db.execute("UPDATE receipts SET kept = x'00' WHERE round = (SELECT MAX(round) FROM receipts)")
    damaged = sweep_totals(home, [config])
    assert all(total.epsilon >= before.epsilon for total, before in zip(damaged, more, strict=True))
    assert [total.epsilon >= before.epsilon for total, before in zip(more, totals, strict=True)] == [True] * 3
    for address in (("another", 1, 1), (full.problem.silos[0].name, 2, 1), (full.problem.silos[0].name, 1, 999)):
        with closing(sqlite3.connect(store_path(home, result.run))) as db, db:
            foreign = kept([Receipt(*address, bytes(32), bytes(32))])
            db.execute("UPDATE receipts SET kept = ? WHERE round = 1", (foreign,))
        for total in sweep_totals(home, [config]):
            assert total.epsilon == pytest.approx(full.silo_epsilon(total.silo), rel=1e-9), address
    assert max(total.epsilon for total in more) == pytest.approx(full.silo_epsilon(more[0].silo), rel=1e-9)


def test_four_equal_cells_cost_what_one_with_half_the_noise_would(tmp_path):
    home = Home(tmp_path).make()
    cells = [cell(1.0, repetition=repetition) for repetition in range(4)]
    for config in cells:
        begin(home, config)
    (one, *_), (four, *_) = sweep_totals(home, cells[:1]), sweep_totals(home, cells)
    events = make_plan(cells[0]).silo_events(one.silo)
    halved = [GaussianRelease(e.start, e.stop, e.sensitivity, e.sigma / 2, e.count) for e in events]
    assert four.epsilon == pytest.approx(spent(halved, one.delta), rel=1e-9)
    assert four.epsilon > 2 * one.epsilon
