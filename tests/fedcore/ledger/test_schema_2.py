"""A ledger of schema 2: its charges stay in force, and its open runs can only be closed."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from fedcore.accounting.calibration import Budget
from fedcore.accounting.composition import spent, worst_mu_squared
from fedcore.algorithms import Mbsgd, Scaffold
from fedcore.data.records import Records
from fedcore.errors import SiloError
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.losses import Logistic
from fedcore.planning.problem import SiloFacts
from fedcore.silo.agreement import Agreement
from fedcore.silo.keys import SecretKeys
from fedcore.silo.private_silo import PrivateSilo
from fedcore.silo.site import Site
from tests.problems import problem_of

KEPT = Path(__file__).parent / "schema_2"
EXPECTED = json.loads((KEPT / "expected.json").read_bytes())
RUNS = ("finished-0", "stopped-0", "sampled-0")
FULL = RUNS[:2]
OPEN = {"stopped-0": Mbsgd(rounds=6, step=0.5), "sampled-0": Scaffold(rounds=6, local_steps=2, sampling_rate=0.4)}


@pytest.fixture
def ledger(tmp_path):
    shutil.copytree(KEPT, tmp_path / KEPT.name)  # a ledger knows its data set version by its folder's name
    with closing(SqliteLedger("ash", *(tmp_path / KEPT.name / f"ash.{end}" for end in ("sqlite", "anchor")))) as opened:
        yield opened


def check(ledger, expected):
    """All that the version before wrote down of it, events and epsilon to the last bit.

    Compositions of samples go through transforms whose last bit depends on where their arrays lie.
    """
    events = {run: ledger.events(run) for run in RUNS}
    assert {run: charge.json for run, charge in ledger.charges().items()} == expected["charges"]
    assert {run: [written(event) for event in found] for run, found in events.items()} == expected["events"]
    assert {run: spent(events[run], 1e-5).hex() for run in FULL} == expected["spent"]
    assert spent([event for run in FULL for event in events[run]], 1e-5).hex() == expected["together"]
    assert spent(events["sampled-0"], 1e-5) == pytest.approx(expected["of samples"], rel=1e-13)
    assert {run: ledger.is_closed(run) for run in RUNS} == expected["closed"]


def written(event):
    numbers = event.sensitivity.hex(), event.sigma.hex()
    return [event.start, event.stop, *numbers, event.count, event.sampling, float(event.rate).hex()]


def test_its_charges_and_spent_epsilon_are_equal_to_the_last_bit(ledger):
    check(ledger, EXPECTED["before"])
    assert [len(ledger.rows(run)) for run in RUNS] == [4, 3, 3]


@pytest.mark.parametrize("run", OPEN)
def test_an_open_run_cannot_be_continued_and_keeps_its_charge(ledger, run):
    rng = np.random.default_rng(7)
    X = rng.standard_normal((40, 3))
    X /= np.linalg.norm(X, axis=1)[:, None]
    records = Records(X, np.where(rng.random(40) < 0.5, 1.0, -1.0))
    site = Site([PrivateSilo("ash", records, SecretKeys(b"k" * 32), ledger)])
    problem = problem_of((SiloFacts("ash", 40),), 3, 1.0, 0.25, 10.0, 1, Budget(1.0, 1e-5))
    agreement = Agreement(run, problem, OPEN[run], Logistic(), OPEN[run].plan(problem).digest)
    message = rf"run {run} was approved with plan .* is ended by `fedcore budget close {run}`"
    with pytest.raises(SiloError, match=message) as caught:
        site.agree(agreement)
    assert caught.value.code == "plan"
    check(ledger, EXPECTED["before"])


def test_open_runs_are_closed_at_what_they_spent(ledger):
    for run in OPEN:
        ledger.close_run(run, worst_mu_squared(ledger.events(run)))
    check(ledger, EXPECTED["closed"])
    with pytest.raises(SiloError, match="is closed"):
        ledger.commit("stopped-0", ledger.find("stopped-0", 1, 1)._replace(round=9))
