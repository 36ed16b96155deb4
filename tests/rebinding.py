"""A web site whose name is bound to another address between two connections: a visitor's own machine.

The browser requests connections by name from the test's SOCKS proxy, in place of a resolver. Its requests and its
notion of an origin are unchanged.
"""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NAME = "evil.example"


class Site:
    """The site's server, and the proxy at `port` that resolves its name.

    `page`: the served page. Once it was fetched at the service's port, `NAME` with that port leads to the service.
    """

    def __init__(self, service: int, page: str) -> None:
        self.service, self.page, self.rebound = service, page.encode(), threading.Event()
        self.reported = threading.Event()
        self.report: dict[str, Any] = {}
        self.own = 0
        self.port = 0

    def address(self, host: str, port: int) -> tuple[str, int]:
        """The address to which the proxy connects for this host and port."""
        if host == NAME and (port != self.service or not self.rebound.is_set()):
            return "127.0.0.1", self.own
        return "127.0.0.1", port


@contextlib.contextmanager
def site(service: int, page: str) -> Iterator[Site]:
    """A site that is after the service at a port of this machine."""
    made = Site(service, page)

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # Before the answer: the page asks the service as soon as it has it.
            if self.path == "/" and self.headers["Host"] == f"{NAME}:{made.service}":
                made.rebound.set()
            self._answer(made.page if self.path == "/" else b"")

        def do_POST(self) -> None:
            made.report = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._answer(b"")
            made.reported.set()

        def _answer(self, body: bytes) -> None:
            self.send_response(200)
            for name, value in (("Content-Type", "text/html"), ("Connection", "close")):
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    class Socks(socketserver.BaseRequestHandler):
        """SOCKS 5 (RFC 1928): CONNECT to a name or a number of four bytes, nothing else."""

        def handle(self) -> None:
            with contextlib.suppress(OSError):
                _, methods = _exactly(self.request, 2)
                _exactly(self.request, methods)
                self.request.sendall(b"\x05\x00")
                _, _, _, kind = _exactly(self.request, 4)
                host = _exactly(self.request, 4 if kind == 1 else _exactly(self.request, 1)[0])
                port = int.from_bytes(_exactly(self.request, 2))
                name = socket.inet_ntoa(host) if kind == 1 else host.decode()
                with socket.create_connection(made.address(name, port)) as far:
                    self.request.sendall(b"\x05\x00\x00\x01" + bytes(6))
                    back = threading.Thread(target=_pour, args=(far, self.request), daemon=True)
                    back.start()
                    _pour(self.request, far)
                    back.join()

    class Proxy(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as pages, Proxy(("127.0.0.1", 0), Socks) as proxy:
        made.own, made.port = pages.server_address[1], proxy.server_address[1]
        for server in (pages, proxy):
            threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield made
        finally:
            pages.shutdown()
            proxy.shutdown()


def _exactly(source: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        part = source.recv(count - len(found))
        if not part:
            raise OSError("it has ended")
        found += part
    return found


def _pour(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while part := source.recv(65536):
            target.sendall(part)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
