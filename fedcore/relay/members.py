"""The list of a federation's parties, signed by its coordinator: whom a relay serves.

A silo does not rely on it. It pinned the coordinator's keys when it joined, and other silos' from their cards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter

from fedcore.errors import InputError
from fedcore.identity.envelope import PARTY
from fedcore.identity.keys import Identity, PublicIdentity
from fedcore.identity.signed_file import signed_content, signed_text
from fedcore.limits import MOST_SILOS

KIND = "list of members"
COORDINATOR = "coordinator"
"""The coordinator's name as a party."""

_Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Name = Annotated[str, Field(pattern=PARTY)]
_LIST = TypeAdapter(
    tuple[
        _Hex,
        Annotated[int, Field(ge=1, lt=2**63)],
        Annotated[dict[_Name, tuple[_Hex, _Hex]], Field(max_length=MOST_SILOS)],
    ],
    config=ConfigDict(strict=True),
)
_KEYS = {"federation", "number", "members"}


@dataclass(frozen=True)
class Members:
    """The parties of a federation by name, the coordinator among them. `number`: grows with each new list."""

    federation: str
    number: int
    keys: Mapping[str, PublicIdentity]

    def text(self, coordinator: Identity) -> str:
        """The list as a signed file. Raises ValueError unless `coordinator` is the one in the list."""
        if self.keys.get(COORDINATOR) != coordinator.public:
            raise ValueError("a list of members is signed by the coordinator whose keys are in it")
        members = {name: [each.signing.hex(), each.sealing.hex()] for name, each in self.keys.items()}
        content = {"federation": self.federation, "number": self.number, "members": members}
        return signed_text(KIND, content, coordinator)

    @classmethod
    def of_text(cls, text: bytes, where: str, coordinator: PublicIdentity, federation: str) -> Members:
        """The list of this federation that its coordinator signed, from its text. Raises InputError, with `where`."""
        content, signer = signed_content(KIND, text, where)
        if signer != coordinator:
            raise InputError(
                f"{where}: it is signed by {signer.fingerprint}, and the coordinator is {coordinator.fingerprint}"
            )
        found, number, members = _checked(where, content)
        if found != federation:
            raise InputError(f"{where}: it is of federation {found[:12]}, and this one is {federation[:12]}")
        keys = {name: PublicIdentity(*map(bytes.fromhex, pair)) for name, pair in members.items()}
        if keys.get(COORDINATOR) != coordinator:
            raise InputError(f"{where}: it lists other keys for the coordinator than those that signed it")
        if len({each.signing for each in keys.values()}) < len(keys):
            raise InputError(f"{where}: two of its parties have one signing key")
        return cls(found, number, keys)


def _checked(where: str, content: dict[str, Any]) -> tuple[str, int, dict[str, tuple[str, str]]]:
    try:
        if set(content) != _KEYS:
            raise ValueError
        members = content["members"]
        pairs = {name: tuple(pair) for name, pair in members.items()} if type(members) is dict else members
        return _LIST.validate_python((content["federation"], content["number"], pairs))
    except (ValueError, TypeError):
        pass
    raise InputError(f"{where}: the list has other fields, or a value of it is out of bounds")
