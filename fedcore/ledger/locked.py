"""What one thread does at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar


class Locked(Protocol):
    """Has a lock of its own."""

    lock: threading.RLock


P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound=Locked)


def alone(act: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """A method that waits until no other thread is in one of these of the same object: a look and the write after it
    belong together."""

    @wraps(act)
    def waiting(mine: S, *args: P.args, **kwargs: P.kwargs) -> T:
        with mine.lock:
            return act(mine, *args, **kwargs)

    return waiting
