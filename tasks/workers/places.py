"""Where a driver's sites are on Dask: holders made at workers by name, awaited, called, and found to be lost."""

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
        """What its site is called at the worker."""
        return site_key(self.spec)


MOST_AT_ONCE = 2.0
"""Seconds that one look at the clock may add to what was waited; looks come at least every second."""


class Patience:
    """So many seconds of waiting. Those in which this process was stopped do not count: an answer may have come."""

    def __init__(self, seconds: float) -> None:
        self._left, self._at = seconds, time.monotonic()

    def is_over(self) -> bool:
        now = time.monotonic()
        self._left -= min(now - self._at, MOST_AT_ONCE)
        self._at = now
        return self._left < 0


TAKEN_OVER = 10.0
"""Seconds for workers to say that they have let go of an older driver's sites."""


def held(spec: bytes, driver: str, run: str, lease: int) -> Holder:
    """The holder, made at the worker where this is called: for as long as Dask keeps it for the driver."""
    actors = get_worker().state.actors

    def kept(holder: Holder) -> bool:
        return any(actor is holder for actor in list(actors.values()))

    return Holder(spec, driver, run, lease, kept)


class Places:
    """Makes and calls the holders of places for a run under a lease, each within `deadline` seconds."""

    def __init__(self, client: Client, deadline: float, run: str = "", lease: int = 0) -> None:
        self.client = client
        self._deadline = deadline
        self._run, self._lease = run, lease
        self._asked: list[Future] = []

    def take_over(self, ledgers: LedgerFolders) -> list[str]:
        """Has every worker let go of what older drivers of the run opened; returns the names of those that have.

        One that says nothing, because it is stopped or was lost, will do so when it goes on: until this driver ends.
        """
        self.workers()
        asked: dict[str, Future] = {}
        for name, address in worker_addresses(self.client).items():
            asked[name] = self.client.submit(
                let_go, ledgers, self._run, self._lease, workers=[address], allow_other_workers=False, pure=False
            )
        self._asked = list(asked.values())
        patience = min(TAKEN_OVER, self._deadline)
        for seconds, enough in ((patience, "ALL_COMPLETED"), (self._deadline, "FIRST_COMPLETED")):
            with contextlib.suppress(TimeoutError):
                wait_for(self._asked, timeout=seconds, return_when=enough)
                break
            if any(future.status == "finished" for future in self._asked):
                break
        return [name for name, future in asked.items() if future.status == "finished"]

    def workers(self) -> list[str]:
        """Names of the workers: of a local cluster all, once those that died are back, or what is there by then."""
        expected = 0 if self.client.cluster is None else len(self.client.cluster.workers)
        patience = Patience(self._deadline)
        while len(found := worker_addresses(self.client)) < expected and not patience.is_over():
            time.sleep(0.05)
        return list(found)

    def start(self, place: Place, method: str, args: tuple[Any, ...]) -> Any:
        """A call that goes out now, for `result`; None where there is no holder to call."""
        if place.actor is None:
            return None
        try:
            return getattr(place.actor, method)(*args)
        except RuntimeError:
            return None

    def result(self, place: Place, waiting: Any) -> Any:
        """What the call returned. Raises what it raised, Lost, or SiloError at the deadline."""
        if waiting is None:
            raise Lost
        patience = Patience(self._deadline)
        while True:
            try:
                return _within(waiting.result, min(1.0, self._deadline))
            except TimeoutError:
                # Dask never answers a call whose actor vanished before it arrived; the future's state tells.
                if place.future.status not in ("finished", "pending"):
                    raise Lost from None
                if patience.is_over():
                    raise self._late(place) from None
            except OSError as error:
                raise Lost from error

    def submit(self, place: Place) -> str:
        """Places the holder at the worker of this name, as soon as there is one; returns the worker's address."""
        patience = Patience(self._deadline)
        while (address := worker_addresses(self.client).get(place.worker)) is None:
            # A call pinned to a missing worker would wait for ever.
            if patience.is_over():
                raise self._late(place)
            time.sleep(0.05)
        # Not by name: a name that the scheduler has just lost is a host to it, and later any worker of that host.
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
        """Waits for the holder, and makes its handle here.

        To ask Dask for the handle is to gather: if time is up while a client gathers, it can never gather again, and
        each later attempt ends at once with an UnboundLocalError.
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
            # The worker of this address may have died in between, or with the new holder, of which Dask says so.
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
    """What a call of a future of Dask returns. Raises TimeoutError if it has not by this time, and what it raises.

    If time is up in the very moment in which the call comes to its end, distributed finds neither a result nor an
    error and stumbles over the missing one (its issue 8514); that is a time-out as well.
    """
    try:
        return call(timeout=seconds)
    except UnboundLocalError:
        raise TimeoutError from None


_LOST = "Worker holding Actor was lost"
"""What a RuntimeError of Dask says."""


class Lost(Exception):
    """The worker that held an actor is gone, or the connection to it."""
