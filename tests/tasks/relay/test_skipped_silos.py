"""Silos that are away are skipped after a deadline: who was counted is final, and a late answer counts nowhere."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from fedcore.errors import SiloError
from fedcore.federation.comparison import compare, with_missing
from fedcore.federation.rounds import rounds
from fedcore.silo.account import SiloAccount
from tasks.relay import calls
from tasks.relay.sites import Skip
from tests.tasks.relay.remote_silos import NAMES, ROUNDS, Federation

AWAY = "switzerland"
HERE = tuple(name for name in NAMES if name != AWAY)


@pytest.fixture
def federation(tmp_path):
    made = Federation(tmp_path / "federation")
    yield made
    made.close()


def releases(federation, name: str) -> int:
    ledger = federation.silos[name].ledger
    return len(ledger.rows("run")) if ledger.is_run("run") else 0


def trained(federation, backend) -> tuple[np.ndarray, list[tuple[str, ...]]]:
    """The model of rounds without the silos that were skipped, and who was counted in each."""
    counted = []

    def ask(query):
        found = backend.gather(query)
        counted.append(found.silos)
        return found

    state = federation.method.init(np.zeros(4))
    query = federation.context.query(state)
    while query is not None:
        found = ask(query)
        state = federation.context.fold(state, query.among(found.silos), found)
        query = federation.context.query(state)
    return federation.method.output(state), counted


def test_rounds_go_on_without_a_silo_that_is_away_and_wait_for_it_once(federation):
    federation.serve(*HERE)
    backend = federation.backend(skip=Skip(3.0, 2))
    began = time.monotonic()
    backend.open()
    model, counted = trained(federation, backend)
    assert counted == [HERE] * ROUNDS and time.monotonic() - began < 3.0 * ROUNDS
    # By hand: the same steps over the three silos' own releases, and the average of the iterates.
    w, iterates = np.zeros(4), []
    for round in range(1, ROUNDS + 1):
        answers = []
        for name in HERE:
            row = federation.silos[name].ledger.find("run", 1, round)
            answers.append(np.frombuffer(row.payload))
        w = w - 0.1 * np.mean(answers, axis=0)
        iterates.append(w)
    np.testing.assert_allclose(model, np.mean(iterates, axis=0), rtol=0, atol=1e-12)


def test_a_silo_that_comes_back_is_counted_again_and_its_late_answer_is_not(federation, monkeypatch):
    monkeypatch.setattr(calls, "AGAIN", 0.2)
    federation.serve()
    backend = federation.backend(skip=Skip(3.0, 2))
    backend.open()
    federation.stop()
    federation.serve(*HERE)
    state = federation.method.init(np.zeros(4))
    first = federation.context.query(state)
    found = backend.gather(first)
    assert found.silos == HERE
    federation.serve(AWAY)
    until = time.monotonic() + 20
    while releases(federation, AWAY) == 0:
        assert time.monotonic() < until
        time.sleep(0.01)
    state = federation.context.fold(state, first.among(HERE), found)
    while found.silos != NAMES and (query := federation.context.query(state)) is not None:
        found = backend.gather(query)
        state = federation.context.fold(state, query.among(found.silos), found)
        time.sleep(0.3)
    assert found.silos == NAMES
    mine = [row.round for row in federation.silos[AWAY].ledger.rows("run")]
    assert mine[0] == 1, "charged for an answer that came too late"


def test_fewer_than_the_minimum_are_waited_for_beyond_the_deadline(federation):
    federation.serve("cleveland")
    threading.Timer(1.0, federation.serve, ("hungary", "virginia")).start()
    backend = federation.backend(skip=Skip(0.2, 3))
    began = time.monotonic()
    backend.open()
    _, counted = trained(federation, backend)
    assert time.monotonic() - began >= 1.0 and counted == [HERE] * ROUNDS


def test_who_was_counted_once_is_waited_for_by_a_resumed_round(federation):
    federation.serve(*HERE)
    backend = federation.backend(skip=Skip(3.0, 2))
    backend.open()
    query = federation.context.query(federation.method.init(np.zeros(4)))
    found = backend.gather(query)
    federation.stop()
    federation.serve("cleveland", "hungary")
    threading.Timer(0.8, federation.serve, ("virginia",)).start()
    again = federation.backend(lease=2, skip=Skip(0.2, 2))
    again.open()
    assert again.ask(query.among(found.silos)).to_bytes() == found.to_bytes()


def test_accounts_of_silos_that_are_away_count_in_full(federation):
    federation.serve(*HERE)
    backend = federation.backend(skip=Skip(3.0, 2))
    backend.open()
    for _, _, _ in rounds(federation.context, federation.method.init(np.zeros(4)), lambda query: only(backend, query)):
        break
    listed = backend.accounts("run")
    assert [account.silo for account in listed] == list(HERE)
    received = dict.fromkeys(HERE, 1)
    compare(federation.plan, received, listed, dict.fromkeys(NAMES, 1))
    whole = with_missing(federation.plan, received, listed)
    assert [account.silo for account in whole] == list(NAMES)
    backend.close_run("run")
    assert federation.boxes.waiting(AWAY) == 1, "the end of the run waits for it at the relay"
    missing = whole[NAMES.index(AWAY)]
    assert (missing.releases, missing.epsilon) == (0, federation.plan.silo_epsilon(AWAY))


def only(backend, query):
    found = backend.gather(query)
    object.__setattr__(query, "participants", found.silos)
    return found


def test_a_ledger_shows_at_least_what_came_and_at_most_what_was_asked(federation):
    account = SiloAccount("cleveland", 12, 2, 0.5, 1e-6, 2, False)
    compare(federation.plan, {"cleveland": 1}, [account], {"cleveland": 3})
    for received, asked in (({"cleveland": 3}, {"cleveland": 4}), ({"cleveland": 1}, {"cleveland": 1})):
        with pytest.raises(SiloError, match="ledger shows 2 releases"):
            compare(federation.plan, received, [account], asked)
    with pytest.raises(SiloError, match="ledger shows 2 releases"):
        compare(federation.plan, {"cleveland": 1}, [account])
