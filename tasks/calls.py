"""What a run asks of its silos, as calls that somebody else carries out: alone, or together with those of other runs.

A run is a generator of calls: it stops at each of them and goes on with the answer. So several runs can go round by
round in step, and what they ask of the same site travels as one message.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from fedcore.federation.in_process import Backend

T = TypeVar("T")
K = TypeVar("K")
Method = Literal["ask", "simulated", "accounts", "close_run"]


@dataclass
class Call:
    """A method of a backend with its arguments. `seconds`: how long the answer took, or this run's share of it."""

    backend: Backend
    method: Method
    arguments: tuple[Any, ...]
    seconds: float = 0.0

    def answer(self) -> Any:
        """The answer to this call alone. Raises SiloError."""
        began = time.perf_counter()
        try:
            return getattr(self.backend, self.method)(*self.arguments)
        finally:
            self.seconds = time.perf_counter() - began


Calls = Generator[Call, Any, T]


class Stopwatch:
    """Seconds of a run's own: those between its calls, and its shares of the calls."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._before = 0.0

    @property
    def seconds(self) -> float:
        return self._before + time.perf_counter() - self._began

    def call(self, backend: Backend, method: Method, *arguments: Any) -> Calls[Any]:
        """Makes the call and returns its answer."""
        call = Call(backend, method, arguments)
        self._before = self.seconds
        answer = yield call
        self._before += call.seconds
        self._began = time.perf_counter()
        return answer


def alone(calls: Calls[T]) -> T:
    """Carries out a run by itself, and returns what it returns."""
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


def in_step(
    runs: Iterable[tuple[K, Calls[T]]], width: int
) -> Generator[tuple[K, T | Exception], None, None]:
    """Carries out runs, at most `width` at a time in step; yields each with its result, or what it raised, as it ends.

    The next run begins when one has ended. What stops this generator (a signal, a caller who leaves) stops every run at
    its call, the same way.
    """
    waiting = iter(runs)
    going: dict[int, tuple[K, Calls[T], Call]] = {}
    number = 0
    try:
        while True:
            while len(going) < width:
                key, calls = next(waiting, (None, None))
                if calls is None:
                    break
                ended, answer = _step(calls, None)
                if ended:
                    yield key, answer  # type: ignore[misc]
                else:
                    going[number] = key, calls, answer  # type: ignore[assignment]
                    number += 1
            if not going:
                return
            answers = _answers([call for _, _, call in going.values()])
            for place, answered in zip(list(going), answers, strict=True):
                key, calls, _ = going[place]
                ended, answer = _step(calls, answered)
                if ended:
                    del going[place]
                    yield key, answer
                else:
                    going[place] = key, calls, answer
    except BaseException as error:
        for _, calls, _ in going.values():
            _stop(calls, error)
        raise


def _step(calls: Calls[Any], answered: Any) -> tuple[bool, Any]:
    """Gives a run its answer: whether it has ended, and its result, what it raised, or its next call."""
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
    except BaseException:  # its own end of the same kind; the caller raises the first
        return


def _answers(calls: Sequence[Call]) -> list[Any]:
    """Of each call its answer, or what it raised; calls of backends that go together are made at once."""
    found: list[Any] = [None] * len(calls)
    groups: dict[Any, list[int]] = {}
    for place, call in enumerate(calls):
        company = getattr(call.backend, "company", None)
        groups.setdefault(place if company is None else company, []).append(place)
    for places in groups.values():
        if len(places) == 1:
            found[places[0]] = _alone(calls[places[0]])
            continue
        began = time.perf_counter()
        mine = [calls[place] for place in places]
        together = type(mine[0].backend).together  # type: ignore[attr-defined]
        answers = together([(call.backend, call.method, call.arguments) for call in mine])
        share = (time.perf_counter() - began) / len(mine)
        for place, answer in zip(places, answers, strict=True):
            found[place], calls[place].seconds = answer, share
    return found


def _alone(call: Call) -> Any:
    try:
        return call.answer()
    except Exception as error:
        return error
