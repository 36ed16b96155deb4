"""Acknowledgements: a party's signed word that it has envelopes, which a relay then deletes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter

from fedcore.errors import Refused
from fedcore.identity.keys import Identity
from fedcore.relay.sessions import FORM

MOST_ACKNOWLEDGED = 2**10
LARGEST_ACKNOWLEDGEMENT = 2**17
_TAKEN = b"fedcore relay, taken\0"

_ACKNOWLEDGEMENT = TypeAdapter(
    tuple[
        Annotated[list[Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]], Field(max_length=MOST_ACKNOWLEDGED)],
        Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")],
    ],
    config=ConfigDict(strict=True),
)


def acknowledgement(identity: Identity, federation: str, name: str, digests: Sequence[bytes]) -> bytes:
    """A party's word that it has these envelopes, whose digests are 32 bytes each, as one line."""
    signature = identity.sign(signed_text(federation, name, digests))
    return json.dumps([[each.hex() for each in digests], signature.hex()]).encode()


def acknowledged(data: bytes) -> tuple[list[bytes], bytes]:
    """Digests and signature of an acknowledgement, whose signature is not checked. Raises Refused for other bytes."""
    try:
        if len(data) > LARGEST_ACKNOWLEDGEMENT:
            raise ValueError
        digests, signature = _ACKNOWLEDGEMENT.validate_json(data)
    except ValueError:
        raise Refused(FORM, "an acknowledgement has other fields, or a value of it is out of bounds") from None
    return [bytes.fromhex(each) for each in digests], bytes.fromhex(signature)


def signed_text(federation: str, name: str, digests: Sequence[bytes]) -> bytes:
    """The bytes that an acknowledgement's signature covers."""
    return _TAKEN + json.dumps([federation, name]).encode() + b"\n" + b"".join(digests)
