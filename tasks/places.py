"""Where a driver's sites are on Dask: holders made at workers by name, awaited, called, and found to be lost."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from distributed import Actor, Client, KilledWorker

from fedcore.errors import SiloError
from tasks.cluster import worker_addresses
from tasks.holder import Holder, site_key


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


class Places:
    """Makes and calls the holders of places, each within `deadline` seconds."""

    def __init__(self, client: Client, deadline: float) -> None:
        self.client = client
        self._deadline = deadline

    def workers(self) -> list[str]:
        """Names of the workers: of a local cluster all, once those that died are back, or what is there by then."""
        expected = 0 if self.client.cluster is None else len(self.client.cluster.workers)
        until = time.monotonic() + self._deadline
        while len(found := worker_addresses(self.client)) < expected and time.monotonic() < until:
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
        until = time.monotonic() + self._deadline
        while True:
            try:
                return _within(waiting.result, min(1.0, self._deadline))
            except TimeoutError:
                # Dask never answers a call whose actor vanished before it arrived; the future's state tells.
                if place.future.status not in ("finished", "pending"):
                    raise Lost from None
                if time.monotonic() > until:
                    raise self._late(place) from None
            except OSError as error:
                raise Lost from error

    def submit(self, place: Place) -> str:
        """Places the holder at the worker of this name, as soon as there is one; returns the worker's address."""
        until = time.monotonic() + self._deadline
        while (address := worker_addresses(self.client).get(place.worker)) is None:
            # A call pinned to a missing worker would wait for ever.
            if time.monotonic() > until:
                raise self._late(place)
            time.sleep(0.05)
        # Not by name: a name that the scheduler has just lost is a host to it, and later any worker of that host.
        place.future = self.client.submit(
            Holder, place.spec, self.client.id, actor=True, workers=[address], allow_other_workers=False, pure=False
        )
        return address

    def await_actor(self, place: Place, address: str) -> None:
        """Waits for the holder, and makes its handle here.

        To ask Dask for the handle is to gather: if time is up while a client gathers, it can never gather again, and
        each later attempt ends at once with an UnboundLocalError.
        """
        until = time.monotonic() + self._deadline
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
            if time.monotonic() > until:
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
