"""A party's inbox: checks everything about an envelope that arrives, before its body is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import NamedTuple

from fedcore.identity.envelope import Envelope, Heading
from fedcore.identity.keys import Identity, PublicIdentity
from fedcore.identity.sequences import Sequences


class Inbox:
    """The inbox of the party `name` in a federation."""

    def __init__(self, name: str, federation: str, identity: Identity) -> None:
        self._name, self._federation, self._identity = name, federation, identity

    def opened(self, envelope: Envelope, senders: Mapping[str, PublicIdentity]) -> bytes:
        """The body of an envelope of one of these senders. Raises ValueError, with a public sentence, for others."""
        heading = envelope.heading
        if heading.federation != self._federation:
            raise ValueError(f"it is an envelope of federation {heading.federation[:12]}, and this is another")
        if heading.receiver != self._name:
            raise ValueError(f"it is an envelope to {heading.receiver}, and this is {self._name}")
        sender = senders.get(heading.sender)
        if sender is None:
            raise ValueError(f"it knows no keys of {heading.sender}, or has revoked them")
        return envelope.opened(self._identity, sender)

    def answer(self, data: bytes, sender: str, public: PublicIdentity, run: str, sequence: int) -> bytes:
        """The body of the sender's answer to the envelope with this run and sequence.

        An answer has its question's number, so there is nothing to remember. Raises ValueError for any other bytes.
        """
        envelope = Envelope.from_bytes(data)
        heading = envelope.heading
        if (heading.run, heading.sequence) != (run, sequence):
            raise ValueError(f"an envelope of {heading.sender} answers another question")
        return self.opened(envelope, {sender: public})


class Received(NamedTuple):
    """An envelope that was taken: its heading, body, and digest (32 bytes), by which an answer names it."""

    heading: Heading
    body: bytes
    digest: bytes


class Questions:
    """The questions that come to an inbox, each taken once and in order. `clock`: the time now, with a zone."""

    def __init__(self, inbox: Inbox, sequences: Sequences, clock: Callable[[], datetime]) -> None:
        self._inbox, self._sequences, self._clock = inbox, sequences, clock

    def take(self, data: bytes, senders: Mapping[str, PublicIdentity]) -> Received:
        """Takes an envelope of one of these senders.

        Raises ValueError, with a public sentence, for any other bytes; InputError if the disk fails.
        """
        envelope = Envelope.from_bytes(data)
        body = self._inbox.opened(envelope, senders)
        self._sequences.take(envelope.heading, envelope.digest, self._clock())
        return Received(envelope.heading, body, envelope.digest)

    def answered(self, received: Received) -> None:
        """Notes that an envelope's answer is on its way: from now on the envelope is refused. Raises InputError."""
        self._sequences.answered(received.heading)
