"""Means of messages and of iterates, in a fixed order so that sums are the same bits everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fedcore.arrays import Vector

Weights = Sequence[float] | None
"""Of all silos, in the problem's order, with mean 1; None: 1 each."""


class Messages(dict[int, Vector]):
    """The participants' messages of a round (d,), by the silo's place in the problem's list, in that order.

    `weights`: the problem's, which come with them, so that no mean of them leaves the silos' weights out.
    """

    def __init__(self, found: Mapping[int, Vector] | Iterable[tuple[int, Vector]], weights: Weights = None) -> None:
        super().__init__(found)
        self.weights = weights

    def changed(self, found: Mapping[int, Vector]) -> Messages:
        """What a method makes of each silo's message, with the weights of these silos."""
        return Messages(found, self.weights)


def mean_message(messages: Messages) -> Vector:
    """Mean of the participants' messages (d,), each times its silo's weight first, added in the order of the silos.

    Weights have mean 1 over all silos, so over draws of participants the expectation is the weighted mean of all silos.
    Raises TypeError for a mapping that knows no weights: `Messages.changed` keeps them.
    """
    if not isinstance(messages, Messages):
        raise TypeError("a mean is of Messages, which know their silos' weights: keep them with Messages.changed")
    weights = messages.weights
    # NumPy's order of adding depends on the shape only, so the bits are the same everywhere.
    weighed = messages if weights is None else {place: weights[place] * each for place, each in messages.items()}
    total = np.asarray(np.add.reduce(list(weighed.values())))
    total /= len(messages)
    return total


def running_mean(mean: Vector, count: int, w: Vector) -> Vector:
    """Mean of count + 1 iterates, from the mean of the first `count` and the next one (d,)."""
    return np.asarray(mean + (w - mean) / (count + 1))
