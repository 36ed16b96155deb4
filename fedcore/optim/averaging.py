"""Means of messages and of iterates, in a fixed order, so that sums have the same bits everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from fedcore.arrays import Matrix, Vector

Weights = Sequence[float] | None
"""Weights of all silos, in the problem's order, with mean 1; None: 1 each."""


class Messages(Mapping[int, Vector]):
    """The participants' messages of a round (d,), by the silo's place in the problem's list.

    They are in the order of places. `weights`: the problem's; they travel with the messages, so that every mean uses
    them. `rows`: the messages in this order, where they arrived as one matrix (participants, d).
    """

    def __init__(self, found: Mapping[int, Vector] | Iterable[tuple[int, Vector]], weights: Weights = None) -> None:
        held = dict(found)
        self.rows: Matrix | list[Vector] = list(held.values())
        self._row = {place: row for row, place in enumerate(held)}
        self.weights = weights

    @classmethod
    def of(cls, places: Iterable[int], rows: Matrix, weights: Weights = None) -> Messages:
        """The messages of these silos, each a row (d,)."""
        made = cls({}, weights)
        made.rows, made._row = rows, {place: row for row, place in enumerate(places)}
        return made

    def __getitem__(self, place: int) -> Vector:
        return self.rows[self._row[place]]

    def __iter__(self) -> Iterator[int]:
        return iter(self._row)

    def __len__(self) -> int:
        return len(self._row)

    def changed(self, found: Mapping[int, Vector]) -> Messages:
        """New vectors for these silos, with the same weights."""
        return Messages(found, self.weights)


def mean_message(messages: Messages) -> Vector:
    """Weighted mean of the participants' messages (d,), added in the silos' order.

    Each message is multiplied by its silo's weight. Weights have mean 1 over all silos. So over draws of participants
    the expectation is the weighted mean of all silos. Raises TypeError for a mapping without weights;
    `Messages.changed` makes one with them.
    """
    if not isinstance(messages, Messages):
        raise TypeError("a mean is of Messages, which know their silos' weights: keep them with Messages.changed")
    weights = messages.weights
    # NumPy's order of adding depends on the shape only, so the bits are the same everywhere.
    rows = messages.rows if weights is None else [weights[place] * each for place, each in messages.items()]
    total = np.asarray(np.add.reduce(rows))
    total /= len(messages)
    return total


def running_mean(mean: Vector, count: int, w: Vector) -> Vector:
    """Mean of count + 1 iterates, from the mean of the first `count` and the next one (d,)."""
    return np.asarray(mean + (w - mean) / (count + 1))
