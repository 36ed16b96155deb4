"""A federation of two silos at a relay whose clock stands still."""

from __future__ import annotations

import pytest

from fedcore.identity.envelope import Envelope, Heading
from fedcore.identity.keys import Identity
from fedcore.relay.mailboxes import Mailboxes
from fedcore.relay.members import COORDINATOR, Members
from fedcore.relay.relay import Quotas, Relay
from fedcore.relay.sessions import claim

HEART = "ab" * 32
PARTIES = {name: Identity.new() for name in (COORDINATOR, "cleveland", "zurich")}
STRANGER = Identity.new()


def listed(number: int = 1, **keys: Identity) -> Members:
    parties = PARTIES | keys
    return Members(HEART, number, {name: each.public for name, each in parties.items()})


def envelope(sender: str, receiver: str, sequence: int, body: bytes = b"body", **changed: str) -> bytes:
    heading = Heading(changed.get("federation", HEART), sender, receiver, changed.get("run", "run-1"), sequence)
    return Envelope.made(heading, PARTIES[sender], PARTIES[receiver].public, body).to_bytes()


class Place:
    """A relay with its clock, and sessions by name."""

    def __init__(self, path, **quotas) -> None:
        self.now = 1000.0
        self.path, self.quotas = path, Quotas(**quotas)
        self.came: list[str] = []
        self.start()

    def start(self) -> None:
        self.boxes = Mailboxes(self.path / "envelopes.sqlite")
        self.relay = Relay(self.boxes, listed(), self.quotas, self.came.append, lambda: self.now)

    def token(self, name: str, identity: Identity | None = None) -> str:
        identity = identity or PARTIES[name]
        return self.relay.session(claim(identity, HEART, name, self.relay.challenge()))


@pytest.fixture
def place(tmp_path):
    made = Place(tmp_path)
    yield made
    made.boxes.close()
