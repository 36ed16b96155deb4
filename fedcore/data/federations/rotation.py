"""Rotations: a silo's card with new keys, which the silo signs with its old keys too.

The new keys sign the card, and the old ones a file around it. To replace a silo's keys takes both, and a coordinator
who compares the new fingerprint as at a joining.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fedcore.bounded_file import read_within
from fedcore.data.federations.card import KIND as CARD
from fedcore.data.federations.card import Card, card_of_text
from fedcore.errors import InputError
from fedcore.identity.keys import Identity, PublicIdentity
from fedcore.identity.signed_file import LARGEST_FILE, kind_of, signed_content, signed_text

KIND = "rotation"
_CARD = "card"


class Joining(NamedTuple):
    """A card, its text, and the keys that it replaces; None for a silo that joins, or has the same keys."""

    card: Card
    text: bytes
    replaces: PublicIdentity | None


def rotation_text(card: str, old: Identity) -> str:
    """The text of a rotation to the keys of a card. `card`: the card's own text; `old`: the keys until now."""
    return signed_text(KIND, {_CARD: card}, old)


def read_joining(path: Path) -> Joining:
    """The card or rotation in a file. Its reader compares the silo's fingerprint. Raises InputError."""
    try:
        text = read_within(path, LARGEST_FILE)
    except OSError as error:
        raise InputError(f"{path}: it cannot be read ({error.strerror})") from None
    return joining_of_text(text, str(path))


def joining_of_text(text: bytes, where: str) -> Joining:
    """The card or rotation in the text of a file at `where`. Raises InputError for any other file."""
    if kind_of(text) != KIND:
        return Joining(card_of_text(text, where), text, None)
    content, old = signed_content(KIND, text, where)
    if set(content) != {_CARD} or type(content[_CARD]) is not str:
        raise InputError(f"{where}: the {KIND} has other fields than a {CARD}")
    inner = content[_CARD].encode()
    return Joining(card_of_text(inner, where), inner, old)
