"""Workers of Dask that are killed, stopped or cut off: their silos are opened again, and each release is there once."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time

import dask
import numpy as np
import pytest
from distributed.process import AsyncProcess

from fedcore.errors import InputError, SiloError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.statistics_run import StatisticsRun
from fedcore.federation.rounds import rounds
from fedcore.home import LedgerFolders
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.messages import Receipt
from tasks.run_store import RunStore
from tasks.statistics import release
from tasks.workers import nodes
from tasks.workers.cluster import local_cluster, worker_addresses
from tasks.workers.sites import DaskSites
from tests.patience import HANGS
from tests.tasks.five_silos import experiment, train

pytestmark = pytest.mark.slow


def test_a_lost_worker_is_replaced_and_asked_again(tmp_path):
    made = experiment(tmp_path, "mbsgd")
    expected = train(made, made.in_process(LedgerFolders.below(tmp_path)))
    with local_cluster(2) as client:
        sites = DaskSites(client, made, LedgerFolders.below(tmp_path), deadline=HANGS)
        sites.open()
        receipts = []
        sites.restore(made.run, receipts)
        state = made.config.algorithm.init(made.start())
        for query, releases, after in rounds(made.context, state, sites.ask):
            receipts += releases.receipts
            state = after
            if query.round == 3:
                pids = client.run(os.getpid)
                os.kill(pids[worker_addresses(client)["site-0"]], signal.SIGKILL)
        np.testing.assert_array_equal(made.config.algorithm.output(state), expected)
        assert sites.recovered == 1
        # The new holder's ledgers show what the lost one had released, each release once.
        assert sum(account.releases for account in sites.accounts(made.run)) == 3 * made.plan.rounds
        sites.close()


@pytest.mark.minutes
def test_a_worker_that_vanishes_as_its_holder_is_placed_gets_it_when_it_is_back(tmp_path, monkeypatch):
    """The scheduler loses the worker while its address is still listed, and the holder is submitted afterwards.

    Placed by name, it went to the first worker of the host, and locked the ledgers that the next worker needed.
    """
    made = experiment(tmp_path, "mbsgd", privacy={"epsilon": 3, "ledger": "sqlite"})
    with local_cluster(2) as client:
        sites = DaskSites(client, made, LedgerFolders.below(tmp_path), deadline=HANGS)
        sites.open()
        query = made.context.query(made.config.algorithm.init(made.start()))
        first = sites.ask(query).receipts
        listed, pids = worker_addresses(client), client.run(os.getpid)
        asked = []

        def outdated(client) -> dict[str, str]:
            asked.append(client)
            while len(asked) == 1 and worker_addresses(client).get("site-1") == listed["site-1"]:
                time.sleep(0.005)
            return listed if len(asked) == 1 else worker_addresses(client)

        monkeypatch.setattr("tasks.workers.places.worker_addresses", outdated)
        os.kill(pids[listed["site-1"]], signal.SIGKILL)
        assert sites.ask(query).receipts == first
        assert len(asked) > 1 and sites.recovered == 1
        found = worker_addresses(client)
        for place in sites._places:
            assert client.who_has([place.future]) == {place.future.key: (found[place.worker],)}
        sites.close()


def test_a_worker_that_dies_after_it_joined_and_before_its_nanny_runs_is_made_again(monkeypatch):
    """Dask's nanny ignores a death at this moment, and waits for ever for a worker that it does not start."""
    real, killed = nodes.PatientNanny.start_unsafe, []

    async def start(nanny):
        await real(nanny)
        if nanny.name == "site-1":
            killed.append(nanny.pid)
            os.kill(nanny.pid, signal.SIGKILL)
            while nanny.pid is not None:
                await asyncio.sleep(0.01)
        return nanny

    monkeypatch.setattr(nodes.PatientNanny, "start_unsafe", start)
    with local_cluster(2) as client:
        assert set(worker_addresses(client)) == {"site-0", "site-1"}
        assert killed and killed[0] not in client.run(os.getpid).values()


@pytest.mark.parametrize("error", [EOFError(), ConnectionRefusedError("refused")])
def test_a_cluster_whose_workers_cannot_be_forked_says_why(monkeypatch, error):
    async def start(process):
        raise error

    monkeypatch.setattr(AsyncProcess, "start", start)
    monkeypatch.setattr(nodes, "FORK_AGAIN", 0.001)
    message = r"EOFError\(\)" if isinstance(error, EOFError) else "refused"
    with pytest.raises(InputError, match=f"the local cluster did not start \\({message}\\)"), local_cluster(2):
        pass


def test_workers_that_are_gone_at_the_start_of_a_run_are_waited_for(tmp_path):
    made = experiment(tmp_path, "mbsgd")
    expected = train(made, made.in_process(LedgerFolders.below(tmp_path / "alone")))
    with local_cluster(2) as client:
        lost = set(worker_addresses(client).values())
        for pid in client.run(os.getpid).values():
            os.kill(pid, signal.SIGKILL)
        while lost & set(worker_addresses(client).values()):
            time.sleep(0.005)
        sites = DaskSites(client, made, LedgerFolders.below(tmp_path), deadline=HANGS)
        assert [place.worker for place in sites._places] == ["site-0", "site-1"]
        np.testing.assert_array_equal(train(made, sites), expected)
        sites.close()


@pytest.mark.minutes
def test_a_worker_that_dies_again_with_its_new_holder_is_replaced_again(tmp_path):
    """The kill comes two milliseconds after the holder was made: Dask has it, and the driver has no reply yet."""
    preload, made_before = tmp_path / "dying.py", tmp_path / "made"
    preload.write_text(f"""
import os, pathlib, signal, threading
import tasks.workers.holder
def dask_setup(worker):
    real, path = tasks.workers.holder.Holder.__init__, pathlib.Path({str(made_before)!r})
    def init(*args):
        real(*args)
        if worker.name == "site-1":
            with open(path, "a") as file:
                file.write("+")
            if path.read_text() == "++":
                threading.Timer(0.002, os.kill, (os.getpid(), signal.SIGKILL)).start()
    tasks.workers.holder.Holder.__init__ = init
""")
    made = experiment(tmp_path, "mbsgd", privacy={"epsilon": 3, "ledger": "sqlite"}, participation={})
    with dask.config.set({"distributed.worker.preload": [str(preload)]}), local_cluster(2) as client:
        sites = DaskSites(client, made, LedgerFolders.below(tmp_path), deadline=HANGS)
        sites.open()
        query = made.context.query(made.config.algorithm.init(made.start()))
        first = sites.ask(query).receipts
        os.kill(client.run(os.getpid)[worker_addresses(client)["site-1"]], signal.SIGKILL)
        assert sites.ask(query).receipts == first
        assert made_before.read_text() == "+++"
        sites.close()


@pytest.mark.minutes
@pytest.mark.parametrize("ledger", ["memory", "sqlite"])
def test_a_lost_connection_to_a_worker_that_lives_costs_a_second_holder_and_nothing_else(tmp_path, ledger):
    """Cut while a silo answers: the answer is committed, does not arrive, and the first holder has the ledger open."""
    preload, answering, cut = (tmp_path / name for name in ("waiting.py", "answering", "cut"))
    preload.write_text(f"""
import pathlib, time
import fedcore.messages, fedcore.silo.site
def dask_setup(worker):
    real = fedcore.silo.site.Site._answers
    def answers(site, query, *rest):
        given = real(site, query, *rest)
        if "silo-003" in site.silos and query.round == 3 and not pathlib.Path({str(cut)!r}).exists():
            pathlib.Path({str(answering)!r}).touch()
            while not pathlib.Path({str(cut)!r}).exists():
                time.sleep(0.01)
            time.sleep(0.3)  # the second holder comes meanwhile
        return given
    fedcore.silo.site.Site._answers = answers
""")
    made = experiment(tmp_path, "mbsgd", privacy={"epsilon": 3, "ledger": ledger}, participation={})
    expected = train(made, made.in_process(LedgerFolders.below(tmp_path / "alone")))
    with dask.config.set({"distributed.worker.preload": [str(preload)]}), local_cluster(2) as client:
        address, pids = worker_addresses(client)["site-1"], client.run(os.getpid)
        sites = DaskSites(client, made, LedgerFolders.below(tmp_path), deadline=HANGS)

        def disconnect() -> None:
            while not answering.exists():
                time.sleep(0.01)
            client.loop.add_callback(client.rpc.remove, address)
            cut.touch()

        cutting = threading.Thread(target=disconnect, daemon=True)
        cutting.start()
        np.testing.assert_array_equal(train(made, sites), expected)
        cutting.join(timeout=HANGS)
        assert sites.recovered == 1 and client.run(os.getpid) == pids
        assert [account.releases for account in sites.accounts(made.run)] == [made.plan.rounds] * 5
        # Each answer was computed once: the second holder has the ledger of the first, in memory too.
        assert [account.computed for account in sites.accounts(made.run)] == [made.plan.rounds] * 5
        sites.close()
        if ledger == "sqlite":  # no process has it open any more
            for version, silo in LedgerFolders.below(tmp_path).found():
                SqliteLedger(silo, *LedgerFolders.below(tmp_path).of(version, silo)).close()


def test_a_worker_lost_after_it_released_moments_remembers_them(tmp_path):
    """Its ledger was in memory, and no query is repeated: the driver restores the record of its releases."""
    values = {
        "data": {"source": "digits", "pca": {"dimension": 4, "constants": "released", "epsilon": 3}},
        "privacy": {"epsilon": 2},
        "algorithm": {"name": "mbsgd"},
    }
    made = StatisticsRun.prepare(ExperimentConfig.model_validate(values), tmp_path / "silos")
    store = RunStore(tmp_path / "moments.sqlite")
    with local_cluster(2) as client:

        class LostAfterwards(DaskSites):
            def ask(self, query):
                releases = super().ask(query)
                os.kill(client.run(os.getpid)[worker_addresses(client)["site-1"]], signal.SIGKILL)
                return releases

        sites = LostAfterwards(client, made, LedgerFolders.below(tmp_path), deadline=HANGS)
        result = release(made, sites, store)
        assert sites.recovered == 1
        assert [silo.releases for silo in result.silos] == [1] * len(made.plan.problem.silos)
        sites.close()
    store.close()


@pytest.mark.minutes
def test_a_worker_that_is_long_in_coming_back_is_waited_for(tmp_path):
    """17 s and its imports, as on a busy machine; a cluster of Dask by itself gives a worker up after 15."""
    preload, was_here = tmp_path / "late.py", tmp_path / "was-here"
    preload.write_text(f"""
import pathlib, time
def dask_setup(worker):
    path = pathlib.Path({str(was_here)!r})
    if worker.name == "site-0" and path.exists():
        time.sleep(17)
    if worker.name == "site-0":
        path.touch()
""")
    made = experiment(tmp_path, "mbsgd")
    with dask.config.set({"distributed.worker.preload": [str(preload)]}), local_cluster(2) as client:
        sites = DaskSites(client, made, LedgerFolders.below(tmp_path), deadline=HANGS)
        sites.open()
        query = made.context.query(made.config.algorithm.init(made.start()))

        def ask() -> list[Receipt]:
            return sites.ask(query).receipts

        first = ask()
        os.kill(client.run(os.getpid)[worker_addresses(client)["site-0"]], signal.SIGKILL)
        assert ask() == first and sites.recovered == 1
        time.sleep(5)
        assert ask() == first and sites.recovered == 1
        sites.close()


@pytest.mark.minutes
def test_a_stopped_worker_ends_the_run_with_its_silos_named(tmp_path):
    made = experiment(tmp_path, "mbsgd", participation={"silos_per_round": 5})
    with local_cluster(2) as client:
        sites = DaskSites(client, made, LedgerFolders.below(tmp_path), deadline=HANGS)
        sites.open()
        sites._at._deadline = 5
        pids = client.run(os.getpid)
        stopped = pids[worker_addresses(client)["site-1"]]
        os.kill(stopped, signal.SIGSTOP)
        try:
            with pytest.raises(SiloError, match=r"silo-002, silo-003, silo-004.*site-1 within cluster.deadline = 5 s"):
                sites.ask(made.context.query(made.config.algorithm.init(made.start())))
        finally:
            os.kill(stopped, signal.SIGCONT)
