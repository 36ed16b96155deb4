"""A shuffler with its own folder and a test clock, and rounds of made-up sealed messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from fedcore.shuffling.batches import Batches
from fedcore.shuffling.forms import Address, Envelope, Opening, Request, SealedBatch
from fedcore.shuffling.shuffler import Shuffler

KEY, OTHER_KEY, OWNER, STRANGER = "a" * 64, "b" * 64, "c" * 64, "d" * 64
NAMES = ("ash", "birch", "cedar", "dogwood")
QUESTION, OTHER_QUESTION = "e" * 64, "f" * 64
LENGTH = 56 + 8


def at(round: int = 1, phase: int = 1, run: str = "run") -> Address:
    return Address(run, phase, round)


def sealed(name: str, fill: str = "") -> bytes:
    """A made-up message of the silo's, without a word of its name in it."""
    return bytes((7 * NAMES.index(name) + 13 * len(fill) + place) % 251 for place in range(LENGTH))


class Desk:
    """A shuffler, and short methods for its callers' messages. `now`: its clock."""

    def __init__(self, folder: Path, least: int = 1) -> None:
        self.path = folder / "batches.sqlite"
        self.least, self.now = least, 1000.0
        self.restart()

    def restart(self) -> None:
        """Restarts as after kill -9: the memory is lost."""
        self.shuffler = Shuffler(Batches(self.path), self.least, clock=lambda: self.now)

    def open(
        self,
        address: Address,
        names: Sequence[str] = NAMES,
        minimum: int = 2,
        deadline: float = 10.0,
        length: int = LENGTH,
        question: str = QUESTION,
        key: str = KEY,
        owner: str = OWNER,
    ) -> bool:
        opening = Opening(address, tuple(names), minimum, deadline, length, question, key, owner)
        return self.shuffler.open(opening.to_bytes())

    def take(
        self,
        address: Address,
        names: Iterable[str] = NAMES,
        fill: str = "",
        minimum: int = 2,
        question: str = QUESTION,
        key: str = KEY,
    ) -> None:
        for name in names:
            self.shuffler.take(Envelope(address, name, minimum, question, key, sealed(name, fill)).to_bytes())

    def batch(self, address: Address, owner: str = OWNER, seconds: float = 0.0) -> list[bytes] | None:
        data = self.shuffler.batch(Request(address, owner).to_bytes(), seconds)
        return None if data is None else list(SealedBatch.from_bytes(data).messages)

    def end(self, run: str = "run", owner: str = OWNER) -> None:
        self.shuffler.batch(Request(Address(run, 1, 1), owner, ends=True).to_bytes())
