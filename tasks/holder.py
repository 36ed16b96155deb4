"""What a driver has opened at Dask workers: holders, each with the site of its worker, and the pool that keeps them."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from fedcore.errors import SiloError
from fedcore.silo.account import SiloAccount
from fedcore.silo.opening import SiteSpec, open_site
from fedcore.silo.site import Site
from tasks.shuffling.calls import carry

TOGETHER = ("answer", "simulated", "accounts", "end_run")
"""What the runs of a driver may ask of a site in one call."""

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
"""What this process has open, by driver and `site_key`. Weak: a driver that was killed leaves nothing open, and no
ledger locked."""


def site_key(spec: bytes) -> bytes:
    """How a driver names the site of this spec at a worker: its SHA-256."""
    return hashlib.sha256(spec).digest()


class Holder:
    """The actor: a site opened at the worker where its silos' files are, by the bytes of a `SiteSpec`.

    `driver` is the id of whoever asks. A driver that lost the connection to a worker, and not the worker, makes its
    holder a second time; the second takes over the site that the first has open, with the ledgers it holds. A site
    lets one call at a time at its silos.
    """

    def __init__(self, spec: bytes, driver: str) -> None:
        wanted = SiteSpec.from_bytes(spec)
        self._key = (driver, site_key(spec))
        with _lock:
            self._shared = _shared.setdefault(self._key, _Shared())
            self._shared.taken += 1
            self._turn = self._shared.taken
        with self._shared.opening:
            if self._shared.site is None:
                self._shared.site = open_site(wanted, carrier=carry)
            self._site = self._shared.site

    def approve(self, agreement: bytes, route: bytes | None = None) -> list[str]:
        return self._site.approve(agreement, route)

    def restore(self, run: str, receipts: bytes) -> None:
        self._site.restore(run, receipts)

    def answer(self, query: bytes) -> bytes:
        return self._site.answer(query)

    def send(self, query: bytes) -> None:
        self._site.send(query)

    def each(self, calls: list[tuple[bytes, str, tuple[Any, ...]]]) -> list[Any]:
        """What several runs ask at once, of this or another site that their driver has open in this process
        (`site_key`): of each call, one of `TOGETHER`, its answer, or a refusal as silo, code and sentence, which is
        that run's alone."""
        found = []
        for key, method, arguments in calls:
            if method not in TOGETHER:
                raise SiloError(self._site.silos[0], "call", "its site is asked for something else together")
            try:
                found.append(_asked(self._opened(key), method, arguments))
            except SiloError as error:
                found.append((error.silo, error.code, error.sentence))
        return found

    def _opened(self, key: bytes) -> Site:
        shared = _shared.get((self._key[0], key))
        if shared is None or shared.site is None:
            raise SiloError(self._site.silos[0], "lost", "the site that is asked is not open at this worker")
        return shared.site

    def accounts(self, run: str) -> list[SiloAccount]:
        return self._site.accounts(run)

    def simulated(self, run: str, w: bytes) -> list[tuple[int, float, float]]:
        return self._site.simulated(run, w)

    def close_run(self, run: str) -> None:
        self._site.close_run(run)

    def forget_run(self, run: str) -> None:
        self._site.forget_run(run)

    def end_run(self, run: str) -> None:
        """`close_run`, then `forget_run`."""
        _asked(self._site, "end_run", (run,))

    def close(self) -> None:
        """Closes the site, unless a later holder has taken it over."""
        with _lock:
            if self._turn != self._shared.taken:
                return
            if _shared.get(self._key) is self._shared:
                del _shared[self._key]
        self._site.close()


def _asked(site: Site, method: str, arguments: tuple[Any, ...]) -> Any:
    """What the site answers to a call of `TOGETHER`."""
    if method != "end_run":
        return getattr(site, method)(*arguments)
    site.close_run(*arguments)
    site.forget_run(*arguments)


@dataclass
class _Kept:
    """An open holder and how many runs use it."""

    future: Any
    actor: Any
    users: int


class HolderPool:
    """Holders that stay open between the runs of one driver, so that a sweep reads each silo once; several runs that go
    on side by side share one.

    At most `limit` that nobody uses are kept; the one that was used longest ago is closed first.
    """

    def __init__(self, limit: int = 8) -> None:
        self._limit = limit
        self._held: dict[tuple[str, bytes], _Kept] = {}

    def take(self, worker: str, spec: bytes) -> tuple[Any, Any] | None:
        """Future and actor of an open holder, to be given back; None if there is none that lives."""
        kept = self._held.pop((worker, spec), None)
        if kept is None or kept.future.status != "finished":
            return None
        self._held[worker, spec] = kept  # the newest now
        kept.users += 1
        return kept.future, kept.actor

    def add(self, worker: str, spec: bytes, future: Any, actor: Any) -> None:
        """Takes note of a holder that its maker uses, for others to share, unless there is one already."""
        if self._limit > 0:
            self._held.setdefault((worker, spec), _Kept(future, actor, 1))

    def give(self, worker: str, spec: bytes, future: Any, actor: Any) -> None:
        """Takes a holder back from a run that does not use it any more."""
        kept = self._held.setdefault((worker, spec), _Kept(future, actor, 1))
        if kept.actor is not actor:
            return  # made again after a loss, as the one that is kept was: both have the same site, and that stays open
        kept.users -= 1
        idle = [key for key, each in self._held.items() if each.users < 1]
        for key in idle[: max(0, len(idle) - self._limit)]:
            _close(self._held.pop(key).actor)

    def close(self) -> None:
        while self._held:
            _close(self._held.popitem()[1].actor)


def _close(actor: Any) -> None:
    with contextlib.suppress(Exception):
        actor.close().result(timeout=5)
