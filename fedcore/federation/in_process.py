"""Where silos live: the protocol of backends, and the one that keeps all silos in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fedcore.arrays import Vector, pack
from fedcore.messages import Query, Receipt, Release, kept, unbundled
from fedcore.silo.agreement import Agreement
from fedcore.silo.site import SiloAccount, Site


class Backend(Protocol):
    """Where silos live: in this process, on Dask workers, behind services."""

    def open(self) -> None:
        """Opens the silos and has them approve the run. Raises SiloError."""
        ...

    def restore(self, run: str, receipts: Sequence[Receipt]) -> None:
        """Tells silos without a durable ledger what they have released in this run.

        The caller goes on appending to `receipts`: a backend that loses a site tells the new one what is in it then.
        """
        ...

    def ask(self, query: Query) -> list[Release]:
        """One release per participant, in the order of `query.participants`. Raises SiloError."""
        ...

    def accounts(self, run: str) -> list[SiloAccount]: ...

    def simulated(self, run: str, w: Vector) -> list[tuple[int, float, int]]: ...

    def close_run(self, run: str) -> None:
        """Ends the run for good at all silos, which gives back what was charged and not spent."""
        ...

    def close(self) -> None: ...


class InProcess:
    """All silos in this process, as one site."""

    def __init__(self, site: Site, agreement: Agreement) -> None:
        self._site = site
        self._agreement = agreement
        self.silos = site.silos

    def open(self) -> None:
        self._site.approve(self._agreement.to_bytes())

    def restore(self, run: str, receipts: Sequence[Receipt]) -> None:
        self._site.restore(run, kept(receipts))

    def ask(self, query: Query) -> list[Release]:
        return unbundled(self._site.answer(query.to_bytes()), self._agreement.problem.dim)

    def accounts(self, run: str) -> list[SiloAccount]:
        return self._site.accounts(run)

    def simulated(self, run: str, w: Vector) -> list[tuple[int, float, int]]:
        return self._site.simulated(run, pack({"w": w}))

    def close_run(self, run: str) -> None:
        self._site.close_run(run)

    def close(self) -> None:
        self._site.close()
