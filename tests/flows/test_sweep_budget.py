"""Totals of a sweep whose cells ended in different ways."""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
from contextlib import closing

import pytest

from fedcore.accounting.composition import spent
from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.filters import Cap
from fedcore.errors import SiloError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import make_plan
from fedcore.experiment.identity import SCHEMA, run_id
from fedcore.experiment.sweep import SweepConfig
from fedcore.home import Home
from fedcore.ledger.storage.known_runs import KnownRun
from fedcore.messages import Receipt, packed_receipts
from flows.driver.session import Session
from flows.launch import save_sweep_folder
from flows.reports.silo_totals import totals_sentence
from flows.runs import is_refused, store_path
from flows.sweep_budget import planned_totals, sweep_totals
from flows.sweep_files import all_totals, sweep_id
from flows.training import train
from tasks.run_store import RunStore
from tasks.training import Training
from tests.flows.driving import run
from tests.gaussian_curve import epsilon_by_hand


def cell(epsilon: float, **sections: object) -> ExperimentConfig:
    values = {
        "name": "cell",
        "data": {"source": "synthetic", "silos": 3, "records": 50, "features": 4, "test_records": 10},
        "algorithm": {"name": "mbsgd", "rounds": 6},
        "privacy": {"epsilon": epsilon},
        **sections,
    }
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
    """Drawn silos are charged for their own rounds each; in full if a file has fewer receipts."""
    home = Home(tmp_path).make()
    config = cell(
        2.0, participation={"silos_per_round": 2}, cluster={"backend": "in-process"}, tracking={"mlflow": False}
    )

    def all_rounds(training: Training) -> None:
        while training.phase is not None:
            training.advance()

    with Session.of_driver(home) as session:
        result = train(config, session, all_rounds)
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
            foreign = packed_receipts([Receipt(*address, bytes(32), bytes(32))])
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


def swept(*epsilons: float, repetitions: int = 1, **sections: object) -> SweepConfig:
    base = cell(1.0, cluster={"backend": "in-process"}, tracking={"mlflow": False}, **sections).model_dump(mode="json")
    del base["name"], base["privacy"]["epsilon"], base["repetition"]
    grid = {"privacy.epsilon": list(epsilons), "repetition": list(range(repetitions))}
    return SweepConfig(name="swept", base=base, grid=grid)


def finish(home: Home, config: ExperimentConfig) -> None:
    run(home, config)


SAMPLED = {"algorithm": {"name": "mbsgd", "rounds": 6, "batch": 5}}


def test_cells_that_are_to_come_are_part_of_the_plan_once_one_was_begun(tmp_path):
    """To stop a sweep by its results so far is to post-process the whole plan's transcript."""
    home, sweep = Home(tmp_path).make(), swept(1.0, 2.0)
    first, last = sweep.cells()
    save_sweep_folder(home, sweep)
    assert all_totals(home, sweep, []) == []
    finish(home, first)
    totals = all_totals(home, sweep, [])
    assert [(total.cells, total.in_full, total.planned) for total in totals] == [(2, 1, True)] * 3
    mu = [spent_mu(make_plan(each), totals[0].silo) for each in (first, last)]
    assert totals[0].epsilon == pytest.approx(epsilon_by_hand(math.hypot(*mu), totals[0].delta), rel=1e-6)
    sentence = totals_sentence(totals)
    assert "the 2 noised cells spend at most epsilon" in sentence and "fixed before its first answer" in sentence
    assert "1 that failed, were stopped, not tried or are to come count in full" in sentence
    finish(home, last)
    assert [total.in_full for total in all_totals(home, sweep, [])] == [0, 0, 0]
    assert "count in full" not in totals_sentence(all_totals(home, sweep, []))


def spent_mu(plan, silo: str) -> float:
    return math.sqrt(sum(event.gdp_mu_squared for event in plan.silo_events(silo)))


def test_samples_compose_as_one_plan_by_what_they_reveal_and_not_as_full_batches(tmp_path):
    home, sweep = Home(tmp_path).make(), swept(1.0, repetitions=20, **SAMPLED)
    save_sweep_folder(home, sweep)
    begin(home, sweep.cells()[0])
    total, *_ = all_totals(home, sweep, [])
    events = make_plan(sweep.cells()[0]).silo_events(total.silo)
    again = [
        GaussianRelease(e.start, e.stop, e.sensitivity, e.sigma, 20 * e.count, sampling="poisson", rate=e.rate)
        for e in events
    ]
    assert total.epsilon == pytest.approx(spent(again, total.delta), rel=2e-3)
    for each in sweep.cells()[1:]:
        begin(home, each)
    over_time = sweep_totals(home, sweep.cells())[0].epsilon
    assert 3 * total.epsilon < over_time


def test_cells_added_to_others_that_were_looked_at_are_no_plan(tmp_path):
    home, first, more = Home(tmp_path).make(), swept(1.0), swept(1.0, 2.0)
    save_sweep_folder(home, first)
    finish(home, first.cells()[0])
    assert all_totals(home, first, [])[0].planned
    save_sweep_folder(home, more)
    saved = json.loads((home.sweeps / sweep_id(more) / "sweep.json").read_text())
    assert saved["earlier"] == [run_id(first.cells()[0])]
    assert [total.planned for total in all_totals(home, more, [])] == [False] * 3
    finish(home, more.cells()[1])
    save_sweep_folder(home, more)  # a resume does not change the saved list
    totals = all_totals(home, more, [])
    assert [(total.planned, total.cells) for total in totals] == [(False, 2)] * 3
    sentence = totals_sentence(totals)
    assert "chosen over time" in sentence and "mu^2" in sentence and "at most" not in sentence
    # A sweep of an earlier version has no such list, and counts as one that was looked at.
    path = home.sweeps / sweep_id(first) / "sweep.json"
    path.write_text(json.dumps({key: value for key, value in json.loads(path.read_text()).items() if key != "earlier"}))
    assert not all_totals(home, first, [])[0].planned
    save_sweep_folder(home, first)
    assert not all_totals(home, first, [])[0].planned


def test_what_a_cap_refused_is_left_out_until_it_runs(tmp_path):
    """A total above the enforced cap would be wrong: refused cells have shown nothing."""
    home = Home(tmp_path).make()
    durable = {"ledger": "sqlite", "cap": {"epsilon": 3.0}}
    sweep = swept(1.0, 2.0, 2.5, privacy={"epsilon": 1.0, **durable})
    save_sweep_folder(home, sweep)
    finish(home, sweep.cells()[0])
    finish(home, sweep.cells()[1])
    with pytest.raises(SiloError, match="cap of epsilon 3 "):
        finish(home, sweep.cells()[2])
    totals = all_totals(home, sweep, [])
    assert [(total.planned, total.cells, total.refused, total.in_full) for total in totals] == [(True, 2, 1, 0)] * 3
    assert all(total.epsilon < 3.0 for total in totals)
    assert "; 1 more were refused before any answer and are left out" in totals_sentence(totals)
    assert sweep_totals(home, sweep.cells())[0].cells == 2
    # Refused twice and then admitted: the cell counts from its start.
    with pytest.raises(SiloError, match="cap of epsilon 3 "):
        finish(home, sweep.cells()[2])
    assert all_totals(home, sweep, [])[0].refused == 1
    raised = swept(2.5, privacy={"epsilon": 1.0, "ledger": "sqlite", "cap": {"epsilon": 9.0}}).cells()[0]
    assert run_id(raised) == run_id(sweep.cells()[2])
    finish(home, raised)
    (total, *_) = all_totals(home, sweep, [])
    assert (total.cells, total.refused) == (3, 0) and total.epsilon > 3.0
    assert Cap(9.0, total.delta).rule == "gdp"


def test_a_refusal_after_answers_leaves_nothing_out(tmp_path, monkeypatch):
    home, sweep = Home(tmp_path).make(), swept(2.0)
    (made,) = sweep.cells()
    save_sweep_folder(home, sweep)

    def dies(training: Training) -> None:
        training.advance()
        raise KeyboardInterrupt

    def refused(training: Training) -> None:
        raise SiloError("silo-0", "policy", "it has another policy now")

    for rounds, error in ((dies, KeyboardInterrupt), (refused, SiloError)):
        with Session.of_driver(home) as session, pytest.raises(error):
            train(made, session, rounds)
    monkeypatch.setattr(Training, "start", refused)
    with Session.of_driver(home) as session, pytest.raises(SiloError):
        train(made, session, dies)
    totals = all_totals(home, sweep, [])
    assert [(total.cells, total.refused, total.in_full) for total in totals] == [(1, 0, 1)] * 3


@pytest.mark.parametrize("ledgers", ["whole", "damaged", "lost", "of a former version"])
def test_a_refusal_of_a_run_whose_folder_was_deleted_leaves_nothing_out_that_a_ledger_may_know(
    tmp_path, monkeypatch, ledgers
):
    home, sweep = Home(tmp_path).make(), swept(2.0, privacy={"epsilon": 1.0, "ledger": "sqlite"})
    (made,) = sweep.cells()

    def dies(training: Training) -> None:
        training.advance()
        raise KeyboardInterrupt

    def refused(training: Training) -> None:
        raise SiloError("silo-0", "cap", "it has a smaller cap now")

    with Session.of_driver(home) as session, pytest.raises(KeyboardInterrupt):
        train(made, session, dies)
    shutil.rmtree(store_path(home, run_id(made)).parent)
    for version, silo in home.ledger_folders.found():
        ledger, _ = home.ledger_folders.of(version, silo)
        if ledgers == "damaged":
            ledger.write_bytes(b"none of SQLite's" * 100)
        elif ledgers == "lost":
            ledger.unlink()
    if ledgers == "of a former version":
        shutil.rmtree(home.silos)
    monkeypatch.setattr(Training, "start", refused)
    monkeypatch.setattr(Session, "backend", lambda *_: InProcessNothing())
    for _ in range(2):
        with Session.of_driver(home) as session, pytest.raises(SiloError, match="smaller cap"):
            train(made, session, dies)
    totals = all_totals(home, sweep, [])
    assert [(total.cells, total.refused, total.in_full) for total in totals] == [(1, 0, 1)] * 3


def test_ledgers_of_other_versions_are_read_only_after_a_refusal(tmp_path, monkeypatch):
    """There may be many: 40 versions of 50 silos delayed a run by 1.6 seconds."""
    home, sweep = Home(tmp_path).make(), swept(1.0, 2.0, privacy={"epsilon": 1.0, "ledger": "sqlite"})
    searched = []
    elsewhere = KnownRun.elsewhere
    monkeypatch.setattr(KnownRun, "elsewhere", lambda *given: searched.append(given) or elsewhere(*given))
    made, other = sweep.cells()
    run(home, made)
    assert not searched

    def refused(training: Training) -> None:
        raise SiloError("silo-0", "cap", "it has a smaller cap now")

    monkeypatch.setattr(Training, "start", refused)
    with Session.of_driver(home) as session, pytest.raises(SiloError, match="smaller cap"):
        train(other, session, refused)
    assert len(searched) == 1 and is_refused(home, run_id(other))


def test_a_refusal_behind_an_address_may_come_after_answers(tmp_path, monkeypatch):
    """Ledgers are at the sites, so that the driver cannot exclude earlier answers."""
    home, sweep = Home(tmp_path).make(), swept(2.0, privacy={"epsilon": 1.0, "ledger": "sqlite"})
    (made,) = sweep.cells()
    cluster = {"backend": "dask", "address": "tcp://127.0.0.1:1", "insecure": True}
    elsewhere = ExperimentConfig.model_validate(made.model_dump() | {"cluster": cluster})
    assert run_id(elsewhere) == run_id(made)

    def refused(training: Training) -> None:
        raise SiloError("silo-0", "cap", "it has a smaller cap now")

    monkeypatch.setattr(Training, "start", refused)
    monkeypatch.setattr(Session, "backend", lambda *_: InProcessNothing())
    with Session.of_driver(home) as session, pytest.raises(SiloError, match="smaller cap"):
        train(elsewhere, session, refused)
    totals = all_totals(home, sweep, [])
    assert [(total.cells, total.refused, total.in_full) for total in totals] == [(1, 0, 1)] * 3


class InProcessNothing:
    """Silos without any question: the run is refused at its start."""

    def close(self) -> None:
        pass


def test_cells_without_noise_are_counted_separately(tmp_path):
    home, sweep = Home(tmp_path).make(), swept(1.0)
    (private,) = sweep.cells()
    bare = cell(1.0, privacy={"trust": "none", "epsilon": None})
    begin(home, private)
    for total in planned_totals(home, [private, bare]):
        assert (total.cells, total.without_noise, total.in_full) == (2, 1, 1) and total.epsilon == math.inf
        assert total.epsilon_private == pytest.approx(1.0, rel=1e-9)


def test_many_sizes_of_silos_are_composed_on_a_coarser_grid_from_above(tmp_path, monkeypatch):
    home, sweep = Home(tmp_path).make(), swept(1.0, repetitions=5, **SAMPLED)
    begin(home, sweep.cells()[0])
    fine = planned_totals(home, sweep.cells())
    monkeypatch.setattr("flows.sweep_budget.FEW", 0)
    coarse = planned_totals(home, sweep.cells())
    for one, other in zip(fine, coarse, strict=True):
        assert one.epsilon <= other.epsilon <= 1.02 * one.epsilon


@pytest.mark.parametrize("sections, planned, cells", [({}, False, 1), (SAMPLED, True, 3)])
def test_of_what_patience_may_try_samples_are_one_plan_and_full_batches_add_up(tmp_path, sections, planned, cells):
    """The tried values depend on losses. For full batches their sum of mu^2 is exact, for samples far too large."""
    home, sweep = Home(tmp_path).make(), swept(1.0, **sections)
    base = {**sweep.base, "algorithm": {**sweep.base["algorithm"]}}
    base["algorithm"].pop("step", None)
    ladder = SweepConfig(
        name="ladder",
        base=base,
        grid={"privacy.epsilon": [1.0], "algorithm.step": [4.0, 2.0, 1.0]},
        patience={"every": 2, "limit": 1},
    )
    save_sweep_folder(home, ladder)
    begin(home, ladder.cells()[0])
    totals = all_totals(home, ladder, [])
    assert [(total.planned, total.cells) for total in totals] == [(planned, cells)] * 3
