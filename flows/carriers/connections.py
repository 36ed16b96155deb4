"""Bounds on a service's connections: time without a request, time to read an answer, number, and bytes in memory.

Who has proved to be a party is not displaced by strangers: above the bound the oldest connection of a stranger ends
first. A party displaces only its own. TLS handshakes are bounded by asyncio alone, at 60 s each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import Request
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedcore.errors import Refused
from fedcore.relay.relay import FULL

FIRST, KEPT = 10.0, 75.0
"""Seconds for the first request's head to arrive, and between an answer and the next request's whole head."""
PATIENCE, RATE = 30.0, 2**14
"""Seconds for a body to arrive or to be read, and bytes in each further second: a slow line has not stopped."""
LOOK = 1.0
"""Seconds between two looks at all connections."""
MOST = 4096
LONGEST_HEAD = 2**14
"""Bytes of a request's head."""


class Bounds:
    """Bounds of one party: connections, and bytes of its bodies and unread answers. `apart`: not counted in the sum."""

    def __init__(self, connections: int, held: int, apart: bool = False) -> None:
        self.connections, self.held, self.apart = connections, held, apart


class Connections:
    """The open connections of a service, for its event loop alone.

    `most`: connections at a time. `bounds`: of a party. `held`: bytes of all parties' bodies together.
    """

    def __init__(
        self,
        bounds: Callable[[str], Bounds] = lambda name: Bounds(MOST, 2**30),
        most: int = MOST,
        held: int = 2**30,
    ) -> None:
        self.most, self._bounds, self._held = most, bounds, held
        self._strangers: dict[BoundedProtocol, None] = {}  # in the order of their beginnings
        self._parties: dict[str, dict[BoundedProtocol, None]] = {}
        self._by_address: dict[Any, BoundedProtocol] = {}
        self._bodies = 0
        self._looks = False

    def protocol(self, **options: Any) -> BoundedProtocol:
        """A new connection's protocol, as uvicorn makes it."""
        return BoundedProtocol(self, **options)

    def add(self, made: BoundedProtocol) -> None:
        """Takes a new connection, in place of the oldest one of a stranger if there are too many."""
        self._by_address[made.client] = made
        self._strangers[made] = None
        if len(self._by_address) > self.most:
            self._end(next(iter(self._strangers)))
        if not self._looks:
            self._looks = True
            made.loop.call_later(LOOK, self._look)

    def remove(self, ended: BoundedProtocol) -> None:
        """Forgets a connection."""
        if self._by_address.get(ended.client) is ended:
            del self._by_address[ended.client]
        self._group(ended).pop(ended, None)
        if ended.party and not self._group(ended):
            del self._parties[ended.party]

    def belongs(self, request: Request, party: str) -> None:
        """Notes whose connection this is: a party's, or a stranger's (empty)."""
        found = self._of(request)
        if found is None or found.party == party:
            return
        self.remove(found)
        self._by_address[found.client], found.party = found, party
        group = self._group(found)
        group[found] = None
        if party and len(group) > self._bounds(party).connections:
            self._end(next(iter(group)))

    @contextmanager
    def body(self, request: Request) -> Iterator[Callable[[int], None]]:
        """A function that takes the bytes of the request's body so far, and raises Refused where there is no room."""
        found, size = self._of(request), 0
        apart = found is not None and bool(found.party) and self._bounds(found.party).apart

        def grows(now: int) -> None:
            nonlocal size
            if found is None:
                return
            if not apart:
                self._bodies += now - size
            size = found.body = now
            self.check_room(request)
            if not apart and self._bodies > self._held:
                raise Refused(FULL, f"it holds {self._held} bytes of bodies that arrive now; try again")

        try:
            yield grows
        finally:
            if found is not None:
                found.body = 0
                if not apart:
                    self._bodies -= size

    def check_room(self, request: Request) -> None:
        """Raises Refused if a party's bodies and unread answers take more memory than one has."""
        found = self._of(request)
        if found is None or not found.party:
            return
        most = self._bounds(found.party).held
        if sum(each.body + each.unread for each in self._group(found)) > most:
            raise Refused(FULL, f"{found.party} has {most} bytes on their way at a time; try again when they arrived")

    def _end(self, connection: BoundedProtocol) -> None:
        self.remove(connection)  # at once, or the next one above the bound would end the same
        connection.abort()

    def _of(self, request: Request) -> BoundedProtocol | None:
        return self._by_address.get(request.scope.get("client"))

    def _group(self, of: BoundedProtocol) -> dict[BoundedProtocol, None]:
        return self._parties.setdefault(of.party, {}) if of.party else self._strangers

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        for each in list(self._by_address.values()):
            if each.is_late(loop.time()):
                self._end(each)
        self._looks = bool(self._by_address)
        if self._looks:
            loop.call_later(LOOK, self._look)


class BoundedProtocol(H11Protocol):
    """A connection of HTTP/1.1. `party`: whose it is, empty for a stranger; `body`: bytes of a body that arrives."""

    def __init__(self, connections: Connections, **options: Any) -> None:
        super().__init__(**options)
        self._connections = connections
        self.party, self.body = "", 0
        self._since: float | None = None
        self._seen: Any = None
        self._reads: float | None = None
        self._most_unread = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = self.loop.time()
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.remove(self)
        super().connection_lost(exc)

    def abort(self) -> None:
        """Ends the connection, and drops what it has not sent."""
        self.transport.abort()

    @property
    def unread(self) -> int:
        """Bytes of answers that the other side has not read."""
        return self.transport.get_write_buffer_size()

    def is_late(self, now: float) -> bool:
        """True if the connection waits too long for a request, or its other side reads too slowly.

        Single bytes of a head start no time anew; only a whole head does.
        """
        if (unread := self.unread) > 0:
            self._reads, self._most_unread = self._reads or now, max(self._most_unread, unread)
            return now - self._reads > PATIENCE + self._most_unread / RATE
        self._reads, self._most_unread = None, 0
        cycle = self.cycle
        if cycle is not self._seen or self._since is None:
            self._since, self._seen = now, cycle
        if cycle is not None and not cycle.response_complete:
            self._since = now
            return False
        return now - self._since > (FIRST if cycle is None else KEPT)
