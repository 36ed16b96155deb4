"""A TCP forwarder between a federation's parties and its relay, which can be cut for all of them or for some."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil


@dataclass(eq=False)
class _Line:
    """A connection from a party and the one to the relay. `pid`: the party's process."""

    near: socket.socket
    far: socket.socket
    pid: int | None

    def close(self) -> None:
        for each in (self.near, self.far):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@dataclass
class _Cut:
    """`pids`: of the processes that are cut off; None: all. `silent`: bytes wait, and no connection ends."""

    pids: set[int] | None
    silent: bool
    mended: threading.Event = field(default_factory=threading.Event)

    def concerns(self, pid: int | None) -> bool:
        return self.pids is None or pid in self.pids


class CutNetwork:
    """Forwards from `port` to `target`. `parties`: ids of the processes that may be cut off one by one."""

    def __init__(self, port: int, target: int, parties: Callable[[], list[int]]) -> None:
        self._target, self._parties = target, parties
        self._cut: _Cut | None = None
        self._lines: set[_Line] = set()
        self._lock = threading.Lock()
        self._listening = socket.create_server(("127.0.0.1", port), backlog=200)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def cut(self, pids: set[int] | None, silent: bool) -> None:
        """Cuts off these processes, or all, until `mend`: their bytes wait, or their connections end and none opens."""
        cut = self._cut = _Cut(pids, silent)
        if not silent:
            with self._lock:
                lines = [line for line in self._lines if cut.concerns(line.pid)]
            for line in lines:
                line.close()

    def mend(self) -> None:
        cut, self._cut = self._cut, None
        if cut is not None:
            cut.mended.set()

    def close(self) -> None:
        self.mend()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        with self._lock:
            lines = list(self._lines)
        for line in lines:
            line.close()

    def _accept(self) -> None:
        while True:
            try:
                near, (_, port) = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._forward, args=(near, port), daemon=True).start()

    def _forward(self, near: socket.socket, port: int) -> None:
        pid, cut = self._owner(port), self._cut
        if cut is not None and cut.concerns(pid):
            if not cut.silent:
                near.close()
                return
            cut.mended.wait()
        try:
            far = socket.create_connection(("127.0.0.1", self._target), timeout=5.0)
        except OSError:  # the relay is dead
            near.close()
            return
        far.settimeout(None)
        line = _Line(near, far, pid)
        for each in (near, far):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._lines.add(line)
        back = threading.Thread(target=self._pump, args=(line, far, near), daemon=True)
        back.start()
        self._pump(line, near, far)
        back.join()
        line.close()
        with self._lock:
            self._lines.discard(line)

    def _pump(self, line: _Line, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(2**16):
                cut = self._cut
                if cut is not None and cut.concerns(line.pid):
                    if not cut.silent:
                        break
                    cut.mended.wait()
                target.sendall(data)
        line.close()

    def _owner(self, port: int) -> int | None:
        """The party whose socket has this port."""
        for pid in self._parties():
            with contextlib.suppress(psutil.Error):
                if any(each.laddr and each.laddr.port == port for each in psutil.Process(pid).net_connections("tcp")):
                    return pid
        return None
