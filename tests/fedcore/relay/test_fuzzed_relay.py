"""A relay under members whose keys are right: it refuses by a sentence, and hands out what its senders signed."""

from __future__ import annotations

import json
from collections import Counter
from random import Random

import pytest

from fedcore.errors import Refused
from fedcore.identity.envelope import Envelope, Heading
from fedcore.relay.acknowledgements import acknowledgement
from fedcore.relay.members import COORDINATOR
from fedcore.relay.sessions import claim
from tests.faults.mutations import ODD, bent_bytes, bent_text, bent_tree
from tests.fedcore.relay.conftest import HEART, PARTIES, STRANGER, Place
from tests.fuzzing import fuzz_seed

FEW, MANY = 600, 10_000
NAMES = (*PARTIES, "geneva")
CODES = {"other", "old", "long", "full", "form", "unknown"}


class Members:
    """Draws calls of members and strangers at a relay with small quotas."""

    def __init__(self, place: Place, source: Random) -> None:
        self.place, self.source, self.tally = place, source, Counter()
        self.tokens = {name: place.token(name) for name in PARTIES}
        self.left: dict[str, set[bytes]] = {name: set() for name in NAMES}
        self.number = 1

    def envelope(self) -> bytes:
        """A valid envelope in most draws; else one with odd names, another signer, or bent bytes."""
        source = self.source
        sender = source.choice(list(PARTIES))
        receiver = source.choice(list(PARTIES)) if sender == COORDINATOR or source.random() < 0.2 else COORDINATOR
        self.number += source.randrange(3)
        sequence = source.choice([self.number] * 8 + [1, 2**62, max(1, self.number - 5)])
        run = source.choice(["", "run", f"run-{source.randrange(30)}", "é", "x" * 200])
        federation = source.choice([HEART] * 12 + ["cd" * 32])
        signer = source.choice([PARTIES[sender]] * 12 + [STRANGER, *PARTIES.values()])
        heading = Heading(federation, sender, receiver, run, sequence)
        data = Envelope.made(
            heading, signer, PARTIES[receiver].public, source.randbytes(source.randrange(60))
        ).to_bytes()
        if source.random() < 0.1:
            data = bent_bytes(source, data, b"[]\n")
        elif source.random() < 0.1:
            head, _, rest = data.partition(b"\n")
            bent = bent_tree(source, json.loads(head))
            data = json.dumps(bent).encode() + b"\n" + rest
        return data

    def deposit(self) -> None:
        data = self.envelope()
        try:
            heading = Envelope.from_bytes(data).heading
            self.tally["read"] += 1
        except ValueError:
            heading = None
        name = self.source.choice([*PARTIES, heading.sender, heading.sender] if heading else list(PARTIES))
        self.place.relay.deposit(self.token(name), data)
        assert heading is not None and heading.sender == name in PARTIES
        Envelope.from_bytes(data).check_sender(PARTIES[name].public)
        assert COORDINATOR in (name, heading.receiver)
        self.left[heading.receiver].add(data)
        self.tally["left"] += 1

    def token(self, name: str) -> str:
        return self.tokens.get(name, "f" * 64) if self.source.random() < 0.97 else self.source.choice(["", "x", "é"])

    def collect(self) -> None:
        name = self.source.choice(NAMES)
        found = self.place.relay.collect(self.token(name), self.source.choice([1, 500, 2**20]), None)
        assert set(found) <= self.left[name]
        self.tally["handed out"] += len(found)
        if found and self.source.random() < 0.7:
            data = acknowledgement(PARTIES[name], HEART, name, [Envelope.from_bytes(each).digest for each in found])
            if self.source.random() < 0.4:
                data = bent_text(self.source, bent_bytes(self.source, data, b"[]").decode(errors="replace")).encode()
            self.place.relay.acknowledge(self.token(name), data)
            self.tally["taken"] += 1

    def session(self) -> None:
        name, source = self.source.choice(NAMES), self.source
        made = json.loads(claim(PARTIES.get(name, STRANGER), HEART, name, self.place.relay.challenge()))
        if source.random() < 0.7:
            made = bent_tree(source, made)
        elif source.random() < 0.2:
            made[source.randrange(3)] = source.choice(ODD)
        self.place.relay.session(json.dumps(made).encode())
        assert made[0] in PARTIES
        self.tally["sessions"] += 1


def searched(tmp_path, count: int) -> Counter:
    source = Random(fuzz_seed())
    place = Place(tmp_path, envelopes=20, size=20_000, one=500)
    made = Members(place, source)
    try:
        for number in range(count):
            act = source.choices([made.deposit, made.collect, made.session], [6, 3, 1])[0]
            try:
                act()
            except Refused as refused:
                assert refused.code in CODES and refused.sentence
                made.tally[f"refused: {refused.code}"] += 1
            if number % 100 == 0:
                held = [place.boxes.held(name) for name in PARTIES]
                assert all(each.envelopes <= 20 and each.size <= 20_000 for each in held)
                made.tokens = {name: place.token(name) for name in PARTIES}
    finally:
        place.boxes.close()
    print(made.tally)
    return made.tally


def test_a_relay_hands_out_what_members_signed_and_nothing_else(tmp_path):
    tally = searched(tmp_path, FEW)
    assert tally["left"] > 50 and tally["handed out"] > 50 and tally["taken"] > 10 and tally["sessions"] > 3
    assert tally["read"] > 0.3 * FEW and tally["refused: other"] > 20 and tally["refused: form"] > 10


@pytest.mark.minutes
def test_ten_thousand_calls_of_hostile_members(tmp_path):
    tally = searched(tmp_path, MANY)
    assert tally["left"] > 1000 and tally["read"] > 0.3 * MANY
