"""Packed rows against a plain dict, for every order of insertion, in memory and in the temporary file."""

import errno
import hashlib
import random
import sys

import numpy as np
import pytest

from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.filters import Charge
from fedcore.ledger import blocks, chained_file
from fedcore.ledger.ledger import payload_digest
from fedcore.ledger.memory import MemoryLedger
from fedcore.ledger.rows import Row, Rows
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.messages import Receipt

EVENTS = [GaussianRelease(0, stop, 0.25, 0.5) for stop in (5, 9)]


def row(phase, round, value=0):
    asked, sent = (hashlib.sha256(f"{what} {phase}.{round} {value}".encode()).digest() for what in ("asked", "sent"))
    # Another object each time, as rows of a file and of receipts are.
    event = GaussianRelease(0, EVENTS[round % 2].stop, 0.25, 0.5)
    return Row(phase, round, asked, event, sent, None)


@pytest.mark.parametrize("order", ["as rounds go", "mixed up", "turned round", "late"])
@pytest.mark.parametrize("spill", [False, True])
def test_rows_are_those_of_a_dict(order, spill, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", 7)
    addresses = [(phase, round) for phase in (1, 2, 3) for round in range(1, 20)]
    if order == "mixed up":
        random.Random(3).shuffle(addresses)
    elif order == "turned round":
        addresses.reverse()
    elif order == "late":  # one that was missing comes at the end, then the next ones
        addresses = [*addresses[:30], *addresses[31:50], addresses[30], *addresses[50:]]
    rows, naive = Rows(spill), {}
    for number, address in enumerate(addresses, 1):
        for known in (*addresses[:number:5], address, (9, 9), (1, 0)):
            place = rows.place(*known)
            assert (place is not None) == (known in naive)
            if place is not None:
                assert (rows.row(place), rows.number(place)) == naive[known]
        rows.put(row(*address), number)
        naive[address] = (row(*address), number)
        if number % 4 == 0:  # in the place of one that is there
            again = addresses[number // 2]
            rows.put(row(*again, value=number), 1000 + number)
            naive[again] = (row(*again, value=number), 1000 + number)
        assert len(rows) == len(naive)
    assert list(rows) == [kept for kept, _ in naive.values()]
    assert rows.events() == [kept.event for kept, _ in naive.values()]
    assert len({id(event) for event in rows.events()}) == 2


def test_a_row_that_cannot_be_packed_is_refused():
    rows = Rows()
    for bad in (
        row(1, 1)._replace(query_digest=b"short"),
        row(1, 1)._replace(payload_digest=bytes(33)),
        row(0, 1),
        row(1, 2**63),
    ):
        with pytest.raises(ValueError, match=r"digests have 32 bytes|count from 1"):
            rows.put(bad)
    assert len(rows) == 0


def test_a_full_disk_leaves_rows_in_memory_and_blocks_are_used_again(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", 4)
    monkeypatch.setattr(blocks, "_files", {})
    write, full = blocks.os.pwrite, []

    def pwrite(*arguments):
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(*arguments)

    monkeypatch.setattr(blocks.os, "pwrite", pwrite)
    rows = Rows(spill=True)
    for round in range(1, 30):
        if round == 14:
            full.append(True)
        if round == 22:
            full.clear()
        rows.put(row(1, round))
    assert list(rows) == [row(1, round) for round in range(1, 30)]
    kept = [type(block) for block in rows._records._parts[0]]
    assert kept.count(bytearray) == 2 and len(kept) == 7  # those of the rounds without room
    del rows
    free = blocks._files[4 * 92]._free
    taken = len(free)
    others = Rows(spill=True)
    for round in range(1, 22):
        others.put(row(2, round))
    assert len(free) == taken - 5 and list(others) == [row(2, round) for round in range(1, 22)]


@pytest.mark.parametrize("spill", [False, True])
def test_whoever_is_interrupted_and_does_it_again_has_a_row_once(spill, monkeypatch):
    """Ctrl-C between any two operations of `put`, by a tracer that raises at each line in turn;
    then it is done again."""
    monkeypatch.setattr(blocks, "BLOCK", 3)

    def interrupted(rows, address, at):
        seen = 0

        def trace(frame, event, _):
            nonlocal seen
            if event == "line" and ("ledger/rows" in frame.f_code.co_filename or "blocks" in frame.f_code.co_filename):
                seen += 1
                if seen == at:
                    raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            rows.put(row(*address))
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(None)
        return False

    step, going = 1, True
    while going:
        going = False
        # In order, at a border of blocks, out of order, and in place of one.
        for last in ((1, 5), (1, 7), (1, 3), (1, 2)):
            rows = Rows(spill)
            naive = {}
            for address in ((1, 1), (1, 2), (1, 4), (1, 6), (2, 1), (2, 2))[: 3 if last == (1, 7) else 6]:
                rows.put(row(*address))
                naive[address] = row(*address)
            going |= interrupted(rows, last, step)
            assert list(rows) in (list(naive.values()), [*naive.values(), row(*last)])
            rows.put(row(*last))
            naive[last] = row(*last)
            rows.put(row(3, 1))
            naive[3, 1] = row(3, 1)
            assert list(rows) == list(naive.values())
            assert all(rows.row(rows.place(*address)) == kept for address, kept in naive.items())
        step += 1
    assert step > 15


def test_bytes_are_those_of_the_newest_release_alone():
    """A row that was restored with another digest, at the address of the newest release, has none of its bytes."""
    ledger = MemoryLedger("ash")
    ledger.open_run("run", "plan", b"key", Charge.of([EVENTS[0]], 1e-5), None)
    ledger.commit("run", row(1, 1)._replace(payload=b"bytes"))
    assert ledger.find("run", 1, 1).payload == b"bytes" and ledger.rows("run")[0].payload == b"bytes"
    ledger._runs["run"] = (*ledger._runs["run"][:2], Rows())  # as if forgotten, but for the last step
    other = row(1, 1, value=2)
    ledger.restore("run", [(Receipt("ash", *other[:3], other.payload_digest), other.event)])
    assert ledger.find("run", 1, 1) == other


def test_a_release_that_was_taken_by_half_is_anchored_before_it_is_sent(tmp_path, monkeypatch):
    """Ctrl-C after the commit, between the row that is remembered and the end of the chain that is."""
    ledger = SqliteLedger("ash", tmp_path / "ash.sqlite", tmp_path / "ash.anchor")
    ledger.open_run("run", "plan", bytes(32), Charge.of([EVENTS[0]], 1e-5), None)
    payload, digested = payload_digest(np.ones(2))
    sent = row(1, 1)._replace(payload_digest=digested, payload=payload)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(chained_file, "Link", interrupted)
        ledger.commit("run", sent)
    assert ledger._rows["run"].number(0) > ledger._at.sequence == ledger._anchor.mark.sequence
    assert ledger.find("run", 1, 1) == sent
    assert ledger._anchor.mark.sequence == ledger._at.sequence == ledger._rows["run"].number(0)
    assert len(ledger.rows("run")) == 1
    ledger.close()
    again = SqliteLedger("ash", tmp_path / "ash.sqlite", tmp_path / "ash.anchor")
    assert again.find("run", 1, 1) == sent
    again.close()
