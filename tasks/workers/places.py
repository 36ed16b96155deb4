"""A driver's sites on Dask: creates holders at workers by name, waits for them, calls them, and detects lost ones."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from distributed import Actor, Client, Future, KilledWorker, get_worker
from distributed import wait as wait_for

from fedcore.errors import SiloError
from fedcore.home import LedgerFolders
from tasks.workers.cluster import worker_addresses
from tasks.workers.holder import Holder, let_go, site_key


@dataclass
class Place:
    """One site: its worker's name, the bytes of its spec, its silos, and the actor while there is one."""

    worker: str
    spec: bytes
    names: tuple[str, ...]
    actor: Any = None
    future: Any = None

    @cached_property
    def key(self) -> bytes:
        """Key of its site at the worker."""
        return site_key(self.spec)


MOST_AT_ONCE = 2.0
"""Most seconds that one reading of the clock adds to the time waited; it is read at least every second."""


class Patience:
    """A time limit that excludes the time while this process was stopped: an answer may have come meanwhile."""

    def __init__(self, seconds: float) -> None:
        self._left, self._at = seconds, time.monotonic()

    def is_over(self) -> bool:
        now = time.monotonic()
        self._left -= min(now - self._at, MOST_AT_ONCE)
        self._at = now
        return self._left < 0


TAKEN_OVER = 10.0
"""Seconds for workers to confirm that they have ended an older driver's sites."""


def held(spec: bytes, driver: str, run: str, lease: int) -> Holder:
    """A holder at the worker that runs this function, alive as long as Dask keeps it for the driver."""
    actors = get_worker().state.actors

    def is_alive(holder: Holder) -> bool:
        return any(actor is holder for actor in list(actors.values()))

    return Holder(spec, driver, run, lease, is_alive)


class Places:
    """Creates and calls the holders of places for a run under a lease, each within `deadline` seconds."""

    def __init__(self, client: Client, deadline: float, run: str = "", lease: int = 0) -> None:
        self.client = client
        self._deadline = deadline
        self._run, self._lease = run, lease
        self._takeovers: list[Future] = []  # referenced so that Dask carries them out at workers that are late

    def take_over(self, ledgers: LedgerFolders) -> list[str]:
        """Makes every worker end the sites of the run's older drivers; returns the names of workers that have.

        A stopped or lost worker does so when it goes on, if this driver still runs.
        """
        self.workers()
        takeovers: dict[str, Future] = {}
        for name, address in worker_addresses(self.client).items():
            takeovers[name] = self.client.submit(
                let_go, ledgers, self._run, self._lease, workers=[address], allow_other_workers=False, pure=False
            )
        self._takeovers = list(takeovers.values())
        patience = min(TAKEN_OVER, self._deadline)
        for seconds, enough in ((patience, "ALL_COMPLETED"), (self._deadline, "FIRST_COMPLETED")):
            with contextlib.suppress(TimeoutError):
                wait_for(self._takeovers, timeout=seconds, return_when=enough)
                break
            if any(future.status == "finished" for future in self._takeovers):
                break
        return [name for name, future in takeovers.items() if future.status == "finished"]

    def workers(self) -> list[str]:
        """Names of the workers: in a local cluster all, once dead ones are back, or those present at the deadline."""
        expected = 0 if self.client.cluster is None else len(self.client.cluster.workers)
        patience = Patience(self._deadline)
        while len(found := worker_addresses(self.client)) < expected and not patience.is_over():
            time.sleep(0.05)
        return list(found)

    def start(self, place: Place, method: str, args: tuple[Any, ...]) -> Any:
        """Sends a call and returns its future for `result`; None without a holder to call."""
        if place.actor is None:
            return None
        try:
            return getattr(place.actor, method)(*args)
        except RuntimeError:
            return None

    def result(self, place: Place, waiting: Any) -> Any:
        """The call's result. Raises the call's own error, Lost, or SiloError at the deadline."""
        if waiting is None:
            raise Lost
        patience = Patience(self._deadline)
        while True:
            try:
                return _within(waiting.result, min(1.0, self._deadline))
            except TimeoutError:
                # Dask never answers a call whose actor vanished before it arrived; the future's status shows it.
                if place.future.status not in ("finished", "pending"):
                    raise Lost from None
                if patience.is_over():
                    raise self._late(place) from None
            except OSError as error:
                raise Lost from error

    def submit(self, place: Place) -> str:
        """Creates the holder at the place's worker as soon as there is one; returns the worker's address."""
        patience = Patience(self._deadline)
        while (address := worker_addresses(self.client).get(place.worker)) is None:
            # A call pinned to a missing worker would wait for ever.
            if patience.is_over():
                raise self._late(place)
            time.sleep(0.05)
        # Not by name: the scheduler takes a name that it has just lost for a host, and allows any worker of that host.
        place.future = self.client.submit(
            held,
            place.spec,
            self.client.id,
            self._run,
            self._lease,
            actor=True,
            workers=[address],
            allow_other_workers=False,
            pure=False,
        )
        return address

    def await_actor(self, place: Place, address: str) -> None:
        """Waits for the holder, and creates its handle here.

        Dask's own way to the handle gathers the future. A client that times out while it gathers can never gather
        again: each later attempt ends at once with an UnboundLocalError.
        """
        patience = Patience(self._deadline)
        while True:
            with contextlib.suppress(TimeoutError):
                _within(place.future.exception, 1.0)
            status = place.future.status
            if status == "finished":
                with self.client.as_current():
                    place.actor = Actor(Holder, address, place.future.key)
                return
            # The worker of this address may have died meanwhile, or with the new holder; Dask reports the latter.
            gone = worker_addresses(self.client).get(place.worker) != address
            if status == "error":
                error = place.future.exception()
                of_a_loss = isinstance(error, RuntimeError) and (gone or _LOST in str(error))
                if not of_a_loss and not isinstance(error, KilledWorker):
                    raise error
            if patience.is_over():
                raise self._late(place)
            if gone or status != "pending":
                time.sleep(0.05)
                address = self.submit(place)

    def _late(self, place: Place) -> SiloError:
        names = ", ".join(place.names[:3]) + (" ..." if len(place.names) > 3 else "")
        return SiloError(
            names, "deadline", f"no answer from worker {place.worker} within cluster.deadline = {self._deadline:g} s"
        )


def _within(call: Callable[..., Any], seconds: float) -> Any:
    """The result of a call of a Dask future. Raises TimeoutError after `seconds`, or the call's own error.

    If the time runs out just as the call ends, distributed has neither result nor error and raises UnboundLocalError
    (its issue 8514). That is a time-out as well.
    """
    try:
        return call(timeout=seconds)
    except UnboundLocalError:
        raise TimeoutError from None


_LOST = "Worker holding Actor was lost"
"""Text of Dask's RuntimeError for an actor whose worker is gone."""


class Lost(Exception):
    """The worker that held an actor is gone, or the connection to it."""
