"""Means of messages and of iterates, in a fixed order so that sums are the same bits everywhere."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedcore.arrays import Vector

Messages = Mapping[int, Vector]
"""The participants' messages of a round (d,), by the silo's place in the problem's list, in that order."""


def mean_message(messages: Messages) -> Vector:
    """Mean of the participants' messages (d,), weight 1/M each, added in the order of the silos."""
    # NumPy's order of adding depends on the shape only, so the bits are the same everywhere.
    total = np.asarray(np.add.reduce(list(messages.values())))
    total /= len(messages)
    return total


def running_mean(mean: Vector, count: int, w: Vector) -> Vector:
    """Mean of count + 1 iterates, from the mean of the first `count` and the next one (d,)."""
    return np.asarray(mean + (w - mean) / (count + 1))
