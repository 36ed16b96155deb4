"""Cards: the public facts of a silo, which it signs when it joins a federation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from fedcore.arrays import canonical_json, digest
from fedcore.bounded_file import read_within
from fedcore.data.federations.preparation import Preparation
from fedcore.errors import InputError
from fedcore.identity.envelope import PARTY
from fedcore.identity.keys import Identity, PublicIdentity
from fedcore.identity.signed_file import LARGEST_FILE, signed_content, signed_text

KIND = "card"
_FIELDS = ("federation", "name", "records", "version", "preparation", "fedcore", "agreement")
_CONTENT = TypeAdapter(
    tuple[
        Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")],
        Annotated[str, Field(pattern=PARTY)],
        Annotated[int, Field(ge=2, lt=2**40)],
        Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")],
        dict[str, Any],
        Annotated[str, Field(max_length=40)],
        Annotated[int, Field(ge=1, lt=2**31)],
    ],
    config=ConfigDict(strict=True),
)


@dataclass(frozen=True)
class Card:
    """A silo's facts: federation (64 hex), name, records (or persons), data version, preparation, and keys.

    `fedcore`, `agreement`: version of the silo's installation, and of the agreements that it reads.
    """

    federation: str
    name: str
    records: int
    version: str
    preparation: Preparation
    fedcore: str
    agreement: int
    keys: PublicIdentity

    def text(self, silo: Identity) -> str:
        """The card as a signed file. Raises ValueError unless `silo` has the keys of the card."""
        if silo.public != self.keys:
            raise ValueError("a card is signed by the silo whose keys are in it")
        values = [self.federation, self.name, self.records, self.version]
        values += [self.preparation.model_dump(mode="json"), self.fedcore, self.agreement]
        return signed_text(KIND, dict(zip(_FIELDS, values, strict=True)), silo)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the facts that decide a run's result: name, records, version and preparation."""
        facts = [self.name, self.records, self.version, self.preparation.model_dump(mode="json")]
        return digest(canonical_json(facts).encode()).hex()


def read_card(path: Path) -> Card:
    """The card in a file. Its reader compares the silo's fingerprint. Raises InputError."""
    try:
        text = read_within(path, LARGEST_FILE)
    except OSError as error:
        raise InputError(f"{path}: it cannot be read ({error.strerror})") from None
    return card_of_text(text, str(path))


@lru_cache(maxsize=4096)  # a sweep plans each cell from the same cards
def card_of_text(text: bytes, where: str) -> Card:
    """The card in the text of a file at `where`. Raises InputError."""
    content, signer = signed_content(KIND, text, where)
    try:
        if set(content) != set(_FIELDS):
            raise ValueError
        values = _CONTENT.validate_python(tuple(content[key] for key in _FIELDS))
    except ValueError:
        raise InputError(f"{where}: the card has other fields, or a value of it is out of bounds") from None
    federation, name, records, version, plain, release, agreement = values
    try:
        preparation = Preparation.model_validate(plain)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(str(part) for part in fault["loc"])
        raise InputError(f"{where}: the card's columns do not fit: {key}: {fault['msg']}") from None
    return Card(federation, name, records, version, preparation, release, agreement, signer)
