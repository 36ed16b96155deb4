"""The server's state between rounds, and its byte form for checkpoints."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import numpy as np

from fedcore.arrays import Arrays


@dataclasses.dataclass(frozen=True)
class State:
    """Position in the plan: the phase and the round (both from 1) that come next."""

    phase: int
    round: int


S = TypeVar("S", bound=State)


def dump_state(state: State) -> dict[str, np.ndarray]:
    """The state as named float64 arrays (integers as 0-d arrays), for `fedcore.arrays.pack`."""
    return {field.name: np.asarray(getattr(state, field.name), dtype=np.float64) for field in dataclasses.fields(state)}


def load_state(kind: type[S], arrays: Arrays) -> S:
    """The state that `dump_state` wrote. Raises KeyError for arrays of another method."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        array = arrays[field.name]
        values[field.name] = int(array) if field.type in ("int", int) else array
    return kind(**values)
