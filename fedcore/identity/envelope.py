"""Envelopes between parties of a federation: sealed to the receiver, then signed by the sender.

Whoever carries an envelope reads its heading and size, and can neither read the body nor make an envelope. The
signature covers the heading and the sealed bytes. The `info` of the sealing covers the heading and the sender's keys.
So a signature that is replaced by another party's leaves bytes that do not open.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter

from fedcore.identity.keys import SIGNATURE_BYTES, Identity, PublicIdentity
from fedcore.identity.sealing import OVERHEAD, seal_bytes
from fedcore.limits import MOST_WEIGHTS

FORM = 1
"""Version of envelopes, the first value of each; parties with different ones refuse each other's."""
LARGEST_BODY = 8 * MOST_WEIGHTS + 2**20
"""Bytes of a body: an answer of the most weights, and its address."""
LARGEST_HEADING = 2**12
"""Bytes of a heading: three names, a run's id, each character escaped, and two numbers."""
LONGEST_PARTY = 63
PARTY = rf"^[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST_PARTY - 1}}}$"
"""Names of parties: they are parts of file names, of addresses and of log lines."""
LONGEST_RUN = 200
_SIGNED, _SEALED = b"fedcore envelope, signed\0", b"fedcore envelope, sealed\0"

_Party = Annotated[str, Field(pattern=PARTY)]
_HEADING = TypeAdapter(
    tuple[
        int,
        Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")],
        _Party,
        _Party,
        Annotated[str, Field(max_length=LONGEST_RUN)],
        Annotated[int, Field(ge=1, lt=2**63)],
    ],
    config=ConfigDict(strict=True),
)


@dataclass(frozen=True)
class Heading:
    """The part that a carrier reads: federation (64 hex), sender, receiver, run (empty: none), and sequence.

    `sequence`: grows with each envelope of a sender to a receiver about a run (`fedcore.identity.sequences`).
    """

    federation: str
    sender: str
    receiver: str
    run: str
    sequence: int

    def to_bytes(self) -> bytes:
        """One line of JSON."""
        fields = [FORM, self.federation, self.sender, self.receiver, self.run, self.sequence]
        return json.dumps(fields).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Heading:
        """The heading that `to_bytes` wrote. Raises ValueError for other bytes, and for another version's."""
        try:
            if len(data) > LARGEST_HEADING:
                raise ValueError
            form, federation, sender, receiver, run, sequence = _HEADING.validate_json(data)
        except ValueError:
            _refuse_other_form(data)
            raise ValueError("an envelope's heading has other fields, or a value of it is out of bounds") from None
        if form != FORM:
            _refuse_other_form(data)
        found = cls(federation, sender, receiver, run, sequence)
        if found.to_bytes() != data or not found.run.isprintable():
            raise ValueError("an envelope's heading has one form, and this is another")
        return found


@dataclass(frozen=True)
class Envelope:
    """A heading, the sealed body, and the sender's signature over both."""

    heading: Heading
    signature: bytes = field(repr=False)
    sealed: bytes = field(repr=False)

    def to_bytes(self) -> bytes:
        return b"".join([self.heading.to_bytes(), b"\n", self.signature, self.sealed])

    @classmethod
    def from_bytes(cls, data: bytes) -> Envelope:
        """The envelope that `to_bytes` wrote; its signature is not checked. Raises ValueError for other bytes."""
        if type(data) is not bytes:
            raise ValueError("an envelope is bytes")
        if len(data) > LARGEST_HEADING + 1 + SIGNATURE_BYTES + OVERHEAD + LARGEST_BODY:
            raise ValueError(f"an envelope of {len(data)} bytes is too long")
        head, _, rest = data.partition(b"\n")
        heading = Heading.from_bytes(head)
        if len(rest) < SIGNATURE_BYTES + OVERHEAD:
            raise ValueError("an envelope is cut")
        return cls(heading, rest[:SIGNATURE_BYTES], rest[SIGNATURE_BYTES:])

    @classmethod
    def made(cls, heading: Heading, sender: Identity, receiver: PublicIdentity, body: bytes) -> Envelope:
        """The body in an envelope of `sender`. Raises ValueError for a body that is too long, or an invalid key."""
        if len(body) > LARGEST_BODY:
            raise ValueError(f"a body of {len(body)} bytes is too long: {LARGEST_BODY} at most")
        sealed = seal_bytes(receiver.sealing, _info(heading, sender.public), body)
        return cls(heading, sender.sign(_signed_text(heading, sealed)), sealed)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the envelope (32 bytes), by which an answer names its question and a receiver what it has."""
        return hashlib.sha256(self.to_bytes()).digest()

    def check_sender(self, sender: PublicIdentity) -> None:
        """Raises ValueError unless `sender` signed the envelope."""
        sender.check_signature(self.signature, _signed_text(self.heading, self.sealed))

    def opened(self, receiver: Identity, sender: PublicIdentity) -> bytes:
        """The body. Raises ValueError unless `sender` signed the envelope and sealed it to `receiver`."""
        self.check_sender(sender)
        return receiver.opened(self.sealed, _info(self.heading, sender))


def _signed_text(heading: Heading, sealed: bytes) -> bytes:
    return _SIGNED + heading.to_bytes() + b"\n" + hashlib.sha256(sealed).digest()


def _info(heading: Heading, sender: PublicIdentity) -> bytes:
    return _SEALED + sender.digest + heading.to_bytes()


def _refuse_other_form(data: bytes) -> None:
    """Raises ValueError that names both versions, if the bytes begin like a heading of another version."""
    found = _form_of(data)
    if found is not None and found != FORM:
        raise ValueError(
            f"it is an envelope of form {found}, and this installation writes form {FORM}: install the same version "
            "of fedcore at both ends"
        )


def _form_of(data: bytes) -> Any:
    begin, comma, _ = data[:12].partition(b",")
    number = begin.removeprefix(b"[")
    return int(number) if comma and begin.startswith(b"[") and number.isdigit() else None
