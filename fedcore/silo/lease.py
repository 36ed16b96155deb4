"""The lease of a run: a number that says which of its drivers is answered, the one that took it last.

Whoever holds a run's lock takes the next number, kept with the run: the milliseconds since 1970, and more than the one
before. Sites and durable ledgers keep the newest that they were shown and refuse every other one, so a driver that
comes back from a pause changes nothing. The number orders a run's drivers; who may be a driver at all is what the
connection decides. 0 is no lease: of whoever has the silos in a process of its own, for a run that never had another.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from fedcore.errors import SiloError
from fedcore.ledger.refusals import LEASE, refuse_older, refuse_others

MOST_AHEAD = timedelta(days=1)
"""How far a lease may be ahead of the silo's own clock. A number that somebody made up locks a run for no longer."""


def check_number(silo: str, run: str, lease: Any, now: datetime) -> None:
    """Raises SiloError unless `lease` is 0, or a number that a driver with about this clock takes."""
    if type(lease) is not int or not 0 <= lease <= (now + MOST_AHEAD).timestamp() * 1000:
        said = lease if type(lease) is int else type(lease).__name__
        fault = "is no number, or more than a day ahead of its clock; set the clocks right"
        raise SiloError(silo, LEASE, f"lease {said} of run {run} {fault}")


class Leases:
    """The newest leases that a site was shown, by run. Any thread may ask, and `fence`."""

    def __init__(self, silo: str) -> None:
        self._silo = silo
        self._newest: dict[str, int] = {}

    def check(self, run: str, lease: int) -> None:
        """Raises SiloError unless this is the newest lease of a run."""
        refuse_others(self._silo, run, self._newest.get(run, 0), lease)

    def refuse_older(self, run: str, lease: int) -> None:
        """Raises SiloError if a newer lease of a run is known."""
        refuse_older(self._silo, run, self._newest.get(run, 0), lease)

    def fence(self, run: str, lease: int) -> None:
        """Takes note of a lease, if it is newer."""
        if lease > self._newest.get(run, 0):
            self._newest[run] = lease

    def forget(self, run: str) -> None:
        """Lets go of a run that nobody asks about; a driver that asks about it has to have it approved again."""
        self._newest.pop(run, None)
