"""Calls and answers on the wire: each has one form, and nothing else is read."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.errors import SiloError
from fedcore.remote.forms import PARTS, Answer, Call, Operation, accounts_of, packed_accounts
from fedcore.silo.account import SiloAccount

QUESTION = bytes(range(32))


def test_every_operation_has_its_number_of_parts():
    assert set(PARTS) == set(get_args(Operation))


@pytest.mark.parametrize("operation", list(PARTS))
def test_a_call_comes_back_with_as_many_parts_as_it_has(operation):
    least, most = PARTS[operation]
    for count in range(4):
        call = Call(operation, "run-1", 7, tuple(bytes([at]) * at for at in range(count)))
        if least <= count <= most:
            assert Call.from_bytes(call.to_bytes()) == call
        else:
            with pytest.raises(ValueError):
                Call.from_bytes(call.to_bytes())


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_no_call_and_no_answer(data):
    for form in (Call, Answer):
        with pytest.raises(ValueError):
            form.from_bytes(data)


HEAD = ["answer", "run", 1, [3]]


@pytest.mark.parametrize(
    "head",
    [
        ["simulated", "run", 1, [3]],
        ["restore", "run", 1, [3]],
        ["__init__", "run", 1, [3]],
        ["answer", "", 1, [3]],
        ["answer", "r" * 201, 1, [3]],
        ["answer", "run", -1, [3]],
        ["answer", "run", 1.0, [3]],
        ["answer", "run", 1, [2]],
        ["answer", "run", 1, [4]],
        ["answer", "run", 1, [-3, 6]],
        ["answer", "run", 1, [3], 0],
        ["answer", "run", 1],
        {},
    ],
)
def test_a_call_of_another_operation_or_size_is_refused(head):
    assert Call.from_bytes(json.dumps(HEAD).encode() + b"\nabc").parts == (b"abc",)
    with pytest.raises(ValueError):
        Call.from_bytes(json.dumps(head).encode() + b"\nabc")


def test_one_form_only():
    spaced = json.dumps(HEAD, separators=(",", ":")).encode() + b"\nabc"
    with pytest.raises(ValueError, match="one form"):
        Call.from_bytes(spaced)


def test_an_answer_is_a_body_or_a_refusal():
    def refuses() -> bytes:
        raise SiloError("ash", "plan", "no")

    done, refused = Answer.of(QUESTION, lambda: b"body"), Answer.of(QUESTION, refuses)
    assert Answer.from_bytes(done.to_bytes()) == done and done.value == b"body"
    assert Answer.from_bytes(refused.to_bytes()) == refused
    with pytest.raises(SiloError) as found:
        _ = refused.value
    assert (found.value.silo, found.value.code, found.value.sentence) == ("ash", "plan", "no")
    for head, rest in (
        ([QUESTION.hex(), "refused", None], b""),
        ([QUESTION.hex(), "refused", ["ash", "plan", "no"]], b"tail"),
        ([QUESTION.hex(), "done", ["ash", "plan", "no"]], b""),
        ([QUESTION.hex(), "other", None], b""),
        (["ab", "done", None], b""),
        ([QUESTION.hex(), "refused", ["ash", "plan", "x" * 601]], b""),
    ):
        with pytest.raises(ValueError):
            Answer.from_bytes(json.dumps(head).encode() + b"\n" + rest)


def test_accounts_come_back_and_nothing_else_does():
    accounts = [SiloAccount("ash", 12, 3, 1.25, 1e-6, 4, False)]
    assert accounts_of(packed_accounts(accounts)) == accounts
    for data in (b"", b"{}", b"[[1]]", b'[["ash", 12, 3, 1.25, 1e-6, 4, 0]]', b'[["ash", 12, 3, "1", 1e-6, 4, false]]'):
        with pytest.raises(ValueError, match="list of accounts"):
            accounts_of(data)
