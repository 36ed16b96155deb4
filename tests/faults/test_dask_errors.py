"""Real Dask workers: their errors as they arrive at the driver, and completed answers that are computed again."""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
from pathlib import Path

import dask
import numpy as np
import pytest

from fedcore.errors import SiloError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment
from fedcore.home import LedgerFolders
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.silo.opening import open_site
from fedcore.silo.site import Site
from tests.faults.one_silo import error_text, records, refusal
from tests.faults.quoting import CANARY_TEXT
from tests.patience import HANGS
from tests.registers import registered

# Dask


def guarded_experiment(folder) -> Experiment:
    config = ExperimentConfig.model_validate(
        {
            "data": {"source": "synthetic", "silos": 2, "records": 50, "features": 4, "test_records": 9},
            "privacy": {"epsilon": 2, "delta": 1e-5, "ledger": "sqlite", "noise": "guarded"},
            "algorithm": {"name": "mbsgd", "rounds": 4, "step": 0.5},
        }
    )
    return registered(Experiment.prepare(config, folder / "silos"), LedgerFolders.below(folder))


@pytest.mark.usefixtures("policies")
def test_no_error_text_of_a_worker_arrives_at_the_driver(tmp_path):
    """Also on a worker where a holder could not be opened before.

    Dask has then set pickle to send an error's cause and traceback, so `raise ... from None` alone is not enough.
    """
    from tasks.workers.cluster import local_cluster
    from tasks.workers.holder import Holder
    from tasks.workers.sites import DaskSites

    made, folders = guarded_experiment(tmp_path), LedgerFolders.below(tmp_path)
    preload = {"distributed.worker.preload": [str(Path(__file__).with_name("quoting.py"))]}
    with dask.config.set(preload), local_cluster(1) as client:
        names = [silo.name for silo in made.plan.problem.silos]
        spec = made.site_spec(names, folders)
        gone = tuple(dataclasses.replace(source, path=str(tmp_path / "gone.parquet")) for source in spec.sources)
        failed = client.submit(
            Holder, dataclasses.replace(spec, sources=gone, ledger="memory").to_bytes(), client.id, actor=True
        )
        assert isinstance(failed.exception(timeout=HANGS), SiloError)

        sites = DaskSites(client, made, folders, deadline=HANGS)
        sites.open()
        query = made.context.query(made.config.algorithm.init(made.start()))
        error = refusal(sites.ask, query)
        assert str(error) == f"silo {names[0]}: it could not answer; see the log at the silo"
        assert error.__cause__ is None and error.__context__ is None
        assert CANARY_TEXT not in error_text(error, __file__)
        sites.close()


@pytest.mark.usefixtures("policies")
def test_a_completed_answer_that_dask_computes_again_changes_nothing(tmp_path):
    """Dask repeats a completed task if the worker with its result dies while the result is still needed."""
    from tasks.workers.cluster import local_cluster

    made, folders, log = guarded_experiment(tmp_path), LedgerFolders.below(tmp_path), tmp_path / "log"
    query = made.context.query(made.config.algorithm.init(made.start())).to_bytes()
    spec = made.site_spec([silo.name for silo in made.plan.problem.silos], folders, log)
    agreement = made.agreement.to_bytes()

    def answered():
        site = open_site(spec)
        try:
            site.approve(agreement)
            return site.answer(query)
        finally:
            site.close()

    with local_cluster(2) as client:
        future = client.submit(answered, pure=False)
        first = future.result(timeout=HANGS)
        (address,) = client.who_has([future])[future.key]
        # Only the result in the worker's memory is lost with it; the future is still held.
        os.kill(client.run(os.getpid)[address], signal.SIGKILL)
        client.wait_for_workers(2, timeout=HANGS)
        assert client.submit(lambda again: again, future).result(timeout=HANGS) == first
    ended = [line.split() for line in log.read_text().splitlines() if line.split()[1] == "end"]
    assert len({pid for pid, *_ in ended}) == 2 and [line[-1] for line in ended] == ["1", "1", "0", "0"]
    for source in spec.sources:
        ledger = SqliteLedger(source.name, *folders.of(source.version, source.name))
        assert [(row.phase, row.round) for row in ledger.rows(made.run)] == [(1, 1)]
        assert list(ledger.charges()) == [made.run]
        ledger.close()


def test_a_log_that_cannot_be_written_is_a_sentence(tmp_path, one, monkeypatch):
    """An OSError from an actor's call looks to Dask like a lost worker."""
    made = one("seeded", *records())
    error = refusal(Site, [made.silo], tmp_path / "nowhere" / "log")
    assert error.code == "log" and "cannot be opened" in error.sentence and error.__context__ is None
    logged = Site([made.silo], tmp_path / "log")
    logged.approve(made.agreement.to_bytes())

    def full(*_):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr("fedcore.silo.site_log.os.write", full)
    error = refusal(logged.answer, made.query(np.zeros(4)).to_bytes())
    assert error.code == "log" and error.__context__ is None and made.ledger.rows("run") == []
