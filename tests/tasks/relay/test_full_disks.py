"""A silo whose disk is full in a round, behind a relay: one sentence at the driver, and each release once."""

from __future__ import annotations

import sqlite3

import numpy as np
import pytest

from fedcore.errors import InputError, SiloError
from fedcore.federation.rounds import rounds
from tasks.relay.serving import serve
from tests.tasks.relay.remote_silos import NAMES, ROUNDS, Direct, Federation

NAME = "hungary"


@pytest.fixture
def federation(tmp_path):
    made = Federation(tmp_path / "federation")
    yield made
    made.close()


def test_a_ledger_that_cannot_grow_ends_the_run_in_a_round_and_a_later_driver_finishes_it(federation, monkeypatch):
    silo, asked = federation.silos[NAME], []
    federation.serve()
    backend = federation.backend(lease=1)
    backend.open()

    def ask(query):
        asked.append(query.round)
        if query.round == 3:
            monkeypatch.setattr(silo.ledger, "commit", full)
        return backend.ask(query)

    def full(*_: object) -> None:
        raise SiloError(NAME, "ledger", "it could not be written: database or disk is full")

    with pytest.raises(SiloError, match=f"silo {NAME}: it could not be written: database or disk is full"):
        for _ in rounds(federation.context, federation.method.init(np.zeros(4)), ask):
            pass
    assert asked == [1, 2, 3] and len(silo.ledger.rows("run")) == 2
    monkeypatch.undo()
    found = federation.train(federation.backend(lease=2))
    federation.stop()
    assert np.array_equal(found, federation.local(federation.folder / "local"))
    assert all(len(each.ledger.rows("run")) == ROUNDS for each in federation.silos.values())


def test_numbers_that_cannot_be_written_end_the_silo_and_keep_the_question(federation, monkeypatch):
    silo = federation.silos[NAME]
    federation.serve(*(name for name in NAMES if name != NAME))
    backend = federation.backend(deadline=1.5)
    with pytest.raises(SiloError, match=f"{NAME}: no answer"):
        backend.open()
    post = Direct(federation.relay, NAME)

    def fails(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(silo.sequences, "_taken", fails)
    with pytest.raises(InputError, match="numbers of received envelopes cannot be kept"):
        serve(silo.service, post, federation.ends)
    assert len(post.collect()) == 1 and not silo.ledger.is_run("run")
    monkeypatch.undo()
    silo.kill()
    federation.serve(NAME)
    federation.train(federation.backend(lease=2))
    federation.stop()
    assert len(silo.ledger.rows("run")) == ROUNDS
