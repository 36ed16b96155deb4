"""What a driver has opened at Dask workers: holders, each with the site of its worker, and the pool that keeps them."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import Any
from weakref import WeakValueDictionary

from fedcore.silo.opening import SiteSpec, open_site
from fedcore.silo.site import SiloAccount, Site

# Of driver and workers: both import this file, and would print what Dask has to say of lost connections.
logging.getLogger("distributed").setLevel(logging.CRITICAL)
logging.getLogger("tornado.application").setLevel(logging.CRITICAL)


class _Shared:
    """A site and how many holders have taken it; the last of them may close it."""

    def __init__(self) -> None:
        self.opening = threading.Lock()
        self.site: Site | None = None
        self.taken = 0


_lock = threading.Lock()
_shared: WeakValueDictionary[tuple[str, bytes], _Shared] = WeakValueDictionary()
"""What this process has open, by driver. Weak: a driver that was killed leaves nothing open, and no ledger locked."""


class Holder:
    """The actor: a site opened at the worker where its silos' files are, by the bytes of a `SiteSpec`.

    `driver` is the id of whoever asks. A driver that lost the connection to a worker, and not the worker, makes its
    holder a second time; the second takes over the site that the first has open, with the ledgers it holds. A site
    lets one call at a time at its silos.
    """

    def __init__(self, spec: bytes, driver: str) -> None:
        wanted = SiteSpec.from_bytes(spec)
        self._key = (driver, spec)
        with _lock:
            self._shared = _shared.setdefault(self._key, _Shared())
            self._shared.taken += 1
            self._turn = self._shared.taken
        with self._shared.opening:
            if self._shared.site is None:
                self._shared.site = open_site(wanted)
            self._site = self._shared.site

    def approve(self, agreement: bytes) -> list[str]:
        return self._site.approve(agreement)

    def restore(self, run: str, receipts: bytes) -> None:
        self._site.restore(run, receipts)

    def answer(self, query: bytes) -> bytes:
        return self._site.answer(query)

    def accounts(self, run: str) -> list[SiloAccount]:
        return self._site.accounts(run)

    def simulated(self, run: str, w: bytes) -> list[tuple[int, float, int]]:
        return self._site.simulated(run, w)

    def close_run(self, run: str) -> None:
        self._site.close_run(run)

    def forget_run(self, run: str) -> None:
        self._site.forget_run(run)

    def close(self) -> None:
        """Closes the site, unless a later holder has taken it over."""
        with _lock:
            if self._turn != self._shared.taken:
                return
            if _shared.get(self._key) is self._shared:
                del _shared[self._key]
        self._site.close()


class HolderPool:
    """Holders that stay open between the runs of one driver, so that a sweep reads each silo once.

    At most `limit` are kept; the one that was used longest ago is closed first.
    """

    def __init__(self, limit: int = 8) -> None:
        self._limit = limit
        self._held: dict[tuple[str, bytes], tuple[Any, Any]] = {}

    def take(self, worker: str, spec: bytes) -> tuple[Any, Any] | None:
        """Future and actor of an open holder, which is then the caller's; None if there is none that lives."""
        future, actor = self._held.pop((worker, spec), (None, None))
        return (future, actor) if future is not None and future.status == "finished" else None

    def give(self, worker: str, spec: bytes, future: Any, actor: Any) -> None:
        """Takes a holder back that has no open run."""
        self._held[worker, spec] = (future, actor)
        while len(self._held) > self._limit:
            _, oldest = self._held.pop(next(iter(self._held)))
            _close(oldest)

    def close(self) -> None:
        while self._held:
            _close(self._held.popitem()[1][1])


def _close(actor: Any) -> None:
    with contextlib.suppress(Exception):
        actor.close().result(timeout=5)
