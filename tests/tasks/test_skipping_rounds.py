"""Rounds that skip silos: who is counted is on disk before an answer is used, and a resumed round counts the same."""

from __future__ import annotations

import numpy as np
import pytest

from fedcore.errors import SiloError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment
from fedcore.home import LedgerFolders
from fedcore.messages import Releases
from tasks.run_store import RunStore
from tasks.training import COUNTED, Training

SILOS, STEP = 4, 0.1


class Absent:
    """A backend in which silos of some rounds are away: they are asked, and not waited for.

    `away`: by round. `late`: the silos whose answer comes too late to be counted, but is charged.
    """

    def __init__(self, inner, away, late=False):
        self.inner, self.away, self.late = inner, away, late
        self.asked, self.sent = [], {}

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def gather(self, query):
        self.asked.append(("gather", query.round, query.participants))
        here = [name for name in query.participants if name not in self.away.get(query.round, ())]
        if self.late:
            self.inner.ask(query)
        narrow = query.among(here)
        found = Releases.joined(narrow, [self.inner.ask(narrow.among([name])) for name in here])
        self.sent |= {(query.round, name): np.array(each) for name, each in zip(here, found.payloads, strict=True)}
        return found

    def ask(self, query):
        self.asked.append(("ask", query.round, query.participants))
        return self.inner.ask(query)


@pytest.fixture
def made(tmp_path):
    config = {
        "data": {"source": "synthetic", "silos": SILOS, "records": 30, "features": 3, "test_records": 20},
        "privacy": {"epsilon": 3, "ledger": "sqlite"},
        "algorithm": {"name": "mbsgd", "rounds": 6, "average": "last", "step": STEP},
        "model": {"diameter": 1e4},
    }
    return Experiment.prepare(ExperimentConfig.model_validate(config), tmp_path / "silos")


def training(made, folder, away, late=False, stop=None):
    """A run to its end, or to its end as a process: after the fold of round `stop`, before its checkpoint."""
    backend = Absent(made.in_process(LedgerFolders.below(folder)), away, late)
    run = Training(made, backend, RunStore(folder / "run.sqlite"), None)
    run._skips = True  # the config refuses it for silos of one process, which are never away
    run.start()
    while run.phase is not None and run.round != stop:
        run.advance()
    return run, backend


def names(made):
    return tuple(silo.name for silo in made.plan.problem.silos)


@pytest.mark.parametrize("late", [False, True])
def test_the_mean_is_of_those_that_were_counted_and_the_account_of_those_that_answered(made, tmp_path, late):
    first, *others = names(made)
    run, backend = training(made, tmp_path, {2: {first}, 3: {first}}, late)
    w = np.zeros(made.plan.problem.objective.dim)
    for round in range(1, 7):
        counted = others if round in (2, 3) else names(made)
        w = w - STEP * np.mean([backend.sent[round, name] for name in counted], axis=0)
    np.testing.assert_allclose(run.model, w, rtol=0, atol=1e-13)
    releases = {each.silo: each.releases for each in run.finish().silos}
    assert releases == {first: 6 if late else 4, **dict.fromkeys(others, 6)}
    backend.close()


def test_a_resumed_round_counts_the_same_silos_although_another_could_answer_now(made, tmp_path):
    first, *others = names(made)
    run, backend = training(made, tmp_path, {2: {first}}, stop=2)
    run.advance()  # round 2 is folded, and its process ends before the next checkpoint
    half = run.model
    assert run._store.meta()[COUNTED] == "1.2"
    run._store.close()
    backend.close()

    run, backend = training(made, tmp_path, {}, stop=2)
    run.advance()
    assert backend.asked == [("ask", 2, tuple(others))]
    np.testing.assert_array_equal(run.model, half)
    run._store.close()
    backend.close()


def test_a_round_that_was_not_counted_yet_is_gathered_anew(made, tmp_path):
    first = names(made)[0]
    run, backend = training(made, tmp_path, {}, stop=3)
    run._checkpoint()  # the question of round 3 is stored, without a count
    run._store.close()
    backend.close()
    run, backend = training(made, tmp_path, {3: {first}}, stop=4)
    assert backend.asked == [("gather", 3, names(made))] and run._store.meta()[COUNTED] == "1.3"
    run._store.close()
    backend.close()


def test_a_backend_that_leaves_silos_out_without_leave_is_refused(made, tmp_path):
    backend = made.in_process(LedgerFolders.below(tmp_path))
    run = Training(made, backend, RunStore(tmp_path / "run.sqlite"), None)
    run.start()
    inner = backend.ask
    backend.ask = lambda query: inner(query.among(query.participants[1:]))
    with pytest.raises(SiloError, match="gave no answer in round"):
        run.advance()
    backend.close()
