"""Invitations to a federation: its id and name, its relay's address, and its coordinator's keys, which sign it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, TypeAdapter

from fedcore.errors import InputError
from fedcore.identity.envelope import PARTY
from fedcore.identity.keys import Identity, PublicIdentity
from fedcore.identity.signed_file import read_signed, signed_text

KIND = "invitation"
LONGEST_ADDRESS = 300
_FIELDS = "federation", "name", "relay"
_CONTENT = TypeAdapter(
    tuple[
        Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")],
        Annotated[str, Field(pattern=PARTY)],
        Annotated[str, Field(max_length=LONGEST_ADDRESS)],
    ],
    config=ConfigDict(strict=True),
)


@dataclass(frozen=True)
class Invitation:
    """A federation's id (64 hex), its name, the address of its relay, and its coordinator."""

    federation: str
    name: str
    relay: str
    coordinator: PublicIdentity

    @classmethod
    def new(cls, name: str, relay: str, coordinator: PublicIdentity) -> Invitation:
        """The invitation to a new federation, with a random id. Raises InputError for a wrong name or address."""
        return cls._checked("the invitation", [secrets.token_hex(32), name, relay], coordinator)

    def text(self, coordinator: Identity) -> str:
        """The invitation as a signed file."""
        return signed_text(KIND, dict(zip(_FIELDS, (self.federation, self.name, self.relay), strict=True)), coordinator)

    @classmethod
    def read(cls, path: Path) -> Invitation:
        """The invitation in a file. Its reader compares the coordinator's fingerprint. Raises InputError."""
        content, signer = read_signed(KIND, path)
        if set(content) != set(_FIELDS):
            raise InputError(f"{path}: the invitation has other fields than {', '.join(_FIELDS)}")
        return cls._checked(str(path), [content[each] for each in _FIELDS], signer)

    @classmethod
    def _checked(cls, where: str, values: list[Any], coordinator: PublicIdentity) -> Invitation:
        try:
            federation, name, relay = _CONTENT.validate_python(tuple(values))
        except ValueError:
            raise InputError(
                f"{where}: a federation's name has 1 to 63 letters, digits and ._- and begins with a letter or digit"
            ) from None
        check_relay(where, relay)
        return cls(federation, name, relay.rstrip("/"), coordinator)


def check_relay(where: str, address: str) -> None:
    """Raises InputError for text that is no address of a relay."""
    fault = not address.isprintable()
    try:
        parts = urlsplit(address)
        fault = fault or parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0
        fault = fault or parts.username is not None or bool(parts.path.strip("/") or parts.query or parts.fragment)
    except ValueError:
        fault = True
    if fault:
        raise InputError(f"{where}: {address[:80]!r} is no address of a relay: write https://host, or http://host:port")
