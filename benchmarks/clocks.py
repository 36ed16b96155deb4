"""Clocks on the parts of a full-stack round, by subclasses and replaced attributes; production code is unchanged.

All times are `time.perf_counter`, which on Linux is one clock for all processes of a machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

from fedcore.messages import Query
from tasks.workers.holder import Holder

now = time.perf_counter


class Visit(NamedTuple):
    """One query at one site: times of receipt and answer, and the seconds that its silos' ledgers took."""

    phase: int
    round: int
    received: float
    done: float
    ledger: float


class TimedLedger:
    """A ledger whose `find` and `commit`, the calls of a round, are timed."""

    def __init__(self, ledger: Any, site: TimedHolder) -> None:
        self._ledger, self._site = ledger, site
        self._find, self._commit = ledger.find, ledger.commit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def find(self, run: str, phase: int, round: int) -> Any:
        began = now()
        try:
            return self._find(run, phase, round)
        finally:
            self._site.ledger += now() - began

    def commit(self, run: str, row: Any) -> None:
        began = now()
        try:
            self._commit(run, row)
        finally:
            self._site.ledger += now() - began


class TimedHolder(Holder):
    """The production holder with a record of its `Visit`s."""

    def __init__(self, spec: bytes, driver: str) -> None:
        super().__init__(spec, driver)
        self.ledger = 0.0
        self._visits: list[Visit] = []
        for silo in self._site._silos.values():
            silo.ledger = TimedLedger(silo.ledger, self)

    def answer(self, query: bytes) -> bytes:
        received = now()
        self.ledger = 0.0
        releases = super().answer(query)
        answered, parsed = now(), Query.from_bytes(query)
        self._visits.append(Visit(parsed.phase, parsed.round, received, answered, self.ledger))
        return releases

    def visits(self) -> list[Visit]:
        return self._visits


class Stopwatch:
    """Intervals of calls by name, in order."""

    def __init__(self) -> None:
        self.calls: dict[str, list[tuple[float, float]]] = {}

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A wrapper of `function` that records the interval of every call under `name`."""
        calls = self.calls.setdefault(name, [])

        @wraps(function)
        def clocked(*args: Any, **kwargs: Any) -> Any:
            began = now()
            try:
                return function(*args, **kwargs)
            finally:
                calls.append((began, now()))

        return clocked

    def within(self, name: str, began: float, ended: float) -> float:
        """Seconds of the calls under `name` that lie in the interval."""
        return sum(stop - start for start, stop in self.calls[name] if began <= start and stop <= ended)


class Timed:
    """A wrapper of an object that times some of its methods and passes everything else through."""

    def __init__(self, inner: Any, watch: Stopwatch, name: str, methods: tuple[str, ...]) -> None:
        self._inner = inner
        for method in methods:
            setattr(self, method, watch.timed(name, getattr(inner, method)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def put_clocks(training: Any, watch: Stopwatch) -> None:
    """Puts the driver's side of a `Training` on a stopwatch."""
    backend = training.backend
    backend._gather = watch.timed("gather", backend._gather)
    training._backend = Timed(backend, watch, "ask", ("ask",))
    training._store = Timed(training._store, watch, "checkpoint", ("save",))
    tracked = ("metrics", "begin_phase", "end_phase")
    training._tracked.tracker = Timed(training._tracked.tracker, watch, "tracking", tracked)
    training._course = Timed(training._course, watch, "server", ("fold", "query"))
    training._take_receipts = watch.timed("checkpoint", training._take_receipts)
    training._values = watch.timed("server", training._values)
    training.advance = watch.timed("advance", training.advance)
