"""A shuffled run on Dask whose one site falls silent: the rest is folded if it is enough, and none is charged twice."""

from __future__ import annotations

import json
import os
import signal

import pytest

from fedcore.errors import SiloError
from fedcore.experiment.loading import load_experiment
from fedcore.home import Home
from flows.driver.session import Session
from flows.training import train
from tasks.run_store import RunStore
from tests.faults.federation import Federation
from tests.patience import HANGS

pytestmark = pytest.mark.slow


def silent_in_round(federation: Federation, silent: int, monkeypatch) -> None:
    """Drives the run, and stops the site of the first silo for the time of one round."""
    monkeypatch.setenv("FEDCORE_SILO_LOG", str(federation.log))

    def rounds(training) -> None:
        while training.phase is not None:
            if training.round != silent:
                training.advance()
                continue
            lines = [line.split() for line in federation.log.read_text().splitlines()]
            site = int(next(line[0] for line in lines if line[5] == "silo-000"))
            at = training.backend._sites._at
            os.kill(site, signal.SIGSTOP)
            try:
                at._deadline = 4.0  # not from the beginning: a busy machine takes longer to open silos
                training.advance()
            finally:
                at._deadline = HANGS
                os.kill(site, signal.SIGCONT)

    with Session.of_driver(Home(federation.home).make()) as session:
        train(load_experiment(federation.config), session, rounds)


def shuffled(home, minimum: int) -> Federation:
    return Federation.make(
        home,
        f"silent-{minimum}",
        privacy={"epsilon": 4, "delta": 1e-6, "trust": "shuffler", "ledger": "sqlite"},
        algorithm={"name": "mbsgd", "rounds": 4, "step": 1},
        shuffler={"minimum": minimum, "deadline": 15.0},
        cluster={"backend": "dask", "workers": 2, "deadline": HANGS},
        tracking={"mlflow": False, "simulation_metrics": False},
    )


@pytest.mark.minutes
def test_a_silent_site_leaves_a_smaller_batch(tmp_path, monkeypatch):
    federation = shuffled(tmp_path, 3)
    silent_in_round(federation, 3, monkeypatch)
    store = RunStore(federation.store)
    came = [row.values["shuffler/messages"] for row in store.metric_rows()]
    sent = [row.values["communication/floats_up"] for row in store.metric_rows()]
    assert list(store.receipts()) == []
    store.close()
    assert came == [6, 6, 3, 6] and sent == [16 * sum(came[: round + 1]) for round in range(4)]
    result = json.loads((tmp_path / "runs" / federation.run / "result.json").read_text())
    # The silent site's silos may have answered, late: committed, charged, and not in the batch.
    assert {silo["releases"] for silo in result["silos"]} <= {3, 4} and result["silos"][5]["releases"] == 4


@pytest.mark.minutes
def test_a_silent_site_stops_a_run_that_needs_all_and_a_resume_goes_on(tmp_path, monkeypatch):
    federation = shuffled(tmp_path, 6)
    with pytest.raises(SiloError, match=r"no answer from worker .* within cluster.deadline = 4 s"):
        silent_in_round(federation, 3, monkeypatch)
    assert federation.meta()["state"] == "FAILED"
    federation.drive()
    result = json.loads((tmp_path / "runs" / federation.run / "result.json").read_text())
    assert {silo["releases"] for silo in result["silos"]} == {4}
