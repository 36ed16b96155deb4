"""The receipts of a run, in storage but for the newest: in memory they would grow with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from fedcore.messages import Receipt, Releases


class Receipts:
    """All receipts of a run in the order of its rounds; each iteration reads storage again.

    `stored`: reads the stored ones; `newest`: phase and round of the last of them. `new`: the round to be stored next.
    """

    def __init__(self, stored: Callable[[], Iterable[Receipt]], newest: tuple[int, int] | None) -> None:
        self._stored, self._newest = stored, newest
        self.new: list[Receipt] = []

    def __iter__(self) -> Iterator[Receipt]:
        last = None
        for receipt in self._stored():
            last = receipt[1:3]
            yield receipt
        # The new ones may be stored already, if a driver was interrupted before its call of `saved`.
        if self.new and self.new[0][1:3] != last:
            yield from self.new

    def take(self, releases: Releases) -> None:
        """Takes a round's releases, unless stored: a driver may repeat a round after a kill."""
        if len(releases) and (address := (releases.phase, releases.round)) != self._newest:
            self.new, self._newest = releases.receipts, address

    def saved(self) -> None:
        """Drops the new ones, which are stored now."""
        self.new = []
