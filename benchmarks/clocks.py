"""Clocks on the parts of a full-stack round, by subclasses and replaced attributes; production code is unchanged.

All times are `time.perf_counter`, which on Linux is one clock for all processes of a machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple
from unittest.mock import patch

from fedcore.messages import Query
from fedcore.silo.columns import members
from tasks.workers import places
from tasks.workers.holder import Holder

now = time.perf_counter


class Visit(NamedTuple):
    """One query at one site: times of receipt and answer, and the seconds that its silos' ledgers took."""

    phase: int
    round: int
    received: float
    done: float
    ledger: float


class TimedHolder(Holder):
    """The production holder with a record of its site's `Visit`s."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._visits: list[Visit] = []
        self._answer = self._site.answer
        # Calls of a batch reach the site, not the holder.
        vars(self._site)["answer"] = self._timed_answer
        self._commits = Stopwatch()
        vars(members)["commit_round"] = self._commits.timed("commit", members.commit_round)

    def _timed_answer(self, query: bytes, lease: int = 0) -> bytes:
        received = now()
        releases = self._answer(query, lease)
        answered, parsed = now(), Query.from_bytes(query)
        ledger = self._commits.within("commit", received, answered)
        self._visits.append(Visit(parsed.phase, parsed.round, received, answered, ledger))
        self._commits.calls["commit"].clear()
        return releases

    def visits(self) -> list[Visit]:
        return self._visits


def timed_holder(spec: bytes, driver: str, run: str, lease: int) -> Holder:
    """`tasks.workers.places.held` with a `TimedHolder`, at the worker that runs this function."""
    with patch.object(places, "Holder", TimedHolder):
        return places.held(spec, driver, run, lease)


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
