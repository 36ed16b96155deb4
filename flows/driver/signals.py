"""Ctrl-C and SIGTERM as an exception, while a driver works."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(KeyboardInterrupt):
    """Ctrl-C or SIGTERM: the run ends as KILLED and can be resumed."""


_signal: str | None = None


def stopped_by() -> str | None:
    """The signal that stopped this process, even if other code replaced `Stopped` by another error."""
    return _signal


@contextmanager
def stoppable() -> Iterator[None]:
    """Turns SIGTERM and SIGINT into `Stopped` within the block (main thread only)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        global _signal
        _signal = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
        raise Stopped(_signal)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
