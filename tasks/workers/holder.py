"""Holders: Dask actors that open a site at their worker for a driver; and the driver's pool of open holders."""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedcore.errors import SiloError
from fedcore.home import LedgerFolders
from fedcore.ledger.refusals import LEASE
from fedcore.silo.account import SiloAccount
from fedcore.silo.opening import SiteSpec, open_site
from fedcore.silo.refusal import rebuilt
from tasks.shuffling.calls import carry
from tasks.workers import open_sites
from tasks.workers.batch import calls_of, packed_answers
from tasks.workers.open_sites import OpenSite

# Driver and workers both import this module; Dask would print lost connections in either.
logging.getLogger("distributed").setLevel(logging.CRITICAL)
logging.getLogger("tornado.application").setLevel(logging.CRITICAL)


def home_key(folders: LedgerFolders) -> str:
    """Key of a home among those that a worker opens sites for: its ledgers' folders."""
    return "\n".join(str(folder) for folder in folders)


def let_go(folders: LedgerFolders, run: str, lease: int) -> int:
    """Ends the sites in this process that drivers with older leases of the run opened (`open_sites.let_go`)."""
    return open_sites.let_go((home_key(folders), run), lease)


def site_key(spec: bytes) -> bytes:
    """A driver's key for the site of this spec at a worker: the SHA-256 of the spec."""
    return hashlib.sha256(spec).digest()


class Holder:
    """The Dask actor: opens a site from the bytes of a `SiteSpec`, at the worker where its silos' files are.

    `driver`: id of the driver. A driver that lost only the connection to a worker makes its holder a second time. The
    second holder takes over the site that the first has open, with its ledgers. A site handles one call at a time.
    `run`, `lease`: the run for which it is opened first, and the driver's lease. `is_alive`: True while Dask keeps
    this holder for its driver; None: alive as long as it is referenced.
    """

    def __init__(
        self, spec: bytes, driver: str, run: str = "", lease: int = 0, is_alive: Callable[[Holder], bool] | None = None
    ) -> None:
        wanted = SiteSpec.from_bytes(spec)
        self._name, home, first = (driver, site_key(spec)), home_key(wanted.ledgers), wanted.sources[0].name
        self._opened, self._turn = open_sites.claim(self._name, home, wanted.ledger == "sqlite", self, is_alive)
        try:
            self._note(first, run, lease)
            with self._opened.opening:
                if self._opened.site is None:
                    self._opened.site = open_site(wanted, carrier=carry)
                self._site = self._opened.site
            open_sites.refuse_if_ended(self._opened, first)
        except BaseException:
            self.close()
            raise

    def approve(self, agreement: bytes, route: bytes | None = None, run: str = "", lease: int = 0) -> list[str]:
        self._note(self._site.silos[0], run, lease)
        try:
            return self._site.approve(agreement, route, lease)
        except SiloError as error:
            if error.code == LEASE:
                open_sites.end_if_of(self._name, self._opened, run)
            raise

    def restore(self, run: str, receipts: bytes, lease: int = 0) -> None:
        self._site.restore(run, receipts, lease)

    def answer(self, query: bytes, lease: int = 0) -> bytes:
        return self._site.answer(query, lease)

    def send(self, query: bytes, lease: int = 0) -> None:
        self._site.send(query, lease)

    def each(self, calls: bytes) -> bytes:
        """Carries out a batch of calls (`tasks.workers.batch`) and returns their answers.

        A call may address another site that the driver has open in this process. A refusal concerns its call only.
        """
        found: list[Any] = []
        for key, method, arguments in rebuilt(self._site.silos[0], "batch", calls_of, calls):
            try:
                found.append(self._called(self._other(key), method, arguments))
            except SiloError as error:
                found.append((error.silo, error.code, error.sentence))
        return packed_answers(found)

    def _other(self, key: bytes) -> OpenSite:
        opened = open_sites.find((self._name[0], key))
        if opened is None or opened.site is None:
            raise SiloError(self._site.silos[0], "lost", "the site that is asked is not open at this worker")
        return opened

    def accounts(self, run: str, lease: int = 0) -> list[SiloAccount]:
        return self._site.accounts(run, lease)

    def simulated(self, run: str, w: bytes, lease: int = 0) -> list[tuple[int, float, float]]:
        return self._site.simulated(run, w, lease)

    def close_run(self, run: str, lease: int = 0) -> None:
        self._site.close_run(run, lease)

    def forget_run(self, run: str) -> None:
        self._opened.forget(run)

    def end_run(self, run: str, lease: int = 0) -> None:
        """`close_run`, then `forget_run`."""
        self._called(self._opened, "end_run", (run, lease))

    def close(self) -> None:
        """Closes the site, unless a later holder has taken it over."""
        open_sites.close(self._name, self._opened, self._turn)

    def _note(self, silo: str, run: str, lease: int) -> None:
        if run:
            open_sites.note_run(self._opened, silo, run, lease)

    @staticmethod
    def _called(opened: OpenSite, method: str, arguments: tuple[Any, ...]) -> Any:
        """The site's answer to a call of a batch."""
        site = opened.site
        if method != "end_run" or site is None:
            return getattr(site, method)(*arguments)
        site.close_run(*arguments)
        opened.forget(arguments[0])


@dataclass
class _Pooled:
    """An open holder and the number of runs that use it."""

    future: Any
    actor: Any
    users: int


class HolderPool:
    """Holders that stay open between the runs of one driver, so that a sweep reads each silo once.

    Concurrent runs share a holder. At most `limit` unused holders stay open; the least recently used is closed first.
    """

    def __init__(self, limit: int = 8) -> None:
        self._limit = limit
        self._held: dict[tuple[str, bytes], _Pooled] = {}

    def take(self, worker: str, spec: bytes) -> tuple[Any, Any] | None:
        """Future and actor of an open holder, to be returned with `give`; None if there is none alive."""
        pooled = self._held.pop((worker, spec), None)
        if pooled is None or pooled.future.status != "finished":
            return None
        self._held[worker, spec] = pooled  # the most recently used now
        pooled.users += 1
        return pooled.future, pooled.actor

    def add(self, worker: str, spec: bytes, future: Any, actor: Any) -> None:
        """Adds a holder, used by one run, for others to share, unless there is one already."""
        if self._limit > 0:
            self._held.setdefault((worker, spec), _Pooled(future, actor, 1))

    def give(self, worker: str, spec: bytes, future: Any, actor: Any) -> None:
        """Takes back a holder from a run that has finished with it."""
        pooled = self._held.setdefault((worker, spec), _Pooled(future, actor, 1))
        if pooled.actor is not actor:
            return  # a second holder of the same site, made after a loss; the pooled one keeps the site open
        pooled.users -= 1
        idle = [key for key, each in self._held.items() if each.users < 1]
        for key in idle[: max(0, len(idle) - self._limit)]:
            _close(self._held.pop(key).actor)

    def close(self) -> None:
        while self._held:
            _close(self._held.popitem()[1].actor)


def _close(actor: Any) -> None:
    with contextlib.suppress(Exception):
        actor.close().result(timeout=5)
