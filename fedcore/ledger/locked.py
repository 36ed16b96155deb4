"""Methods that only one thread at a time runs on an object."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar


class Locked(Protocol):
    """An object with a lock of its own."""

    lock: threading.RLock


P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound=Locked)


def alone(act: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Decorates a method so that it holds the object's lock: no other thread writes between its check and its write."""

    @wraps(act)
    def waiting(mine: S, *args: P.args, **kwargs: P.kwargs) -> T:
        with mine.lock:
            return act(mine, *args, **kwargs)

    return waiting
