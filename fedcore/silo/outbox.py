"""How releases of shuffled runs leave a site: sealed to the run's server, by way of its shuffler."""

from __future__ import annotations

from collections.abc import Iterable

from fedcore.errors import SiloError
from fedcore.messages import Release
from fedcore.shuffling.forms import Carrier, Route
from fedcore.shuffling.shuffler import SILENT
from fedcore.silo.agreement import Agreement
from fedcore.silo.refusal import rebuilt, told


class Outbox:
    """The routes of the shuffled runs that a site has approved.

    `carrier`: takes envelopes to shufflers, if there is a way. Errors are in the name of `silo`.
    """

    def __init__(self, silo: str, carrier: Carrier | None) -> None:
        self._silo = silo
        self._carrier = carrier
        self._routes: dict[str, Route] = {}

    def __contains__(self, run: str) -> bool:
        return run in self._routes

    def checked(self, agreement: Agreement, route: bytes | None) -> Route | None:
        """The route that came with an agreement as `Route.to_bytes`; None for a run that is not shuffled.

        Raises SiloError for one that should not have come, or did not, and where no shuffler can be reached.
        """
        shuffled = agreement.problem.trust.shuffle is not None
        if shuffled != (route is not None):
            said = "comes with the address of its shuffler" if shuffled else "is not shuffled, and has no shuffler"
            raise SiloError(self._silo, "route", f"run {agreement.run} {said}")
        found = None if route is None else rebuilt(self._silo, "route", Route.from_bytes, route)
        if shuffled and self._carrier is None:
            raise SiloError(self._silo, "route", "it reaches no shuffler: its site was opened without a way to one")
        return found

    def keep(self, run: str, route: Route | None) -> None:
        """From now on the run's answers take this route, if it is one."""
        if route is not None:
            self._routes[run] = route

    def forget(self, run: str) -> None:
        self._routes.pop(run, None)

    def way(self, run: str) -> tuple[Route, Carrier]:
        """Raises SiloError for a run that was not approved as a shuffled one."""
        route, carrier = self._routes.get(run), self._carrier
        if route is None or carrier is None:
            raise SiloError(self._silo, "route", "it has approved no shuffled run of this id")
        return route, carrier


def send_sealed(
    way: tuple[Route, Carrier], run: str, releases: Iterable[Release], minimum: int, failures: list[SiloError]
) -> None:
    """Seals releases and takes them to the shuffler, for batches of at least `minimum`; `failures`: of silos."""
    route, carrier = way
    for release in releases:
        try:
            envelope = told(release.silo, route.envelope, run, release, minimum)
            told(release.silo, carrier, route.address, envelope.to_bytes(), route.patience, route.secret)
        except SiloError as error:
            failures.append(error)
            if error.code == SILENT:  # the others would wait as long for nobody
                break
