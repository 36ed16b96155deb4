"""Numbers of received envelopes: their tables stay small, and no number is taken twice, however many runs come."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from datetime import UTC, datetime

import pytest

from fedcore.errors import Refused
from fedcore.identity.envelope import Heading
from fedcore.identity.sequences import Sequences
from fedcore.relay.members import COORDINATOR
from fedcore.relay.relay import OLD
from tests.fedcore.relay.conftest import PARTIES, Place, envelope, listed
from tests.fuzzing import fuzz_seed

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
FEW = 5
DIGEST = bytes(32)


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr("fedcore.identity.sequences.MOST_RUNS", FEW)
    monkeypatch.setattr("fedcore.relay.mailboxes.MOST_RUNS", FEW)


def heading(run: int, sequence: int, sender: str = COORDINATOR) -> Heading:
    return Heading("ab" * 32, sender, "cleveland", f"run-{run}", sequence)


def rows(path, table: str) -> int:
    with closing(sqlite3.connect(path)) as db:
        return int(db.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0])


def is_taken(sequences: Sequences, each: Heading, digest: bytes = DIGEST) -> bool:
    try:
        sequences.take(each, digest, NOW)
    except ValueError:
        return False
    return True


def test_a_number_is_taken_once_whatever_a_sender_sends(tmp_path):
    """Runs and numbers at random, most of them old, over restarts; the oracle remembers everything."""
    draws, taken, path = random.Random(fuzz_seed()), set(), tmp_path / "numbers.sqlite"
    sequences, clock = Sequences(path), 1000
    for _ in range(4000):
        clock += draws.randint(0, 2)
        each = heading(draws.randrange(40), max(1, draws.choice([clock, clock, clock - draws.randrange(300)])))
        if is_taken(sequences, each):
            assert each not in taken, "a number was taken twice"
            taken.add(each)
            sequences.answered(each)
        if draws.random() < 0.01:
            sequences.close()
            sequences = Sequences(path)
    assert all(not is_taken(sequences, each) for each in taken)
    sequences.close()
    assert len(taken) > 1000 and rows(path, "newest") <= FEW and rows(path, "floors") == 1


def test_a_sender_with_a_clock_is_taken_however_many_runs_it_has(tmp_path):
    """Each number is larger than those before it, of any run: none is refused, though most runs were forgotten."""
    draws, sequences = random.Random(fuzz_seed()), Sequences(tmp_path / "numbers.sqlite")
    assert all(is_taken(sequences, heading(draws.randrange(40), number)) for number in range(1, 2000))
    # Another sender has numbers of its own.
    assert is_taken(sequences, heading(1, 1, "zurich"))
    sequences.close()


def test_an_envelope_that_was_not_answered_is_taken_again_while_its_run_is_known(tmp_path):
    sequences = Sequences(tmp_path / "numbers.sqlite")
    each = heading(0, 1)
    assert is_taken(sequences, each) and is_taken(sequences, each) and not is_taken(sequences, each, b"x" * 32)
    for run in range(1, FEW + 1):
        assert is_taken(sequences, heading(run, run + 1))
    assert not is_taken(sequences, each), "its run was forgotten: the sender asks again, with a larger number"
    assert is_taken(sequences, heading(0, 100))
    sequences.close()


def test_numbers_of_an_older_version_are_bounded_once_a_new_run_comes(tmp_path, monkeypatch):
    monkeypatch.setattr("fedcore.identity.sequences.MOST_RUNS", 1000)
    path = tmp_path / "numbers.sqlite"
    sequences = Sequences(path)
    for run in range(100):
        assert is_taken(sequences, heading(run, run + 1))
    sequences.close()
    with closing(sqlite3.connect(path)) as db:
        db.executescript("DROP TABLE floors; DROP INDEX by_sequence")
    monkeypatch.setattr("fedcore.identity.sequences.MOST_RUNS", FEW)
    sequences = Sequences(path)
    assert is_taken(sequences, heading(200, 200))
    assert not any(is_taken(sequences, heading(run, run + 1)) for run in range(96))
    sequences.close()
    assert rows(path, "newest") == FEW


def test_a_relay_keeps_few_numbers_and_takes_no_envelope_twice(tmp_path):
    place = Place(tmp_path)
    token = place.token(COORDINATOR)
    sent = [envelope(COORDINATOR, "cleveland", 10 * run + 1, run=f"run-{run}") for run in range(40)]
    for each in sent:
        place.relay.deposit(token, each)
    place.relay.deposit(place.token("cleveland"), envelope("cleveland", COORDINATOR, 1, run="run-0"))
    path = tmp_path / "envelopes.sqlite"
    assert rows(path, "newest") == FEW + 1 and place.relay.waiting() == 41
    for each in sent[:-FEW]:
        with pytest.raises(Refused) as found:
            place.relay.deposit(token, each)
        assert found.value.code == OLD
    for each in sent[-FEW:]:
        place.relay.deposit(token, each)  # the newest of a known run is stored once
    assert place.relay.waiting() == 41
    place.relay.deposit(token, envelope(COORDINATOR, "cleveland", 1000, run="run-0"))
    place.boxes.close()


def test_numbers_of_a_removed_party_are_deleted(tmp_path):
    place = Place(tmp_path)
    for name in ("cleveland", "zurich"):
        for run in range(FEW + 2):
            place.relay.deposit(place.token(COORDINATOR), envelope(COORDINATOR, name, run + 1, run=f"run-{run}"))
    without = listed(2)
    del without.keys["zurich"]
    assert place.relay.serve(without)
    path = tmp_path / "envelopes.sqlite"
    assert rows(path, "newest") == FEW and rows(path, "floors") == 1 and len(PARTIES) == 3
    place.boxes.close()
