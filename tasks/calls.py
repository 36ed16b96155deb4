"""Calls of runs to their silos, and the drivers that carry them out: of one run alone, or of several in step.

A run is a generator of calls: it stops at each of them and goes on with the answer. So several runs advance round by
round together, and their calls to the same site travel as one message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Literal, TypeVar

from fedcore.federation.in_process import Backend

T = TypeVar("T")
K = TypeVar("K")
Operation = Literal["ask", "gather", "batch", "simulated", "accounts", "close_run"]


@dataclass
class Call:
    """A method of a backend with its arguments. `seconds`: how long the answer took, or this run's share of it."""

    backend: Backend
    operation: Operation
    arguments: tuple[Any, ...]
    seconds: float = 0.0

    def answer(self) -> Any:
        """The answer to this call alone. Raises SiloError."""
        began = time.perf_counter()
        try:
            return getattr(self.backend, self.operation)(*self.arguments)
        finally:
            self.seconds = time.perf_counter() - began


Calls = Generator[Call, Any, T]


class Stopwatch:
    """Seconds that a run uses: those between its calls, and its share of each call."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._before = 0.0

    @property
    def seconds(self) -> float:
        return self._before + time.perf_counter() - self._began

    def call(self, backend: Backend, operation: Operation, *arguments: Any) -> Calls[Any]:
        """Makes the call and returns its answer."""
        call = Call(backend, operation, arguments)
        self._before = self.seconds
        answer = yield call
        self._before += call.seconds
        self._began = time.perf_counter()
        return answer


def alone(calls: Calls[T]) -> T:
    """Carries out one run by itself and returns its result."""
    try:
        call = next(calls)
        while True:
            try:
                answer = call.answer()
            except Exception as error:
                call = calls.throw(error)
            else:
                call = calls.send(answer)
    except StopIteration as end:
        made: T = end.value
        return made


def in_step(runs: Iterable[tuple[K, Calls[T]]], width: int) -> Generator[tuple[K, T | Exception], None, None]:
    """Carries out runs, at most `width` at a time in step; yields each with its result, or its exception, as it ends.

    They go in two waves: while the sites answer one, this process handles the answers to the other. The next run begins
    when one has ended. What stops this generator (a signal, a caller who leaves) also stops every run at its call.
    """
    waiting = iter(runs)
    waves: list[_Wave[K, T]] = [_Wave(size) for size in (width - width // 2, width // 2) if size]
    try:
        while True:
            for wave in waves:
                yield from wave.go_on(waiting)
            if not any(wave.going for wave in waves):
                return
    except BaseException as error:
        for wave in waves:
            for _, calls, _ in wave.going.values():
                _stop(calls, error)
        raise


@dataclass
class _Wave(Generic[K, T]):
    """Runs, at most `size`, whose calls are sent together. `going`: each run with its call, oldest run first."""

    size: int
    going: dict[int, tuple[K, Calls[T], Call]] = field(default_factory=dict)
    begun: int = 0
    answers: Callable[[], list[Any]] = list

    def go_on(self, waiting: Iterator[tuple[K, Calls[T]]]) -> Generator[tuple[K, T | Exception], None, None]:
        """Gives each run its answer, replaces runs that end by waiting ones, and sends the next calls of all."""
        for number, answered in zip(list(self.going), self.answers(), strict=True):
            key, calls, _ = self.going[number]
            ended, answer = _step(calls, answered)
            if ended:
                del self.going[number]
                yield key, answer
            else:
                self.going[number] = key, calls, answer
        while len(self.going) < self.size:
            key, calls = next(waiting, (None, None))  # type: ignore[assignment]
            if calls is None:
                break
            ended, answer = _step(calls, None)
            if ended:
                yield key, answer
            else:
                self.going[self.begun] = key, calls, answer
                self.begun += 1
        self.answers = _sent([call for _, _, call in self.going.values()])


def _step(calls: Calls[Any], answered: Any) -> tuple[bool, Any]:
    """Gives a run its answer; returns False and its next call, or True and its result or exception if it has ended."""
    try:
        return False, calls.throw(answered) if isinstance(answered, Exception) else calls.send(answered)
    except StopIteration as end:
        return True, end.value
    except Exception as error:
        return True, error


def _stop(calls: Calls[Any], error: BaseException) -> None:
    try:
        if isinstance(error, GeneratorExit):
            calls.close()
        else:
            calls.throw(error)
    except BaseException:  # the run ends with an error of the same kind; the caller raises the first one
        return


def _sent(calls: Sequence[Call]) -> Callable[[], list[Any]]:
    """Sends the calls, as one batch for each `batch_group` of backends.

    The returned function waits for them; its list has the answer to each call, or the exception that it raised.
    """
    groups: dict[Any, list[int]] = {}
    for place, call in enumerate(calls):
        group = getattr(call.backend, "batch_group", None)
        groups.setdefault(place if group is None else group, []).append(place)
    out: list[tuple[list[int], float, Callable[[], list[Any]]]] = []
    for group, places in groups.items():
        if type(group) is int:
            out.append((places, 0.0, partial(_alone, calls[group])))
            continue
        began = time.perf_counter()
        mine = [calls[place] for place in places]
        batched = type(mine[0].backend).batched  # type: ignore[attr-defined]
        waiting = batched([(call.backend, call.operation, call.arguments) for call in mine])
        out.append((places, time.perf_counter() - began, waiting))

    def answers() -> list[Any]:
        found: list[Any] = [None] * len(calls)
        for places, seconds, waiting in out:
            began = time.perf_counter()
            answered = waiting()
            share = (seconds + time.perf_counter() - began) / len(places)
            for place, answer in zip(places, answered, strict=True):
                found[place], calls[place].seconds = answer, share
        return found

    return answers


def _alone(call: Call) -> list[Any]:
    try:
        return [call.answer()]
    except Exception as error:
        return [error]
