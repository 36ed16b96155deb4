"""The requests that wait at a relay for a party's envelopes, and their waking when one comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fastapi.concurrency import run_in_threadpool

from fedcore.errors import Refused
from fedcore.relay.relay import FULL

MOST_POLLS = 256
"""Requests of one party that wait at a time: each run of a coordinator has one."""


class Arrivals:
    """Wakes the requests that wait for a party's envelopes; `arrived` may be called from any thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[str, set[asyncio.Event]] = {}

    def run_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Names the loop of the requests."""
        self._loop = loop

    def arrived(self, receiver: str) -> None:
        """Wakes those that wait for this receiver's envelopes."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake, receiver)

    def _wake(self, receiver: str) -> None:
        for event in self._waiting.get(receiver, ()):
            event.set()

    async def found(self, receiver: str, look: Callable[[], list[bytes]], seconds: float) -> list[bytes]:
        """The envelopes that `look` finds, at once or after an arrival within `seconds`."""
        event = asyncio.Event()
        waiting = self._waiting.setdefault(receiver, set())
        if len(waiting) >= MOST_POLLS:
            raise Refused(FULL, f"{MOST_POLLS} requests of {receiver} wait already")
        waiting.add(event)
        try:
            until = asyncio.get_running_loop().time() + seconds
            while True:
                event.clear()
                if found := await run_in_threadpool(look):
                    return found
                left = until - asyncio.get_running_loop().time()
                if left <= 0:
                    return []
                try:
                    await asyncio.wait_for(event.wait(), left)
                except (TimeoutError, asyncio.CancelledError):  # cancelled: the relay ends, and has waited for it
                    return []
        finally:
            waiting.discard(event)
            if not waiting:
                del self._waiting[receiver]
