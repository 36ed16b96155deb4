"""Sites that a driver has open elsewhere, and the driver that takes the run over: plain holders, without an engine."""

from __future__ import annotations

import dataclasses
import threading
import time

import numpy as np
import pytest

from fedcore.errors import SiloError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment
from fedcore.home import LedgerFolders
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.messages import Releases
from fedcore.silo.lease import MOST_AHEAD
from fedcore.silo.opening import SiteSpec
from fedcore.silo.private_silo import PrivateSilo
from tasks.workers import open_sites
from tasks.workers.holder import Holder, let_go
from tests.patience import SOON


def experiment(folder, **values: object) -> Experiment:
    config = {
        "data": {"source": "synthetic", "silos": 2, "records": 30, "features": 3, "test_records": 5},
        "privacy": {"epsilon": 3, "ledger": "sqlite"},
        "algorithm": {"name": "mbsgd", "rounds": 4},
        **values,
    }
    return Experiment.prepare(ExperimentConfig.model_validate(config), folder / "silos")


@pytest.fixture
def made(tmp_path) -> Experiment:
    return experiment(tmp_path)


@pytest.fixture
def folders(tmp_path) -> LedgerFolders:
    return LedgerFolders.below(tmp_path)


def spec_of(made: Experiment, folders: LedgerFolders, ledger: str = "sqlite") -> SiteSpec:
    spec = made.site_spec([silo.name for silo in made.plan.problem.silos], folders)
    return dataclasses.replace(spec, ledger=ledger)


def opened(made: Experiment, folders: LedgerFolders, driver: str, lease: int, ledger: str = "sqlite", **more) -> Holder:
    """A holder of this driver, its run approved."""
    holder = Holder(spec_of(made, folders, ledger).to_bytes(), driver, made.run, lease, **more)
    holder.approve(made.agreement.to_bytes(), None, made.run, lease)
    return holder


def question(made: Experiment) -> bytes:
    return made.context.query(made.config.algorithm.init(made.start())).to_bytes()


def answer(holder: Holder, made: Experiment, lease: int) -> list[tuple[str, bytes]]:
    releases = Releases.from_bytes(holder.answer(question(made), lease), made.plan.problem.objective.dim)
    return [(release.silo, release.payload.tobytes()) for release in releases]


def refused(act, *arguments, code: str = "lease") -> SiloError:
    with pytest.raises(SiloError) as caught:
        act(*arguments)
    assert caught.value.code == code, caught.value
    return caught.value


def rows(made: Experiment, folders: LedgerFolders) -> list[int]:
    """Number of the run's releases in each ledger."""
    found = []
    for source in spec_of(made, folders).sources:
        ledger = SqliteLedger(source.name, *folders.of(source.version, source.name))
        found.append(len(ledger.rows(made.run)))
        ledger.close()
    return found


def test_who_takes_a_run_over_has_its_ledgers_at_once_and_the_older_is_refused_everything(made, folders):
    older = opened(made, folders, "older", 5)
    given = answer(older, made, 5)
    assert let_go(folders, made.run, 6) == 1
    began = time.monotonic()
    newer = opened(made, folders, "newer", 6)
    assert time.monotonic() - began < 4, "it waited for a lock"
    assert answer(newer, made, 6) == given
    late = (
        (older.answer, question(made), 5),
        (older.accounts, made.run, 5),
        (older.close_run, made.run, 5),
        (older.end_run, made.run, 5),
        (older.simulated, made.run, b"", 5),
        (older.restore, made.run, b"", 5),
        (older.approve, made.agreement.to_bytes(), None, made.run, 5),
        (opened, made, folders, "older", 5),
        (opened, made, folders, "older again", 5),
    )
    for act, *arguments in late:
        refused(act, *arguments)
    # A driver without a lease, or with an invented one, is not the newest either.
    refused(newer.answer, question(made))
    refused(newer.answer, question(made), 7, code="plan")
    newer.close_run(made.run, 6)
    newer.close()
    older.close()
    assert rows(made, folders) == [1, 1]


def test_a_process_that_never_heard_of_the_newer_lease_refuses_the_older(made, folders):
    """A worker that was started again: what it knows is in the ledgers."""
    opened(made, folders, "newer", 6).close()
    open_sites._newest.clear()
    refused(opened, made, folders, "older", 5)
    open_sites.let_go(("nobody's", made.run), 9)  # of another home
    opened(made, folders, "newer", 6).close()


@pytest.mark.parametrize("where", ["answer", "approve", "close"])
def test_what_an_older_driver_is_in_the_middle_of_is_not_committed(made, folders, monkeypatch, where):
    """The end of a site does not wait for its answer."""
    within, go_on, real = threading.Event(), threading.Event(), PrivateSilo._view
    older = opened(made, folders, "older", 5) if where != "approve" else None
    if where == "answer":
        monkeypatch.setattr(PrivateSilo, "_view", lambda silo, *rest: _paused(within, go_on) or real(silo, *rest))
        act, arguments = older.answer, (question(made), 5)
    elif where == "close":
        closing = PrivateSilo.close_run
        monkeypatch.setattr(PrivateSilo, "close_run", lambda silo, run: _paused(within, go_on) or closing(silo, run))
        act, arguments = older.close_run, (made.run, 5)
    else:
        older = Holder(spec_of(made, folders).to_bytes(), "older", made.run, 5)
        approving = PrivateSilo.approve
        monkeypatch.setattr(PrivateSilo, "approve", lambda *silo: _paused(within, go_on) or approving(*silo))
        act, arguments = older.approve, (made.agreement.to_bytes(), None, made.run, 5)
    messages: list[SiloError] = []

    def asked() -> None:
        try:
            act(*arguments)
        except SiloError as error:
            messages.append(error)

    thread = threading.Thread(target=asked)
    thread.start()
    assert within.wait(SOON)
    monkeypatch.undo()
    began = time.monotonic()
    let_go(folders, made.run, 6)
    newer = opened(made, folders, "newer", 6)
    assert time.monotonic() - began < 4
    go_on.set()
    thread.join(SOON)
    assert [error.code in ("lease", "ledger") for error in messages] == [True]
    assert [account.releases for account in newer.accounts(made.run, 6)] == [0, 0]
    answer(newer, made, 6)
    newer.close()
    assert rows(made, folders) == [1, 1]


def _paused(within: threading.Event, go_on: threading.Event) -> None:
    if not within.is_set():
        within.set()
        go_on.wait(SOON)


def test_a_site_that_is_being_opened_when_its_run_is_taken_over_is_closed_again(made, folders, monkeypatch):
    within, go_on, codes = threading.Event(), threading.Event(), []
    import tasks.workers.holder

    real = tasks.workers.holder.open_site

    def slow(*arguments, **options):
        within.set()
        go_on.wait(SOON)
        return real(*arguments, **options)

    monkeypatch.setattr(tasks.workers.holder, "open_site", slow)

    def open_it() -> None:
        try:
            Holder(spec_of(made, folders).to_bytes(), "older", made.run, 5)
        except SiloError as error:
            codes.append(error.code)

    thread = threading.Thread(target=open_it)
    thread.start()
    assert within.wait(SOON)
    monkeypatch.undo()
    let_go(folders, made.run, 6)
    go_on.set()
    thread.join(SOON)
    assert codes == ["lease"]
    opened(made, folders, "newer", 6).close()


@pytest.mark.parametrize("ledger", ["memory", "sqlite"])
def test_the_other_runs_of_a_site_go_on(tmp_path, folders, ledger):
    """The runs of a sweep share a site; another driver takes over one of them."""
    one, other = (experiment(tmp_path, algorithm={"name": "mbsgd", "rounds": rounds}) for rounds in (4, 5))
    shared = opened(one, folders, "sweep", 5, ledger)
    shared.approve(other.agreement.to_bytes(), None, other.run, 5)
    given = answer(shared, other, 5)
    assert let_go(folders, one.run, 6) == 1
    refused(shared.answer, question(one), 5)
    assert answer(shared, other, 5) == given
    assert [account.releases for account in shared.accounts(other.run, 5)] == [1, 1]
    if ledger == "memory":
        opened(one, folders, "newer", 6, ledger).close()
    shared.end_run(other.run, 5)
    shared.close()
    assert ledger == "memory" or rows(one, folders) == [0, 0]


def test_another_homes_run_of_the_same_id_goes_on(tmp_path, made, folders):
    theirs = LedgerFolders.below(tmp_path / "their home")
    mine, other = opened(made, folders, "mine", 5), opened(made, theirs, "theirs", 4)
    assert let_go(theirs, made.run, 6) == 1
    answer(mine, made, 5)
    refused(other.answer, question(made), 4)
    mine.close()


@pytest.mark.parametrize("lease", [-1, 1.5, True, "5", None, 2**63, 10**30], ids=repr)
def test_a_lease_that_nobody_takes_is_refused_and_locks_nobody_out(made, folders, lease):
    holder = Holder(spec_of(made, folders).to_bytes(), "driver")
    refused(holder.approve, made.agreement.to_bytes(), None, "", lease)
    now = int(time.time() * 1000)
    honest = opened(made, folders, "honest", now)
    answer(honest, made, now)
    honest.close()


def test_a_lease_may_be_ahead_of_the_silos_clock_by_a_day_at_most(made, folders):
    holder = Holder(spec_of(made, folders).to_bytes(), "driver")
    ahead = int((time.time() + MOST_AHEAD.total_seconds()) * 1000)
    refusal = refused(holder.approve, made.agreement.to_bytes(), None, "", ahead + 60_000)
    assert "more than a day ahead of its clock" in refusal.sentence
    opened(made, folders, "driver", ahead - 60_000).close()


@pytest.mark.parametrize("case", ["dropped", "released by Dask", "never seen"])
def test_a_site_without_a_holder_releases_its_ledgers(made, folders, monkeypatch, case):
    """Also if the site is still referenced: Dask stores errors with their frames, and sites are in reference cycles."""
    alive = [case != "never seen"]
    monkeypatch.setattr(open_sites, "FIRST", 0.5)
    holder = opened(made, folders, "gone", 5, is_alive=None if case == "dropped" else lambda holder: alive[0])
    if case != "never seen":
        time.sleep(2.5 * open_sites.EVERY)
        answer(holder, made, 5)
    if case == "dropped":
        del holder
    alive[0] = False
    began = time.monotonic()
    newer = Holder(spec_of(made, folders).to_bytes(), "another")  # of another run, so no driver called `let_go`
    assert time.monotonic() - began < 5 * open_sites.EVERY
    newer.close()
    assert np.all(np.array(rows(made, folders)) == (0 if case == "never seen" else 1))
