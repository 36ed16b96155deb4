"""The sites that a worker process has open for remote drivers, with their runs and leases, and their ends.

A site outlives its driver by about a second (`EVERY`), and never a newer lease of its run. The driver that took the
newer lease calls `let_go`, which ends the site at once, even during an answer; that answer is not committed.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from fedcore.errors import SiloError
from fedcore.ledger.refusals import LEASE, refuse_older
from fedcore.silo.site import Site

EVERY = 1.0
"""Seconds between two checks for holders that still claim sites."""
FIRST = 60.0
"""Seconds within which Dask first lists a new holder among its actors."""
MOST_KNOWN = 10_000
"""Most runs whose newest lease is cached here; durable ledgers store it too."""

Name = tuple[str, bytes]
"""A driver's id, and its key for a site."""
Run = tuple[Hashable, str]
"""A home's key and a run's id: two homes may have the same run."""


@dataclass
class Claim:
    """A holder's claim to a site, which stays open while the holder exists and `is_alive` returns True for it."""

    holder: weakref.ref[Any]
    is_alive: Callable[[Any], bool] | None
    made: float
    seen: bool = False

    def stands(self) -> bool:
        holder = self.holder()
        if holder is None or self.is_alive is None:
            return holder is not None
        if self.is_alive(holder):
            self.seen = True
            return True
        return not self.seen and time.monotonic() < self.made + FIRST


@dataclass
class OpenSite:
    """A site and the number of holders that have claimed it; the last of them may close it.

    `home`: key of the home whose ledgers it opens; `durable`: those ledgers are files. `runs`: the runs for which it is
    open, with their leases.
    """

    home: Hashable
    durable: bool
    opening: threading.Lock = field(default_factory=threading.Lock)
    site: Site | None = None
    taken: int = 0
    ended: bool = False
    runs: dict[str, int] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)

    def fence(self, run: str, lease: int) -> bool:
        """Refuses older leases of the run from now on; returns True if the whole site has to end for that.

        A site with ledgers in memory goes on for its driver's other runs: it locks no ledger that others need.
        """
        alone = self.durable and set(self.runs) == {run}
        if self.site is not None and alone:
            self.site.leases.fence(run, lease)
        elif self.site is not None:
            with contextlib.suppress(SiloError):  # a closed site, or an unwritable ledger, answers no call anyway
                self.site.fence(run, lease)
        return alone

    def forget(self, run: str) -> None:
        if self.site is not None:
            self.site.forget_run(run)
        self.runs.pop(run, None)


_lock = threading.RLock()
_open: dict[Name, OpenSite] = {}
_newest: dict[Run, int] = {}
_watching = False


def claim(
    name: Name, home: Hashable, durable: bool, holder: Any, is_alive: Callable[[Any], bool] | None
) -> tuple[OpenSite, int]:
    """The driver's site of this name, which may be open already, and the number of this claim to it."""
    global _watching
    with _lock:
        found = _open.setdefault(name, OpenSite(home, durable))
        found.taken += 1
        found.claims.append(Claim(weakref.ref(holder), is_alive, time.monotonic()))
        if not _watching:
            _watching = True
            threading.Thread(target=_watch, name="fedcore-sites", daemon=True).start()
        return found, found.taken


def note_run(opened: OpenSite, silo: str, run: str, lease: int) -> None:
    """Records that the site is open for a run. Raises SiloError if a newer lease of the run is cached here."""
    with _lock:
        refuse_older(silo, run, _newest.get((opened.home, run), 0), lease)
        opened.runs[run] = lease


def find(name: Name) -> OpenSite | None:
    with _lock:
        return _open.get(name)


def let_go(run: Run, lease: int) -> int:
    """Ends the sites that older drivers of the run have open here; returns their number. Waits for no answer."""
    with _lock:
        _newest[run] = max(lease, _newest.pop(run, 0))
        while len(_newest) > MOST_KNOWN:
            del _newest[next(iter(_newest))]
        mine = [(name, each) for name, each in _open.items() if each.home == run[0]]
        older = [(name, each) for name, each in mine if each.runs.get(run[1], lease) < lease]
    for name, each in older:
        if each.fence(run[1], lease):
            end(name, each)
    return len(older)


def end(name: Name, opened: OpenSite) -> None:
    """Closes the site's ledgers at once, and forgets it."""
    with _lock:
        opened.ended = True
        if _open.get(name) is opened:
            del _open[name]
    if opened.site is not None:
        opened.site.end()


def end_if_of(name: Name, opened: OpenSite, run: str) -> None:
    """Ends the site of a run whose driver was refused for good, unless it is open for other runs.

    Left open, it would lock the ledgers against the newest driver.
    """
    with _lock:
        opened.runs.pop(run, None)
        alone = opened.durable and not opened.runs
    if alone:
        end(name, opened)


def close(name: Name, opened: OpenSite, number: int) -> None:
    """Closes the site for the claim of this number, unless there is a later claim to it."""
    with _lock:
        if number != opened.taken:
            return
        if _open.get(name) is opened:
            del _open[name]
    if opened.site is not None:
        opened.site.close()


def refuse_if_ended(opened: OpenSite, silo: str) -> None:
    """Raises SiloError if the site was ended while it was being opened."""
    if opened.ended and opened.site is not None:
        opened.site.end()
        raise SiloError(silo, LEASE, "its run was taken over by a later driver while the site was being opened")


def _watch() -> None:
    """Ends sites that no holder claims any more, until there are none."""
    global _watching
    while True:
        time.sleep(EVERY)
        with _lock:
            left = [(name, each) for name, each in _open.items() if not any(claim.stands() for claim in each.claims)]
            if not _open:
                _watching = False
                return
        for name, each in left:
            with contextlib.suppress(Exception):
                end(name, each)
