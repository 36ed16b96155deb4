"""Ctrl-C and SIGTERM as an exception, while a driver works."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(KeyboardInterrupt):
    """Ctrl-C or SIGTERM: the run ends as KILLED and can be resumed."""


AGAIN = 0.1
"""Seconds after which a signal that was lost is sent again."""

_signal: str | None = None


def stopped_by() -> str | None:
    """The signal that stopped this process, even if other code replaced `Stopped` by another error."""
    return _signal


@contextmanager
def stoppable() -> Iterator[None]:
    """Turns SIGTERM and SIGINT into `Stopped` within the block (main thread only).

    Python drops an exception that leaves a finalizer or another callback of its own. A signal that arrives there is
    sent again.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        global _signal
        _signal = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
        raise Stopped(_signal)

    def dropped(found: sys.UnraisableHookArgs) -> None:
        if not isinstance(found.exc_value, Stopped):
            hook(found)
            return
        timer = threading.Timer(AGAIN, send)
        timer.daemon = True
        timer.start()

    def send() -> None:
        with sending:
            if not over:
                os.kill(os.getpid(), signal.SIGINT if _signal == "Ctrl-C" else signal.SIGTERM)

    over, sending = False, threading.Lock()
    hook = sys.unraisablehook
    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    sys.unraisablehook = dropped
    try:
        yield
    finally:
        with sending:  # after the block nothing turns the signal into an exception
            over = True
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)
