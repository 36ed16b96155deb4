"""Sending of shuffled runs' releases: sealed to the run's server and handed to its shuffler."""

from __future__ import annotations

from collections.abc import Iterable

from fedcore.errors import SiloError
from fedcore.messages import Release
from fedcore.shuffling.forms import Carrier, Route
from fedcore.shuffling.shuffler import SILENT
from fedcore.silo.agreement import Agreement
from fedcore.silo.refusal import rebuilt, with_public_errors


class Outbox:
    """The routes of the shuffled runs that a site has approved.

    `carrier`: takes envelopes to shufflers; None if none can be reached. Errors name `silo`.
    """

    def __init__(self, silo: str, carrier: Carrier | None) -> None:
        self._silo = silo
        self._carrier = carrier
        self._routes: dict[str, Route] = {}

    def __contains__(self, run: str) -> bool:
        return run in self._routes

    def checked(self, agreement: Agreement, route: bytes | None) -> Route | None:
        """The route of an agreement, from `Route.to_bytes`; None for a run that is not shuffled.

        Raises SiloError for a superfluous or missing route, and where no shuffler can be reached.
        """
        shuffled = agreement.problem.trust.shuffle is not None
        if shuffled != (route is not None):
            fault = "comes with the address of its shuffler" if shuffled else "is not shuffled, and has no shuffler"
            raise SiloError(self._silo, "route", f"run {agreement.run} {fault}")
        found = None if route is None else rebuilt(self._silo, "route", Route.from_bytes, route)
        if shuffled and self._carrier is None:
            raise SiloError(self._silo, "route", "it reaches no shuffler: its site was opened without a way to one")
        return found

    def add(self, run: str, route: Route | None) -> None:
        """Sends the run's answers by this route from now on; None: nothing changes."""
        if route is not None:
            self._routes[run] = route

    def forget(self, run: str) -> None:
        self._routes.pop(run, None)

    def channel(self, run: str) -> tuple[Route, Carrier]:
        """Route and carrier of a run. Raises SiloError for a run that was not approved as a shuffled one."""
        route, carrier = self._routes.get(run), self._carrier
        if route is None or carrier is None:
            raise SiloError(self._silo, "route", "it has approved no shuffled run of this id")
        return route, carrier


def send_sealed(
    channel: tuple[Route, Carrier], run: str, releases: Iterable[Release], minimum: int, failures: list[SiloError]
) -> None:
    """Seals releases and takes them to the shuffler, for batches of at least `minimum`; collects `failures`."""
    route, carrier = channel
    for release in releases:
        try:
            envelope = with_public_errors(release.silo, route.envelope, run, release, minimum)
            with_public_errors(release.silo, carrier, route.address, envelope.to_bytes(), route.patience, route.secret)
        except SiloError as error:
            failures.append(error)
            if error.code == SILENT:  # the others would wait as long in vain
                break
