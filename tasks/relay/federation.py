"""A federation's folder at its coordinator: keys, invitation, cards of silos, and the signed list of members."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from filelock import FileLock, Timeout
from pydantic import ConfigDict, Field, TypeAdapter

from fedcore.bounded_file import read_within
from fedcore.data.federations.card import Card
from fedcore.data.federations.joined import CARDS, cards_in
from fedcore.data.federations.rotation import Joining
from fedcore.errors import BusyError, InputError
from fedcore.home import Home
from fedcore.identity.invitation import Invitation
from fedcore.identity.keys import Identity, PublicIdentity
from fedcore.identity.signed_file import LARGEST_FILE
from fedcore.ledger.anchor import write_whole
from fedcore.process.private_files import make_private
from fedcore.relay.members import COORDINATOR, Members

KEYS, INVITATION, LIST, REVOKED = "coordinator.keys", "invitation.json", "members.json", "revoked.json"
_DIGESTS = TypeAdapter(list[Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]], config=ConfigDict(strict=True))
PATIENCE = 10.0


@dataclass(frozen=True)
class Federation:
    """The federation in `folder`. Methods raise InputError for files that cannot be used."""

    folder: Path
    identity: Identity
    invitation: Invitation

    @classmethod
    def new(cls, home: Home, name: str, relay: str) -> Federation:
        """A new federation, of new keys, without silos. Raises InputError if the home has one of this name."""
        identity = Identity.new()
        invitation = Invitation.new(name, relay, identity.public)
        folder = home.federations / name
        if (folder / KEYS).exists():
            raise InputError(f"{folder}: there is a federation {name} already; name another")
        make_private(folder / CARDS)
        found = cls(folder, identity, invitation)
        with found._alone():
            identity.store(folder / KEYS)
            _write(folder / INVITATION, invitation.text(identity))
            found._store(1, [])
        return found

    @classmethod
    def of(cls, home: Home, name: str) -> Federation:
        """The federation of this name. Raises InputError if there is none."""
        folder = home.federations / name
        if not (folder / KEYS).exists():
            raise InputError(
                f"there is no federation {name} in {home.federations}; `fedcore federation init` makes one"
            )
        identity = Identity.stored(folder / KEYS)
        invitation = Invitation.read(folder / INVITATION)
        if invitation.coordinator != identity.public or invitation.name != name:
            raise InputError(f"{folder}: its invitation is of another federation than its keys")
        return cls(folder, identity, invitation)

    @classmethod
    def of_id(cls, home: Home, federation: str) -> Federation:
        """The federation with this id (64 hex). Raises InputError if its coordinator is not here."""
        for path in sorted(home.federations.glob(f"*/{KEYS}")):
            found = cls.of(home, path.parent.name)
            if found.invitation.federation == federation:
                return found
        raise InputError(f"no federation with id {federation[:12]} has its coordinator in {home.federations}")

    @property
    def members(self) -> Members:
        """The newest list of members."""
        try:
            text = read_within(self.folder / LIST, LARGEST_FILE)
        except OSError as error:
            raise InputError(f"{self.folder / LIST}: it cannot be read ({error.strerror})") from None
        return Members.of_text(text, str(self.folder / LIST), self.identity.public, self.invitation.federation)

    @property
    def cards(self) -> list[Card]:
        """Cards of the silos, by name. Raises InputError for a card of keys that are not those on the list."""
        return self._cards_but(None)

    def _cards_but(self, name: str | None) -> list[Card]:
        found, keys = [card for card in cards_in(self.folder) if card.name != name], self.members.keys
        for card in found:
            if keys.get(card.name) != card.keys:
                raise InputError(
                    f"{self.folder}: the card of {card.name} has other keys than the signed list of members"
                )
        return found

    def check(self, card: Card, replaces: PublicIdentity | None = None) -> None:
        """Raises InputError unless the silo of this card can join, or join again with the same keys.

        `replaces`: keys whose holder has signed these ones besides; then they may be the silo's until now.
        """
        if card.federation != self.invitation.federation:
            raise InputError(
                f"the card of {card.name} is of federation {card.federation[:12]}, and {self.invitation.name} is "
                f"{self.invitation.federation[:12]}"
            )
        keys = self.members.keys
        if card.keys.digest.hex() in self._revoked():
            raise InputError(f"the keys of {card.name} were revoked: the silo makes new ones, or takes another name")
        if card.name == COORDINATOR or keys.get(card.name, card.keys) not in (card.keys, replaces):
            raise InputError(
                f"another party is named {card.name}: a silo keeps its keys, or is removed before its name is taken"
            )
        if twins := [name for name, each in keys.items() if name != card.name and each.signing == card.keys.signing]:
            raise InputError(f"the card of {card.name} has the keys of {twins[0]}")
        for other in self._cards_but(card.name):  # a kill may have left its own card with keys from before
            if (fault := card.preparation.difference(other.preparation)) is not None:
                raise InputError(
                    f"silo {card.name} prepares its records otherwise than {other.name}: {fault}; the silos of a "
                    "federation have one schema"
                )

    def add(self, joining: Joining) -> None:
        """Takes a card, in place of an earlier one of its silo. Raises InputError as `check`."""
        card, text, replaces = joining
        with self._alone():
            self.check(card, replaces)
            others = [each for each in cards_in(self.folder) if each.name != card.name]
            self._store(self.members.number + 1, [*others, card])  # first: a card counts with its keys on the list
            _write(self.folder / CARDS / f"{card.name}.card", text.decode())

    def remove(self, name: str, revokes: bool = False) -> None:
        """Removes a silo: from the next list on the relay serves it no more. `revokes`: its keys never join again."""
        with self._alone():
            members = self.members
            if name == COORDINATOR or name not in members.keys:
                raise InputError(f"no silo {name} is in federation {self.invitation.name}")
            if revokes:
                revoked = sorted({*self._revoked(), members.keys[name].digest.hex()})
                _write(self.folder / REVOKED, json.dumps(revoked))
            (self.folder / CARDS / f"{name}.card").unlink(missing_ok=True)
            self._store(members.number + 1, cards_in(self.folder))

    def _revoked(self) -> list[str]:
        """Digests (hex) of keys that were revoked. Raises InputError for a file that cannot be read."""
        path = self.folder / REVOKED
        try:
            return _DIGESTS.validate_json(read_within(path, LARGEST_FILE))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise InputError(f"{path}: it cannot be read ({error.strerror})") from None
        except ValueError:
            raise InputError(f"{path}: it is no list of revoked keys; put it back from a backup") from None

    def _store(self, number: int, cards: list[Card]) -> None:
        keys: dict[str, PublicIdentity] = {COORDINATOR: self.identity.public}
        members = Members(self.invitation.federation, number, keys | {card.name: card.keys for card in cards})
        _write(self.folder / LIST, members.text(self.identity))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        try:
            with FileLock(self.folder / "lock", timeout=PATIENCE):
                yield
        except Timeout:
            raise BusyError(f"{self.folder}: another command changes the federation; try again") from None


def _write(path: Path, text: str) -> None:
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise InputError(f"{path}: it cannot be written ({error.strerror})") from None
