"""The roster of a silo: keys of the other silos of its federation, each confirmed by the silo's operator.

Nothing that a relay or a coordinator sends changes it. What is sealed between silos is sealed to these keys alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedcore.data.federations.card import Card, read_card
from fedcore.data.federations.rotation import Joining, read_joining
from fedcore.errors import InputError
from fedcore.ledger.anchor import write_whole
from fedcore.process.private_files import make_private

FOLDER = "roster"
MOST_PINNED = 4096


@dataclass(frozen=True)
class Roster:
    """The roster in `folder` of the silo `name` in a federation (64 hex). Methods raise InputError."""

    folder: Path
    name: str
    federation: str

    @property
    def cards(self) -> list[Card]:
        """The cards that were pinned, by name."""
        found = [read_card(path) for path in sorted(self.folder.glob("*.card"))]
        for card in found:
            if card.federation != self.federation:
                raise InputError(f"{self.folder}: the card of {card.name} is of another federation; delete it")
        return found

    def read(self, path: Path) -> Joining:
        """The card or rotation in a file, which `pin` would take."""
        joining = read_joining(path)
        card = joining.card
        if card.federation != self.federation:
            raise InputError(
                f"{path}: the card of {card.name} is of federation {card.federation[:12]}, not of this one"
            )
        if card.name == self.name:
            raise InputError(f"{path}: it is this silo's own card; the roster holds those of the others")
        pinned = {each.name: each.keys for each in self.cards}
        if pinned.get(card.name, card.keys) not in (card.keys, joining.replaces):
            raise InputError(
                f"{path}: other keys are pinned for {card.name}: `fedcore silo rotate` makes a file signed by both, "
                f"or `fedcore silo unpin {card.name}` comes first"
            )
        if twins := [name for name, keys in pinned.items() if name != card.name and keys.signing == card.keys.signing]:
            raise InputError(f"{path}: the card of {card.name} has the keys of {twins[0]}")
        if card.name not in pinned and len(pinned) >= MOST_PINNED:
            raise InputError(f"{self.folder}: it holds {MOST_PINNED} cards, and no more")
        return joining

    def pin(self, joining: Joining) -> None:
        """Stores a card that `read` returned, after its fingerprint was confirmed."""
        try:
            make_private(self.folder)
            write_whole(self.folder / f"{joining.card.name}.card", joining.text)
        except OSError as error:
            raise InputError(f"{self.folder}: it cannot be written ({error.strerror})") from None

    def unpin(self, name: str) -> None:
        """Deletes the card of a silo."""
        if name not in {card.name for card in self.cards}:
            raise InputError(f"no keys of {name} are pinned in {self.folder}")
        try:
            (self.folder / f"{name}.card").unlink()
        except OSError as error:
            raise InputError(f"{self.folder}: it cannot be written ({error.strerror})") from None
