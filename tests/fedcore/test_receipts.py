"""Receipts as they are sent and stored: written bytes are read back, and all others are refused."""

import contextlib
import hashlib
import json

import numpy as np
import pytest

from fedcore import messages
from fedcore.errors import InputError
from fedcore.federation.receipts import Receipts
from fedcore.messages import Receipt, Releases, packed_receipts, portions, receipts_of
from fedcore.optim.sgd import SgdState
from tasks import run_store


def receipt(silo, phase, round):
    asked, sent = (hashlib.sha256(f"{what} {silo} {phase}.{round}".encode()).digest() for what in ("asked", "sent"))
    return Receipt(silo, phase, round, asked, sent)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_receipts_that_were_written_are_read(count):
    listed = [receipt(f"silo\n{n}", 1 + n, 2**62 + n) for n in range(count)]
    assert receipts_of(packed_receipts(listed)) == listed == receipts_of(packed_receipts(iter(listed)))


def test_the_form_is_a_line_of_addresses_and_then_digests():
    one, other = receipt("ash", 1, 2), receipt("oak", 3, 4)
    head, rest = packed_receipts([one, other]).split(b"\n", 1)
    assert json.loads(head) == [["ash", 1, 2], ["oak", 3, 4]]
    assert rest == one.query_digest + one.payload_digest + other.query_digest + other.payload_digest


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"{}\n",
        b"[1]\n",
        b'[["ash",1]]\n',
        b'[["ash",0,1]]\n' + bytes(64),
        b'[["ash",1,true]]\n' + bytes(64),
        b'[["ash",1,1.0]]\n' + bytes(64),
        b'[["ash",1,1]]\n' + bytes(63),
        b'[["ash",1,1]]\n' + bytes(65),
        b"[]\n ",
        b'[["ash",1,1]]' + bytes(64),
        b"[[7,1,1]]\n" + bytes(64),
        b'[["ash",1,9223372036854775808]]\n' + bytes(64),
    ],
)
def test_other_bytes_are_refused(data):
    with pytest.raises(ValueError, match="receipts"):
        receipts_of(data)


@pytest.mark.parametrize("count", [0, 1, 4, 5, 9])
def test_receipts_travel_in_portions(count, monkeypatch):
    monkeypatch.setattr(messages, "PORTION", 4)
    listed = [receipt("ash", 1, round) for round in range(1, 1 + count)]
    found = list(portions(iter(listed)))
    assert [each for portion in found for each in portion] == listed
    assert all(len(portion) == 4 for portion in found[:-1]) and all(found)


def releases(round, silos=("ash", "oak"), value=0):
    queries = [receipt(silo, 1, round + value).query_digest for silo in silos]
    return Releases(1, round, silos, queries, np.full((len(silos), 2), float(value)))


def of(*rounds):
    return [each for round in rounds for each in releases(round).receipts]


def test_receipts_of_a_run_are_those_that_are_kept_and_the_new_ones():
    kept_ones = of(1, 2)
    receipts = Receipts(lambda: iter(kept_ones), (1, 2))
    assert list(receipts) == of(1, 2) and receipts.new == []
    receipts.take(releases(2, value=5))  # asked again after a divergence: those that are kept stay
    assert receipts.new == []
    receipts.take(releases(3))
    assert receipts.new == of(3) and list(receipts) == of(1, 2, 3) == list(receipts)
    kept_ones += of(3)
    assert list(receipts) == of(1, 2, 3)  # between being kept and `saved`
    handed = receipts.new
    receipts.saved()
    assert list(receipts) == of(1, 2, 3) and receipts.new == [] and handed == of(3)
    receipts.take(releases(3, silos=()))  # a round without participants
    receipts.take(releases(3))
    assert receipts.new == []


def test_receipts_are_read_with_what_waits_to_be_written(tmp_path, monkeypatch):
    """A checkpoint that is written behind, by a thread, read a few rounds at a time."""
    monkeypatch.setattr(run_store, "PORTION", 3)
    monkeypatch.setattr(run_store, "MOST_PENDING", 2)
    W = np.zeros(2)
    with contextlib.closing(run_store.RunStore(tmp_path / "run.sqlite", wait=False)) as store:
        receipts = Receipts(store.receipts, store.newest_receipts())
        for round in range(1, 12):
            receipts.take(releases(round))
            store.save(SgdState(1, round + 1, W, W, W), None, run_store.MetricRow(1, round, {}), receipts.new)
            assert len(store._pending) <= 2
            receipts.saved()
            assert list(receipts) == of(*range(1, round + 1))
        assert store.newest_receipts() == (1, 11) and store.newest_row().round == 11 and store.done() == {1: 11}


def test_a_checkpoint_whose_thread_cannot_write_says_so_when_too_much_waits(tmp_path, monkeypatch):
    monkeypatch.setattr(run_store, "MOST_PENDING", 1)
    store = run_store.RunStore(tmp_path / "run.sqlite", wait=False)
    store._call(lambda: store._db.execute("PRAGMA query_only = ON"))
    W = np.zeros(2)
    with pytest.raises(InputError, match="cannot be read or written"):
        for round in (1, 2, 3):
            store.save(SgdState(1, round + 1, W, W, W), None)
