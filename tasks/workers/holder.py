"""What a driver has opened at Dask workers: holders, each with the site of its worker, and the pool that keeps them."""

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
from tasks.shuffling.calls import carry
from tasks.workers import open_sites
from tasks.workers.open_sites import OpenSite

SITE_CALLS = ("answer", "simulated", "accounts", "end_run")
"""What the runs of a driver may ask of a site in one call."""

# Of driver and workers: both import this file, and would print what Dask has to say of lost connections.
logging.getLogger("distributed").setLevel(logging.CRITICAL)
logging.getLogger("tornado.application").setLevel(logging.CRITICAL)


def whose_ledgers(folders: LedgerFolders) -> str:
    """How a process tells the runs of homes apart that it opens sites for: by their ledgers' folders."""
    return "\n".join(str(folder) for folder in folders)


def let_go(folders: LedgerFolders, run: str, lease: int) -> int:
    """Ends what drivers with older leases of the run have open in this process (`open_sites.let_go`)."""
    return open_sites.let_go((whose_ledgers(folders), run), lease)


def site_key(spec: bytes) -> bytes:
    """How a driver names the site of this spec at a worker: its SHA-256."""
    return hashlib.sha256(spec).digest()


class Holder:
    """The actor: a site opened at the worker where its silos' files are, by the bytes of a `SiteSpec`.

    `driver` is the id of whoever asks. A driver that lost the connection to a worker, and not the worker, makes its
    holder a second time; the second takes over the site that the first has open, with the ledgers it holds. A site
    lets one call at a time at its silos. `run`, `lease`: for which run it is opened first, and under which lease.
    `kept`: whether the engine still keeps this holder for its driver; None: it is kept as long as it is referred to.
    """

    def __init__(
        self, spec: bytes, driver: str, run: str = "", lease: int = 0, kept: Callable[[Holder], bool] | None = None
    ) -> None:
        wanted = SiteSpec.from_bytes(spec)
        self._name, whose, first = (driver, site_key(spec)), whose_ledgers(wanted.ledgers), wanted.sources[0].name
        self._opened, self._turn = open_sites.claim(self._name, whose, wanted.ledger == "sqlite", self, kept)
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

    def each(self, calls: list[tuple[bytes, str, tuple[Any, ...]]]) -> list[Any]:
        """What several runs ask at once, of this or another site that their driver has open in this process
        (`site_key`): of each call, one of `SITE_CALLS`, its answer, or a refusal as silo, code and sentence, which is
        that run's alone."""
        found = []
        for key, method, arguments in calls:
            if method not in SITE_CALLS:
                raise SiloError(self._site.silos[0], "call", "its site is asked for something else together")
            try:
                found.append(self._asked(self._other(key), method, arguments))
            except SiloError as error:
                found.append((error.silo, error.code, error.sentence))
        return found

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
        self._asked(self._opened, "end_run", (run, lease))

    def close(self) -> None:
        """Closes the site, unless a later holder has taken it over."""
        open_sites.close(self._name, self._opened, self._turn)

    def _note(self, silo: str, run: str, lease: int) -> None:
        if run:
            open_sites.note_run(self._opened, silo, run, lease)

    @staticmethod
    def _asked(opened: OpenSite, method: str, arguments: tuple[Any, ...]) -> Any:
        """What the site answers to a call of `SITE_CALLS`."""
        site = opened.site
        if method != "end_run" or site is None:
            return getattr(site, method)(*arguments)
        site.close_run(*arguments)
        opened.forget(arguments[0])


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
