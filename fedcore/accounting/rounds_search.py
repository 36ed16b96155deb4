"""Search for the largest number of rounds within an epsilon, for accountants without an inverse."""

from __future__ import annotations

from collections.abc import Callable

from fedcore.errors import InputError

ROUNDS_LIMIT = 10**7


def most_rounds(keeps: Callable[[int], bool]) -> int:
    """The largest count for which `keeps` holds, if it holds for all smaller ones; 0 if not for 1.

    Where `keeps` is not quite monotone (an accountant's bounds rise up to their grid), the result is a count for which
    it holds.
    Raises InputError if there is no bound below 10 million.
    """
    if not keeps(1):
        return 0
    low, high = 1, 2
    while keeps(high):
        low, high = high, 2 * high
        if low >= ROUNDS_LIMIT:
            raise InputError(f"more than {ROUNDS_LIMIT} rounds keep to this epsilon; ask for less noise")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low
