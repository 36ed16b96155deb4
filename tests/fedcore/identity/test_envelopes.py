"""Envelopes: who opens them, and every way in which one that arrives is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.errors import InputError
from fedcore.identity.envelope import FORM, LARGEST_BODY, Envelope, Heading
from fedcore.identity.inbox import Inbox, Questions
from fedcore.identity.keys import Identity, PublicIdentity
from fedcore.identity.sequences import Numbers, Sequences

HEART, OTHER = "ab" * 32, "cd" * 32
NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
MICROSECONDS = int(NOW.timestamp() * 1e6)
COORDINATOR, CLEVELAND, ZURICH = Identity.new(), Identity.new(), Identity.new()
KNOWN = {"coordinator": COORDINATOR.public}
HEADING = Heading(HEART, "coordinator", "cleveland", "run-1", MICROSECONDS)


def sent(heading=HEADING, sender=COORDINATOR, receiver=CLEVELAND, body=b"question") -> bytes:
    return Envelope.made(heading, sender, receiver.public, body).to_bytes()


@pytest.fixture
def inbox(tmp_path):
    sequences = Sequences(tmp_path / "numbers.sqlite")
    yield questions(sequences)
    sequences.close()


def questions(sequences: Sequences) -> Questions:
    return Questions(Inbox("cleveland", HEART, CLEVELAND), sequences, lambda: NOW)


def test_the_receiver_reads_what_the_sender_wrote_and_a_carrier_only_the_heading(inbox):
    data = sent(body=b"a secret question")
    assert b"a secret question" not in data
    assert Envelope.from_bytes(data).heading == HEADING
    received = inbox.take(data, KNOWN)
    assert received.heading == HEADING and received.body == b"a secret question"
    assert received.digest == Envelope.from_bytes(data).digest


def test_an_envelope_is_taken_once_and_in_order(inbox):
    first, second = (sent(replace(HEADING, sequence=MICROSECONDS + at)) for at in (1, 2))
    inbox.answered(inbox.take(first, KNOWN))
    with pytest.raises(ValueError, match="about run run-1 came before"):
        inbox.take(first, KNOWN)
    inbox.take(second, KNOWN)
    with pytest.raises(ValueError, match="sent earlier"):
        inbox.take(first, KNOWN)
    inbox.take(sent(replace(HEADING, run="run-2", sequence=5)), KNOWN)  # another run has numbers of its own
    inbox.take(sent(replace(HEADING, run="", sequence=5)), KNOWN)


def test_numbers_are_kept_over_a_restart(tmp_path):
    """The same envelope is taken again until it is answered; another one with its number is not."""
    data, other = sent(), sent(body=b"another question")
    for expected in (None, None, "answered", "came before", "came before"):
        sequences = Sequences(tmp_path / "numbers.sqlite")
        inbox = questions(sequences)
        if expected == "came before":
            with pytest.raises(ValueError, match=expected):
                inbox.take(data, KNOWN)
        else:
            received = inbox.take(data, KNOWN)
            with pytest.raises(ValueError, match="came before"):
                inbox.take(other, KNOWN)
            if expected == "answered":
                inbox.answered(received)
        sequences.close()


@pytest.mark.parametrize(
    ("heading", "sender", "receiver", "why"),
    [
        (replace(HEADING, federation=OTHER), COORDINATOR, CLEVELAND, "federation cdcdcdcdcdcd, and this is another"),
        (replace(HEADING, receiver="zurich"), COORDINATOR, CLEVELAND, "to zurich, and this is cleveland"),
        (replace(HEADING, sender="zurich"), ZURICH, CLEVELAND, "no keys of zurich, or has revoked them"),
        (HEADING, ZURICH, CLEVELAND, "not that of its sender"),
        (HEADING, COORDINATOR, ZURICH, "not sealed to this key"),
        (replace(HEADING, sequence=MICROSECONDS + int(2 * 86400e6)), COORDINATOR, CLEVELAND, "a day ahead of this"),
    ],
)
def test_others_envelopes_are_refused(inbox, heading, sender, receiver, why):
    with pytest.raises(ValueError, match=why):
        inbox.take(sent(heading, sender, receiver), KNOWN)
    inbox.take(sent(replace(HEADING, sequence=1)), KNOWN)  # a refused one takes no number


def test_another_party_cannot_sign_what_it_did_not_seal(inbox):
    """A carrier that is a member itself takes the sealed bytes of another, and signs them as its own."""
    stolen = Envelope.from_bytes(sent())
    known = KNOWN | {"zurich": ZURICH.public}
    for heading in (replace(HEADING, sender="zurich"), HEADING):
        own = Envelope.made(heading, ZURICH, CLEVELAND.public, b"")
        from fedcore.identity.envelope import _signed_text

        forged = Envelope(heading, ZURICH.sign(_signed_text(heading, stolen.sealed)), stolen.sealed)
        assert forged.to_bytes() != own.to_bytes()
        with pytest.raises(ValueError, match=r"not sealed to this key|not that of its sender"):
            inbox.take(forged.to_bytes(), known)


def test_an_envelope_of_another_version_is_named_with_both(inbox):
    data = sent()
    assert data.startswith(f"[{FORM},".encode())
    for form in (b"[2,", b"[0,", b"[17,"):
        with pytest.raises(ValueError, match=rf"form {form[1:-1].decode()}, and this installation writes form {FORM}"):
            inbox.take(form + data[3:], KNOWN)


def test_headings_have_one_form_and_bounded_fields():
    values = json.loads(HEADING.to_bytes())
    spaced = json.dumps(values, separators=(",", ":")).encode()
    wrong = [spaced, b"[]", b"{}", b"", HEADING.to_bytes()[:-1], b"[" * 4096]
    for place, value in ((1, "AB" * 32), (1, "ab"), (2, ""), (2, "a/b"), (2, "a" * 64), (3, "-x"), (3, "x\n"), (4, 5)):
        wrong.append(json.dumps([*values[:place], value, *values[place + 1 :]]).encode())
    for place, value in ((4, "r" * 201), (4, "a\nb"), (5, 0), (5, 2**63), (5, -1), (5, 1.0), (5, "1"), (5, True)):
        wrong.append(json.dumps([*values[:place], value, *values[place + 1 :]]).encode())
    wrong.append(json.dumps([*values, 1]).encode())
    for data in wrong:
        with pytest.raises(ValueError, match="heading"):
            Heading.from_bytes(data)
    assert Heading.from_bytes(HEADING.to_bytes()) == HEADING


def test_a_body_above_the_bound_is_not_sealed():
    class Long(bytes):
        def __len__(self) -> int:
            return LARGEST_BODY + 1

    with pytest.raises(ValueError, match="too long"):
        Envelope.made(HEADING, COORDINATOR, CLEVELAND.public, Long())


def test_an_answer_is_to_one_question():
    inbox = Inbox("coordinator", HEART, COORDINATOR)
    back = Heading(HEART, "cleveland", "coordinator", "run-1", 7)
    data = sent(back, CLEVELAND, COORDINATOR, b"answer")
    assert inbox.answer(data, "cleveland", CLEVELAND.public, "run-1", 7) == b"answer"
    for run, sequence in (("run-1", 8), ("run-2", 7)):
        with pytest.raises(ValueError, match="another question"):
            inbox.answer(data, "cleveland", CLEVELAND.public, run, sequence)
    with pytest.raises(ValueError, match="no keys of cleveland"):
        inbox.answer(data, "zurich", CLEVELAND.public, "run-1", 7)
    with pytest.raises(ValueError, match="not that of its sender"):
        inbox.answer(data, "cleveland", ZURICH.public, "run-1", 7)


def test_numbers_grow_whatever_the_clock_does():
    times = iter([100.0, 50.0, 100.0, 200.0])
    numbers = Numbers(lambda: next(times), least=10)
    assert [numbers.next() for _ in range(4)] == [100 * 10**6, 100 * 10**6 + 1, 100 * 10**6 + 2, 200 * 10**6]
    late = Numbers(lambda: 1.0, least=7 * 10**6)
    assert late.next() == 7 * 10**6


def test_numbers_that_cannot_be_kept_are_an_error_of_the_disk(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be kept"):
        Sequences(tmp_path / "file" / "numbers.sqlite")
    sequences = Sequences(tmp_path / "numbers.sqlite")
    sequences.close()
    with pytest.raises(InputError, match="cannot be kept"):
        sequences.take(HEADING, bytes(32), NOW)


DATA = sent()


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_changed_byte_is_taken(tmp_path_factory, data):
    """One byte of a valid envelope is changed, left out or put in."""
    at = data.draw(st.integers(0, len(DATA) - 1))
    new = data.draw(st.binary(min_size=0, max_size=2).filter(lambda new: new != DATA[at : at + 1]))
    inbox = questions(_Untouched())
    with pytest.raises(ValueError):
        inbox.take(DATA[:at] + new + DATA[at + 1 :], KNOWN)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_refused(data):
    inbox = questions(_Untouched())
    with pytest.raises(ValueError):
        inbox.take(data, KNOWN)


class _Untouched(Sequences):
    def __init__(self) -> None:
        pass

    def take(self, heading: Heading, digest: bytes, now: datetime) -> None:
        raise AssertionError("a forged envelope took a number")


def test_the_roster_of_senders_is_by_name_and_key(inbox):
    """A name with the keys of another party opens nothing."""
    with pytest.raises(ValueError, match="not that of its sender"):
        inbox.take(sent(), {"coordinator": PublicIdentity(ZURICH.public.signing, COORDINATOR.public.sealing)})
