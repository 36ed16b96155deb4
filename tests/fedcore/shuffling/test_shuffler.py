"""A shuffler's rounds: admission, the single commit of a batch, and the order in it."""

from __future__ import annotations

import itertools
import sqlite3
import threading
from collections import Counter

import pytest
from scipy.stats import chi2

from fedcore.errors import Refused
from fedcore.shuffling.forms import Envelope
from fedcore.shuffling.shuffler import ABANDONED, MOST_RUNS, MOST_WAITING
from tests.fedcore.shuffling.rounds import (
    KEY,
    LENGTH,
    NAMES,
    OTHER_KEY,
    OTHER_QUESTION,
    QUESTION,
    STRANGER,
    Desk,
    at,
    sealed,
)
from tests.patience import SOON

ALL = sorted(sealed(name) for name in NAMES)


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


def refused(code, act, *arguments, **options):
    with pytest.raises(Refused) as caught:
        act(*arguments, **options)
    assert caught.value.code == code
    assert caught.value.sentence.isprintable() and "\n" not in caught.value.sentence
    return caught.value.sentence


def test_a_batch_is_handed_on_when_all_are_there_and_is_the_same_ever_after(desk):
    assert desk.open(at())
    desk.take(at(), NAMES[:3])
    assert desk.batch(at()) is None
    desk.take(at(), NAMES[3:])
    first = desk.batch(at())
    assert sorted(first) == ALL
    assert all(desk.batch(at()) == first for _ in range(3))
    desk.restart()
    assert not desk.open(at())  # committed, so no silo needs to answer
    assert desk.batch(at()) == first


def test_a_repeat_is_no_second_message(desk):
    desk.open(at())
    desk.take(at(), NAMES[:2])
    desk.take(at(), NAMES[:2], fill="sealed anew")
    desk.take(at(), NAMES[:2])
    assert desk.batch(at()) is None
    desk.take(at(), NAMES[2:])
    assert sorted(desk.batch(at())) == ALL  # the first ones


def test_what_comes_after_the_commit_is_refused_for_good(desk):
    desk.open(at())
    desk.take(at())
    first = desk.batch(at())
    assert "committed" in refused("late", desk.take, at(), NAMES[:1], fill="other")
    desk.restart()
    refused("late", desk.take, at(), NAMES[:1])
    desk.open(at())
    refused("late", desk.take, at(), NAMES[:1])
    assert desk.batch(at()) == first


def test_at_the_deadline_at_least_the_minimum_and_then_no_other(desk):
    desk.open(at(), minimum=2, deadline=10.0)
    desk.take(at(), NAMES[:3])
    desk.now += 9.99
    assert desk.batch(at()) is None
    desk.now += 0.02
    first = desk.batch(at())
    assert sorted(first) == sorted(sealed(name) for name in NAMES[:3])
    refused("late", desk.take, at(), NAMES[3:])  # two batches would differ by this one's message
    desk.restart()
    desk.now += 100.0
    assert not desk.open(at()) and desk.batch(at()) == first


def test_below_the_minimum_nothing_is_handed_on_and_the_round_may_begin_again(desk):
    desk.open(at(), minimum=3)
    desk.take(at(), NAMES[:2], minimum=3)
    desk.now += 10.0
    message = refused("few", desk.batch, at())
    assert (
        message == "round 1.1 of run run: 2 of 4 messages came within 10 s, and no batch of fewer than 3 is handed on"
    )
    assert "not open" in refused("unknown", desk.batch, at())
    refused("unknown", desk.take, at(), NAMES[2:])
    assert desk.open(at(), minimum=3)
    assert desk.batch(at()) is None  # those that waited are gone
    desk.take(at(), minimum=3)
    assert sorted(desk.batch(at())) == ALL


@pytest.mark.parametrize(
    ("operators", "servers", "silos", "needed"), [(1, 2, 2, 2), (3, 2, 2, 3), (2, 3, 2, 3), (2, 2, 4, 4)]
)
def test_the_minimum_is_the_largest_that_operator_server_or_a_silo_wants(tmp_path, operators, servers, silos, needed):
    desk = Desk(tmp_path, least=operators)
    desk.open(at(), minimum=servers)
    desk.take(at(), NAMES[: needed - 1], minimum=silos)
    desk.now += 11.0
    if needed > 2:
        assert f"fewer than {needed}" in refused("few", desk.batch, at())
    desk.open(at(), minimum=servers)
    desk.take(at(), NAMES[:needed], minimum=silos)
    desk.now += 11.0
    assert len(desk.batch(at())) == needed


def test_a_minimum_above_the_participants_opens_nothing(desk, tmp_path):
    assert "no batch of fewer than 5" in refused("few", desk.open, at(), minimum=5)
    refused("unknown", desk.take, at())
    strict = Desk(tmp_path / "strict", least=5)
    assert "no batch of fewer than 5" in refused("few", strict.open, at())
    desk.open(at())
    assert "agreed to batches of at least 9" in refused("few", desk.take, at(), minimum=9)


def test_only_participants_with_messages_of_this_round_get_in(desk):
    desk.open(at())
    refused("unknown", desk.take, at(2))
    refused("unknown", desk.take, at(run="other"))
    refused("other", desk.take, at(), key=OTHER_KEY)
    assert "ash was asked something else" in refused("other", desk.take, at(), question=OTHER_QUESTION)
    for name, length in (("elm", LENGTH), ("ash", LENGTH + 8)):
        refused("other", desk.shuffler.take, Envelope(at(), name, 2, QUESTION, KEY, b"x" * length).to_bytes())
    assert desk.batch(at()) is None


def test_a_run_is_its_first_openers(desk):
    desk.open(at())
    for act in (desk.open, desk.batch):
        assert "another server" in refused("other", act, at(), owner=STRANGER)
    refused("other", desk.end, owner=STRANGER)
    desk.restart()
    refused("other", desk.open, at(2), owner=STRANGER)
    assert desk.open(at(run="strangers"), owner=STRANGER)
    stored = desk.path.read_bytes()
    assert STRANGER.encode() not in stored and bytes.fromhex(STRANGER) not in stored  # its digest alone


def test_who_asks_for_what_nobody_opened_claims_no_run(desk, monkeypatch):
    assert "not open here" in refused("unknown", desk.batch, at(), owner=STRANGER)
    desk.end(owner=STRANGER)
    with monkeypatch.context() as full:
        full.setattr("fedcore.shuffling.shuffler.MOST_WAITING", 0)
        refused("full", desk.open, at(), owner=STRANGER)
    assert desk.open(at())
    refused("other", desk.batch, at(), owner=STRANGER)


def test_a_round_is_opened_one_way_and_a_batch_belongs_to_one_key(desk):
    desk.open(at())
    desk.take(at(), NAMES[:2])
    others = {"names": NAMES[:3], "minimum": 3, "key": OTHER_KEY, "length": LENGTH + 8, "question": OTHER_QUESTION}
    for other in ({name: value} for name, value in others.items()):
        assert "opened with other" in refused("other", desk.open, at(), **other)
    assert desk.open(at())  # a server that comes back
    desk.take(at(), NAMES[2:])
    assert len(desk.batch(at())) == 4
    assert "another key" in refused("other", desk.open, at(), key=OTHER_KEY)


def test_opening_again_begins_the_deadline_anew(desk):
    desk.open(at(), minimum=4)
    desk.now += 9.0
    desk.open(at(), minimum=4)
    desk.now += 9.0
    assert desk.batch(at()) is None


def test_earlier_batches_go_when_the_run_goes_on_and_stay_committed(desk):
    for round in (1, 2, 3):
        desk.open(at(round))
        desk.take(at(round), fill="x" * round)
        assert desk.batch(at(round)) is not None
    for round in (1, 2):
        assert "gone on since" in refused("late", desk.batch, at(round))
        assert not desk.open(at(round))
        refused("late", desk.take, at(round))
    third = desk.batch(at(3))
    assert any(message in desk.path.read_bytes() for message in third)
    desk.end()
    refused("late", desk.batch, at(3))
    stored = desk.path.read_bytes()
    assert not any(sealed(name, "x" * round) in stored for name in NAMES for round in (1, 2, 3))


def test_no_file_connects_a_silo_with_a_message(desk, tmp_path):
    desk.open(at())
    desk.take(at(), NAMES[:3])
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert files and not any(sealed(name) in data for data in files.values() for name in NAMES)  # what waits
    desk.take(at(), NAMES[3:])
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert all(sealed(name) in written for name in NAMES)
    assert not any(name.encode() in written for name in NAMES)


def test_messages_are_asked_for_again_after_a_crash(desk):
    desk.open(at())
    desk.take(at(), NAMES[:3])
    desk.restart()
    assert "not open" in refused("unknown", desk.batch, at())
    refused("unknown", desk.take, at(), NAMES[3:])
    desk.open(at())
    desk.take(at())
    assert sorted(desk.batch(at())) == ALL


def test_every_order_is_as_likely_whatever_the_order_of_arrival(tmp_path):
    """Chi-square over the 24 orders of 4, for two orders of arrival, and of the first against the second."""
    desk, trials, tables = Desk(tmp_path), 1200, []
    desk.shuffler._batches._db.execute("PRAGMA synchronous = OFF")  # no power is cut here
    for arrival, run in ((NAMES, "forward"), (NAMES[::-1], "backward")):
        orders: Counter[tuple[bytes, ...]] = Counter()
        for round in range(1, trials + 1):
            desk.open(at(round, run=run))
            desk.take(at(round, run=run), arrival)
            orders[tuple(desk.batch(at(round, run=run)))] += 1
        tables.append([orders[order] for order in itertools.permutations(sealed(name) for name in NAMES)])
        assert sum(tables[-1]) == trials
        statistic = sum((count - trials / 24) ** 2 / (trials / 24) for count in tables[-1])
        assert statistic < chi2.isf(1e-7, 23)
    both = sum((a - b) ** 2 / (a + b) for a, b in zip(*tables, strict=True) if a + b)
    assert both < chi2.isf(1e-7, 24)
    by_arrival = [trials if place == 0 else 0 for place in range(24)]  # a control: what does not permute is seen
    assert sum((count - trials / 24) ** 2 / (trials / 24) for count in by_arrival) > chi2.isf(1e-7, 23)


def test_a_disk_that_does_not_take_a_batch_hands_nothing_on_and_loses_nothing(desk, monkeypatch):
    desk.open(at())
    desk.take(at(), NAMES[:3])
    batches, commit = desk.shuffler._batches, desk.shuffler._batches.commit

    def full(*_):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(batches, "commit", full)
    assert "nothing was handed on" in refused("failed", desk.take, at(), NAMES[3:])
    refused("failed", desk.batch, at())
    monkeypatch.setattr(batches, "commit", commit)
    assert sorted(desk.batch(at())) == ALL


def test_its_memory_is_bounded(desk):
    for number in range(MOST_RUNS):
        desk.open(at(run=f"run-{number}"))
    assert "no room" in refused("full", desk.open, at(run="one more"))
    desk.end("run-0")
    assert desk.open(at(run="one more"))
    desk.end("run-1")
    refused("full", desk.open, at(run="large"), length=MOST_WAITING // 4)


def test_a_round_that_nobody_asks_for_makes_room_in_time(desk):
    for number in range(MOST_RUNS):
        desk.open(at(run=f"run-{number}"), deadline=10.0)
    desk.now += 10.0 + ABANDONED - 1.0
    refused("full", desk.open, at(run="one more"))
    desk.now += 1.0
    assert desk.open(at(run="one more"), deadline=10.0)
    assert "not open" in refused("unknown", desk.batch, at(run="run-0"))


def test_who_waits_for_a_batch_is_told_at_once_and_two_threads_commit_one(tmp_path):
    desk = Desk(tmp_path)
    found: list[list[bytes]] = []

    def wait(round):
        found.append(desk.batch(at(round), seconds=60.0))

    for round in range(1, 21):
        found.clear()
        desk.open(at(round), deadline=1000.0)
        waiting = [threading.Thread(target=wait, args=(round,)) for _ in range(3)]
        posting = [threading.Thread(target=desk.take, args=(at(round), [name])) for name in NAMES]
        for thread in (*waiting, *posting):
            thread.start()
        for thread in (*waiting, *posting):
            thread.join(SOON)
            assert not thread.is_alive()
        assert len(found) == 3 and found[0] == found[1] == found[2] and sorted(found[0]) == ALL
