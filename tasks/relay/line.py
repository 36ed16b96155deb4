"""A party's line to a relay: one HTTP connection that stays open, with bounded answers.

It is the standard library's client: a round's calls are many and small, and take a third of httpx's time. Calls by way
of a proxy go through httpx (`tasks.outgoing`), which knows the environment's variables.
"""

from __future__ import annotations

import http.client
import io
import os
import ssl
import time
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from fedcore.errors import RelayError
from tasks.outgoing import CONNECT, OCTETS, OWN, SLOW, client_of, fault
from tasks.proxies import unusable_proxy

KEY = "relay"
"""Key, in an invitation and a config, that names a relay."""
SILENT = "silent"
"""Code of the error about a relay that does not answer."""
LONGEST_LINES = 2**20
"""Bytes of an answer's lines together."""
PIECE = 2**18
"""Bytes of a body that are sent within `SLOW` seconds."""
PATIENCE, RATE = 60.0, 2**14
"""Seconds for an answer that has begun, and bytes in each further second: single bytes now and then hold no party."""
_OWN_HEADERS = {"Content-Type": OCTETS, "Accept-Encoding": "identity"}
_GONE = (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError, ConnectionAbortedError)


class _Slow(http.client.HTTPException):
    """An answer whose bytes come too slowly."""


class _Pace:
    """Time and bytes of an answer since its first ones."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._size = 0

    def take(self, count: int) -> None:
        """Counts bytes. Raises _Slow if they took too long."""
        now = time.monotonic()
        self._began, self._size = self._began or now, self._size + count
        if now - self._began > PATIENCE + self._size / RATE:
            raise _Slow


class _Paced(io.RawIOBase):
    """The reader of a socket at a pace: its timeout alone bounds each single read."""

    def __init__(self, raw: Any) -> None:
        self._raw, self._pace = raw, _Pace()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        count: int | None = self._raw.readinto(buffer)
        self._pace.take(count or 0)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Lines:
    """The reader of an answer, with a bound on its lines together: status, headers, sizes of chunks, trailers.

    Without it, a relay that never ends them would occupy its caller for ever.
    """

    def __init__(self, reader: Any) -> None:
        self._reader, self._left = reader, LONGEST_LINES

    def readline(self, limit: int = -1) -> bytes:
        line = bytes(self._reader.readline(limit))
        self._left -= len(line)
        if self._left < 0:
            raise http.client.HTTPException(f"more than {LONGEST_LINES} bytes of lines")
        return line

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)


class _Response(http.client.HTTPResponse):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.fp: Any = _Lines(io.BufferedReader(_Paced(self.fp.detach())))


class Said(NamedTuple):
    """A relay's answer: status, and content."""

    status: int
    data: bytes


class Line:
    """Calls of an address from one thread at a time."""

    def __init__(self, address: str) -> None:
        self._address, self._parts = address, urlsplit(address)
        self._open: http.client.HTTPConnection | None = None
        self._proxied = _is_proxied(address)

    def post(self, path: str, body: bytes, headers: dict[str, str], most: Mapping[int, int], other: int) -> Said:
        """The answer to a POST. `most`: bytes of the answers with these statuses; `other`: of all others.

        Raises RelayError if none comes, or a longer one.
        """
        if self._proxied:
            return self._by_proxy(path, body, headers, most, other)
        fresh = self._open is None
        for attempt in range(2):
            try:
                return self._posted(path, body, headers, most, other)
            except _GONE as error:
                self.close()
                # A connection that stayed open may have been ended meanwhile; the calls may be repeated.
                if fresh or attempt:
                    raise RelayError(SILENT, self._silent(error)) from None
            except _Slow:
                self.close()
                raise self._too_slow() from None
            except (OSError, http.client.HTTPException) as error:
                self.close()
                raise RelayError(SILENT, self._silent(error)) from None
            except BaseException:
                self.close()  # between two steps of a call
                raise
        raise RuntimeError("unreachable")

    def close(self) -> None:
        """Ends the connection; the next call opens another."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def __del__(self) -> None:
        if getattr(self, "_open", None) is not None:
            self.close()

    def _silent(self, error: Exception) -> str:
        return f"none answers at {self._address} ({fault(error)})"

    def _posted(self, path: str, body: bytes, headers: dict[str, str], most: Mapping[int, int], other: int) -> Said:
        if self._open is None:
            self._open = self._connected()
        sized = {**_OWN_HEADERS, **headers, "Content-Length": str(len(body))}
        sent = True
        try:
            self._open.request("POST", f"{self._parts.path.rstrip('/')}/{path}", _pieces(body), sized)
        except (BrokenPipeError, ConnectionResetError):  # a body that is refused early is answered before its end
            sent = False
        answer = self._open.getresponse()
        bound = most.get(answer.status, other)
        data = answer.read(bound + 1)
        if len(data) > bound:
            self.close()
            raise self._too_long(bound)
        if answer.length:
            raise http.client.IncompleteRead(data, answer.length)
        answer.close()
        if not sent or answer.will_close:  # by itself, http.client would connect again with other time limits
            self.close()
        return Said(answer.status, data)

    def _by_proxy(self, path: str, body: bytes, headers: dict[str, str], most: Mapping[int, int], other: int) -> Said:
        import httpx

        try:
            sent = client_of(self._address, KEY).stream(
                "POST", f"/{path}", content=body, headers=_OWN_HEADERS | headers
            )
            with sent as answer:
                bound = most.get(answer.status_code, other)
                parts, size, pace = [], 0, _Pace()
                pace.take(0)  # the head is here
                for part in answer.iter_raw():
                    size += len(part)
                    pace.take(len(part))
                    if size > bound:
                        raise self._too_long(bound)
                    parts.append(part)
        except _Slow:
            raise self._too_slow() from None
        except httpx.HTTPError as error:
            raise RelayError(SILENT, self._silent(error)) from None
        return Said(answer.status_code, b"".join(parts))

    def _too_slow(self) -> RelayError:
        return RelayError(SILENT, f"{self._address} sends its answer too slowly")

    def _too_long(self, bound: int) -> RelayError:
        return RelayError("answer", f"{self._address} sends more than {bound} bytes at once")

    def _connected(self) -> http.client.HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        found: http.client.HTTPConnection
        if self._parts.scheme == "https":
            found = http.client.HTTPSConnection(
                host, port, timeout=CONNECT, context=_known(*map(os.environ.get, ("SSL_CERT_FILE", "SSL_CERT_DIR")))
            )
        else:
            found = http.client.HTTPConnection(host, port, timeout=CONNECT)
        found.response_class = _Response
        found.connect()
        found.sock.settimeout(SLOW)
        return found


def _pieces(body: bytes) -> bytes | Iterator[bytes]:
    """A body in parts, each of which has the whole time limit of a socket; small ones as they are."""
    if len(body) <= PIECE:
        return body
    return (body[at : at + PIECE] for at in range(0, len(body), PIECE))


def _is_proxied(address: str) -> bool:
    """True if the environment names a proxy for this address, be it an unusable one."""
    parts = urlsplit(address)
    if parts.hostname in OWN or (parts.hostname and proxy_bypass(parts.hostname)):
        return False
    return unusable_proxy(address) is not None or bool(getproxies().keys() & {parts.scheme, "all"})


@cache
def _known(file: str | None, folder: str | None) -> ssl.SSLContext:
    """The machine's own certificates, or those that its variables name: an institution may have its own authority."""
    return ssl.create_default_context()
