"""How much accounting is done for somebody else's question, counted in points of grids and not by a clock.

Composing privacy losses is what costs in a plan with samples, and how much follows from the numbers of whoever asks.
Within `effort_within` every grid is counted before it is made. The count is the same on every machine, but for what an
earlier question has left in caches, which only makes it less.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from fedcore.errors import InputError
from fedcore.limits import LARGEST_GRID, MOST_EFFORT

_SPENT: ContextVar[list[int] | None] = ContextVar("effort of accounting", default=None)


@contextmanager
def effort_within(most: int = MOST_EFFORT) -> Iterator[list[int]]:
    """Within the block this thread's accounting takes at most so many points, and no grid above `LARGEST_GRID`.

    Gives a list, whose last number is what has been taken.
    """
    spent = [most, 0]
    token = _SPENT.set(spent)
    try:
        yield spent
    finally:
        _SPENT.reset(token)


def take_effort(points: int) -> None:
    """Counts a grid of so many points. Raises InputError if it, or all together, are more than the block allows."""
    spent = _SPENT.get()
    if spent is None:
        return
    spent[1] += points
    if points > LARGEST_GRID:
        raise InputError(
            f"accounting for its samples takes a grid of {points:,} points, and a site makes at most {LARGEST_GRID:,}: "
            "ask for other samples, noise or delta"
        )
    if spent[1] > spent[0]:
        raise InputError(
            f"accounting for its samples takes more than {spent[0]:,} points of grids, which is what a site makes for "
            "one agreement: ask for fewer answers about samples, fewer different sizes of silos, or all records in "
            "each answer"
        )
