"""The lease of a run: a number that identifies its newest driver, the only one that silos answer.

The holder of a run's lock takes the next number and stores it with the run. It is the milliseconds since 1970, or more
if the last number was as large. Sites and durable ledgers record the newest lease that they received and refuse every
other, so a driver that returns from a pause changes nothing. The lease orders a run's drivers; the connection decides
who may be a driver. 0 is no lease: of a driver that has the silos in its own process, for a run that never had a lease.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from fedcore.errors import SiloError
from fedcore.ledger.refusals import LEASE, refuse_older, refuse_others

MOST_AHEAD = timedelta(days=1)
"""Bound on a lease's lead over the silo's own clock. A made-up number locks a run for no longer than this."""


def check_number(silo: str, run: str, lease: Any, now: datetime) -> None:
    """Raises SiloError unless `lease` is 0, or a number that a driver with about this clock would take."""
    if type(lease) is not int or not 0 <= lease <= (now + MOST_AHEAD).timestamp() * 1000:
        shown = lease if type(lease) is int else type(lease).__name__
        fault = "is no number, or more than a day ahead of its clock; set the clocks right"
        raise SiloError(silo, LEASE, f"lease {shown} of run {run} {fault}")


class Leases:
    """The newest lease of each run that a site received. All methods are safe from any thread."""

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
        """Records a lease, if it is newer."""
        if lease > self._newest.get(run, 0):
            self._newest[run] = lease

    def forget(self, run: str) -> None:
        """Drops a run; its next driver has to have it approved again."""
        self._newest.pop(run, None)
