"""Bound on the accounting that another party's question may cause, counted in grid points.

Composing privacy losses is the main cost of a plan with samples, and the asker's numbers decide it. Within
`effort_within` every grid is counted before it is made. The count is the same on every machine, except that caches of
earlier questions lower it.
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
    """Limits this thread's accounting in the block to `most` points, and each grid to `LARGEST_GRID`.

    Yields a list whose last number is the points counted so far.
    """
    spent = [most, 0]
    token = _SPENT.set(spent)
    try:
        yield spent
    finally:
        _SPENT.reset(token)


def take_effort(points: int) -> None:
    """Counts a grid of `points`. Raises InputError if the grid or the total exceeds the block's limit."""
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
