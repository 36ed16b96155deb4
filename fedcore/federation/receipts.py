"""The receipts of a run, most of them where they are kept: in memory they would grow as long as the run goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from fedcore.messages import Receipt, Release


class Receipts:
    """All receipts of a run in the order of its rounds, read anew each time that they are gone through.

    `kept`: reads those that are kept; `newest`: phase and round of the last of them. `new`: those to be kept next.
    """

    def __init__(self, kept: Callable[[], Iterable[Receipt]], newest: tuple[int, int] | None) -> None:
        self._kept, self._newest = kept, newest
        self.new: list[Receipt] = []

    def __iter__(self) -> Iterator[Receipt]:
        last = None
        for receipt in self._kept():
            last = receipt[1:3]
            yield receipt
        # They may be kept already: a driver was interrupted before it could say `saved`.
        if self.new and self.new[0][1:3] != last:
            yield from self.new

    def take(self, releases: Sequence[Release]) -> None:
        """Takes those of a round, unless they are kept: its driver was killed after divergence,
        and it is asked again."""
        found = [release.receipt for release in releases]
        if found and (address := found[0][1:3]) != self._newest:
            self.new, self._newest = found, address

    def saved(self) -> None:
        """Lets go of the new ones, which are kept now."""
        self.new = []
