"""Means of messages and of iterates, in a fixed order so that sums are the same bits everywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedcore.arrays import Vector

Messages = Mapping[int, Vector]
"""The participants' messages of a round (d,), by the silo's place in the problem's list, in that order."""

Weights = Sequence[float] | None
"""Of all silos, in the problem's order, with mean 1; None: 1 each."""


def mean_message(messages: Messages, weights: Weights = None) -> Vector:
    """Mean of the participants' messages (d,), each times its silo's weight first, added in the order of the silos.

    Weights have mean 1 over all silos, so over draws of participants the expectation is the weighted mean of all silos.
    """
    # NumPy's order of adding depends on the shape only, so the bits are the same everywhere.
    weighed = messages if weights is None else {place: weights[place] * each for place, each in messages.items()}
    total = np.asarray(np.add.reduce(list(weighed.values())))
    total /= len(messages)
    return total


def running_mean(mean: Vector, count: int, w: Vector) -> Vector:
    """Mean of count + 1 iterates, from the mean of the first `count` and the next one (d,)."""
    return np.asarray(mean + (w - mean) / (count + 1))
