"""The protocol of backends, by which a driver reaches silos, and that of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from fedcore.arrays import Vector, pack
from fedcore.messages import Query, Receipt, Releases, packed_receipts, portions
from fedcore.silo.account import SiloAccount
from fedcore.silo.agreement import Agreement
from fedcore.silo.site import Site


class Backend(Protocol):
    """Access to a run's silos: in this process, on Dask workers, or behind services."""

    def open(self) -> None:
        """Opens the silos and makes them approve the run. Raises SiloError."""
        ...

    def restore(self, run: str, receipts: Iterable[Receipt]) -> None:
        """Sends silos without a durable ledger the receipts of their releases in this run.

        `receipts` can be read again and grows with the run: a backend that loses a site sends the new one all that
        it holds then.
        """
        ...

    def ask(self, query: Query) -> Releases:
        """Returns one release per participant, in the query's order. Raises SiloError."""
        ...

    def accounts(self, run: str) -> list[SiloAccount]: ...

    def simulated(self, run: str, w: Vector) -> list[tuple[int, float, float]]: ...

    def close_run(self, run: str) -> None:
        """Ends the run for good at all silos; their ledgers give back unspent charge."""
        ...

    def close(self) -> None: ...


class InProcess:
    """All silos in this process, as one site. `done`: receives the open site at the end.

    `route`: bytes of a shuffled run's `Route`. `lease`: the driver's lease of the run (`fedcore.silo.lease`).
    """

    def __init__(
        self,
        site: Site,
        agreement: Agreement,
        done: Callable[[Site], object] | None = None,
        route: bytes | None = None,
        lease: int = 0,
    ) -> None:
        self._site = site
        self._route, self._lease = route, lease
        self._agreement = agreement
        self._done = done
        self.silos = site.silos

    def open(self) -> None:
        self._site.approve(self._agreement.to_bytes(), self._route, self._lease)

    def restore(self, run: str, receipts: Iterable[Receipt]) -> None:
        for portion in portions(receipts):
            self._site.restore(run, packed_receipts(portion), self._lease)

    def ask(self, query: Query) -> Releases:
        return Releases.from_bytes(self._site.answer(query.to_bytes(), self._lease), *self._agreement.lengths)

    def send(self, query: Query) -> None:
        """Makes the participants send their answers to the run's shuffler. Raises SiloError."""
        self._site.send(query.to_bytes(), self._lease)

    def accounts(self, run: str) -> list[SiloAccount]:
        return self._site.accounts(run, self._lease)

    def simulated(self, run: str, w: Vector) -> list[tuple[int, float, float]]:
        return self._site.simulated(run, pack({"w": w}), self._lease)

    def close_run(self, run: str) -> None:
        self._site.close_run(run, self._lease)

    def close(self) -> None:
        if self._done is None:
            self._site.close()
            return
        self._site.forget_run(self._agreement.run)
        self._done(self._site)


class SitePool:
    """Open sites of this process for a driver's next runs: a sweep reads each silo once.

    For memory ledgers only, since a durable ledger is under a lock while its site is open. At most `limit` sites stay
    open; the least recently used one is closed first.
    """

    def __init__(self, limit: int = 4) -> None:
        self._limit = limit
        self._idle: dict[bytes, Site] = {}

    def take(self, spec: bytes) -> Site | None:
        """Removes and returns the open site of this spec, for the caller; None without one."""
        return self._idle.pop(spec, None)

    def give(self, spec: bytes, site: Site) -> None:
        """Takes a site without open runs back."""
        self._idle[spec] = site
        while len(self._idle) > self._limit:
            self._idle.pop(next(iter(self._idle))).close()

    def close(self) -> None:
        while self._idle:
            self._idle.popitem()[1].close()
