"""Requests that wait at a relay for envelopes, and their waking."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fedcore.errors import Refused
from fedcore.relay.relay import FULL

MOST_POLLS = 256
"""Requests of one party that wait at a time: each run of a coordinator has one."""
GATHERING = 0.05
"""Seconds in which further envelopes are awaited that a caller expects: it takes them with one call, not one each."""


class Poll:
    """A request that waits for arrivals, which it counts from its last look on."""

    def __init__(self) -> None:
        self._event, self._came, self._wanted = asyncio.Event(), 0, 1

    def begin(self) -> None:
        """Begins to count."""
        self._came = 0

    def arrived(self) -> None:
        self._came += 1
        if self._came >= self._wanted:
            self._event.set()

    async def within(self, number: int, seconds: float) -> bool:
        """True once this number has arrived, False after this time."""
        if self._came >= number:
            return True
        self._wanted = number
        self._event.clear()
        try:
            await asyncio.wait_for(self._event.wait(), seconds)
            return True
        except (TimeoutError, asyncio.CancelledError):  # cancelled: the relay ends, and has waited for it
            return False


class Arrivals:
    """Wakes the requests that wait for a party's envelopes; `arrived` may be called from any thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[str, set[Poll]] = {}

    def run_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Names the loop of the requests."""
        self._loop = loop

    def arrived(self, receiver: str) -> None:
        """Wakes those that wait for this receiver's envelopes."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake, receiver)

    def _wake(self, receiver: str) -> None:
        for poll in self._waiting.get(receiver, ()):
            poll.arrived()

    async def found(
        self, receiver: str, look: Callable[[], list[bytes]], seconds: float, expected: int = 1
    ) -> list[bytes]:
        """The envelopes that `look` finds, at once or after an arrival within `seconds`.

        `expected`: number for which it waits `GATHERING` seconds longer, once there is one.
        """
        waiting, poll = self._waiting.setdefault(receiver, set()), Poll()
        if len(waiting) >= MOST_POLLS:
            raise Refused(FULL, f"{MOST_POLLS} requests of {receiver} wait already")
        waiting.add(poll)
        try:
            loop = asyncio.get_running_loop()
            until = loop.time() + seconds
            found = look()
            if 0 < len(found) < expected and await poll.within(expected - len(found), GATHERING):
                found = look()
            while not found:
                poll.begin()
                if not await poll.within(1, until - loop.time()):
                    return []
                await poll.within(expected, GATHERING)
                found = look()
            return found
        finally:
            waiting.discard(poll)
            if not waiting:
                del self._waiting[receiver]
