"""Where silos live: the protocol of backends, and the one that keeps all silos in this process, with its sites."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from fedcore.arrays import Vector, pack
from fedcore.messages import Query, Receipt, Release, packed_receipts, portions, unbundled
from fedcore.silo.account import SiloAccount
from fedcore.silo.agreement import Agreement
from fedcore.silo.site import Site


class Backend(Protocol):
    """Where silos live: in this process, on Dask workers, behind services."""

    def open(self) -> None:
        """Opens the silos and has them approve the run. Raises SiloError."""
        ...

    def restore(self, run: str, receipts: Iterable[Receipt]) -> None:
        """Tells silos without a durable ledger what they have released in this run.

        The caller goes on adding to `receipts`, which can be gone through again: a backend that loses a site tells the
        new one what is in it then.
        """
        ...

    def ask(self, query: Query) -> list[Release]:
        """One release per participant, in the order of `query.participants`. Raises SiloError."""
        ...

    def accounts(self, run: str) -> list[SiloAccount]: ...

    def simulated(self, run: str, w: Vector) -> list[tuple[int, float, float]]: ...

    def close_run(self, run: str) -> None:
        """Ends the run for good at all silos, which gives back what was charged and not spent."""
        ...

    def close(self) -> None: ...


class InProcess:
    """All silos in this process, as one site. `done`: who takes the site in the end, instead of closing it.

    `route`: of a shuffled run, the bytes of its `Route`. `lease`: the driver's, of the run (`fedcore.silo.lease`).
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

    def ask(self, query: Query) -> list[Release]:
        return unbundled(self._site.answer(query.to_bytes(), self._lease), *self._agreement.lengths)

    def send(self, query: Query) -> None:
        """Has the participants send their answers to the run's shuffler. Raises SiloError."""
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
    """Sites of this process that stay open between the runs of one driver, so that a sweep reads each silo once.

    For memory ledgers: durable ones are held under a lock. At most `limit` are kept; the one that was used longest ago
    is closed first.
    """

    def __init__(self, limit: int = 4) -> None:
        self._limit = limit
        self._kept: dict[bytes, Site] = {}

    def take(self, spec: bytes) -> Site | None:
        """The open site of this spec, which is then the caller's; None if there is none."""
        return self._kept.pop(spec, None)

    def give(self, spec: bytes, site: Site) -> None:
        """Takes a site back that has no open run."""
        self._kept[spec] = site
        while len(self._kept) > self._limit:
            self._kept.pop(next(iter(self._kept))).close()

    def close(self) -> None:
        while self._kept:
            self._kept.popitem()[1].close()
