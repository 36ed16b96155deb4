"""Batches of calls and of answers: what was written is read, and all other bytes are refused."""

import math

import msgpack
import numpy as np
import pytest

from fedcore.silo.account import SiloAccount
from tasks.workers.batch import answers_of, calls_of, packed_answers, packed_calls

ACCOUNT = SiloAccount("ash", 20, 3, math.inf, 1e-5, 3, False)
CALLS = (
    (b"k" * 32, "answer", (b"query", 7)),
    (b"k" * 32, "simulated", ("run", b"w", 7)),
    (b"l" * 32, "accounts", ("run", 7)),
    (b"l" * 32, "end_run", ("run", 7)),
    (b"l" * 32, "answer", (b"", 0)),
)
ANSWERS = [b"releases", [(20, 0.5, 3.0), (21, np.float64(1.5), 0)], [ACCOUNT], None, ("ash", "plan", "not this one")]
OPERATIONS = [operation for _, operation, _ in CALLS]


def test_calls_that_were_written_are_read():
    assert calls_of(packed_calls(CALLS)) == CALLS and calls_of(packed_calls([])) == ()


def test_answers_that_were_written_are_read():
    read = answers_of(packed_answers(ANSWERS), OPERATIONS)
    assert read == [b"releases", [(20, 0.5, 3.0), (21, 1.5, 0)], [ACCOUNT], None, ("ash", "plan", "not this one")]
    assert type(read[2][0]) is SiloAccount
    assert answers_of(packed_answers([]), []) == []


@pytest.mark.parametrize(
    "calls",
    [
        [(b"k", "close", ())],
        [(b"k", "_site", ())],
        [("k", "answer", ())],
        [(b"k", "answer", (1.5,))],
        [(b"k", "answer", ([],))],
        [(b"k", "answer")],
        [(b"k", "answer", (), 1)],
        [b"k"],
        {"k": 1},
        7,
    ],
)
def test_other_calls_are_refused(calls):
    with pytest.raises(ValueError, match="a batch"):
        calls_of(msgpack.packb(calls))


HOSTILE = {
    "a list of 4 billion": b"\xdd\xff\xff\xff\xff",
    "a map of 4 billion": b"\xdf\xff\xff\xff\xff",
    "4 GB of bytes": b"\x91\x92\xc3\xc6\xff\xff\xff\xff",
    "deep lists": b"\x91" * 100_000,
    "an object": b"\x91\x92\xc3\xc7\x04\x05abcd",
    "a time": b"\x91\x92\xc3\xd6\xff\x00\x00\x00\x01",
    "no text": b"\x91\x92\xc3\xa2\xff\xfe",
    "a list as a key": b"\x91\x81\x90\xc0",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_hostile_bytes_are_refused(data):
    with pytest.raises(ValueError, match="a batch"):
        calls_of(data)
    with pytest.raises(ValueError, match="a batch"):
        answers_of(data, ["answer"])


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", packed_calls(CALLS)[:-1], packed_calls(CALLS) + b"x", bytearray(), None]
)
def test_other_bytes_are_refused(data):
    with pytest.raises(ValueError, match="a batch"):
        calls_of(data)
    with pytest.raises(ValueError, match="a batch"):
        answers_of(data, OPERATIONS)


@pytest.mark.parametrize(
    "operation, answer",
    [
        ("answer", "text"),
        ("answer", None),
        ("simulated", [(1, 2.0)]),
        ("simulated", [("ash", 2.0, 3.0)]),
        ("accounts", [ACCOUNT[:-1]]),
        ("accounts", [("ash", 20, 3, "inf", 1e-5, 3, False)]),
        ("end_run", b""),
        ("answer", ("ash", "plan")),
        ("answer", ("ash", "plan", b"")),
    ],
)
def test_answers_of_another_form_are_refused(operation, answer):
    with pytest.raises(ValueError, match="a batch has another form"):
        answers_of(packed_answers([answer]), [operation])


@pytest.mark.parametrize("count", [0, 1, 3])
def test_each_call_has_one_answer(count):
    with pytest.raises(ValueError, match="answers came to 2 calls"):
        answers_of(packed_answers([b"releases"] * count), ["answer", "answer"])
