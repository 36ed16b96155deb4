"""A method of training with evaluations of held-out records between its phases.

The wrapper stands around any method, at the driver and at silos alike, wherever a problem has an `evaluation`. The
agreement names the method inside and the problem, so the wrapper has no name of its own.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast

import numpy as np

from fedcore.algorithms.method import Method, Silo
from fedcore.arrays import Arrays, Matrix, Vector
from fedcore.errors import InputError
from fedcore.optim.averaging import Messages
from fedcore.planning.evaluation import EVALUATION, Evaluation
from fedcore.planning.phase import Phase
from fedcore.planning.phases.evaluation_phase import evaluation_phase
from fedcore.planning.plan import Plan
from fedcore.planning.problem import Problem
from fedcore.state import State

MODEL = "evaluated"
"""Name of the array that carries a model to be evaluated; by it a silo recognises an evaluation."""


def evaluated(method: Method[Any], problem: Problem) -> Method[Any]:
    """The method with the evaluations of the problem, or itself if there are none."""
    if problem.evaluation is None:
        return method
    return cast(Method[Any], Evaluated(method, problem.evaluation, problem.n_silos))


@dataclass(frozen=True)
class Evaluated:
    """`inner` with the histograms of `evaluation`, from this many `silos`.

    Its state is the inner state with `histograms` (evaluations so far, silos, cells). Each is a silo's release, a mean
    over its held-out records.
    """

    inner: Method[Any]
    evaluation: Evaluation
    silos: int

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def asks(self) -> tuple[str, ...]:
        return (*self.inner.asks, EVALUATION)

    @property
    def row_by_row(self) -> bool:
        return self.inner.row_by_row

    @property
    def sends_sums(self) -> bool:
        return self.inner.sends_sums

    @property
    def state(self) -> type[State]:
        kind: Any = self.inner.state
        return _with_histograms(kind)

    def plan(self, problem: Problem) -> Plan:
        """The inner plan with a phase of one round after each of its phases, or after the last one.

        Raises InputError as the inner method, and for a target that no noise reaches.
        """
        made = self.inner.plan(problem)
        times = self.evaluation.count(len(made.phases))
        phases: list[Phase] = []
        for phase in made.phases:
            phases.append(replace(phase, index=len(phases) + 1))
            if self.evaluation.every == "phase" or phase is made.phases[-1]:
                phases.append(evaluation_phase(problem, self.evaluation, len(phases) + 1, times))
        return replace(made, phases=tuple(phases))

    def init(self, w0: Vector) -> State:
        empty = np.empty((0, self.silos, self.evaluation.cells))
        return self._outer(self.inner.init(w0), 1, 1, empty)

    def broadcast(self, state: State, phase: Phase) -> Arrays:
        inner, its_phase = self._inner(state, phase)
        if phase.evaluates:
            return {MODEL: self.inner.output(inner)}
        return self.inner.broadcast(inner, its_phase)

    def silo_step(self, sent: Arrays, silo: Silo) -> Vector:
        if MODEL in sent:
            return silo.ask(EVALUATION, sent[MODEL])
        return self.inner.silo_step(sent, silo)

    def server_update(self, state: State, messages: Messages, phase: Phase) -> State:
        inner, its_phase = self._inner(state, phase)
        found = histograms_of(state)
        if phase.evaluates:
            released = np.stack([messages[place] for place in range(self.silos)])
            return self._outer(inner, phase.index + 1, 1, np.concatenate([found, released[None]]))
        after = self.inner.server_update(inner, messages, its_phase)
        ended = after.phase > inner.phase
        return self._outer(after, phase.index + ended, after.round, found)

    def shown(self, phase: Phase) -> dict[str, float]:
        return {} if phase.evaluates else self.inner.shown(phase)

    def curve(self, before: State, after: State, phase: Phase) -> dict[str, float]:
        if phase.evaluates:
            return {}
        inner, its_phase = self._inner(before, phase)
        return self.inner.curve(inner, self._inner(after)[0], its_phase)

    def output(self, state: State) -> Vector:
        return self.inner.output(self._inner(state)[0])

    def _inner(self, state: State, phase: Phase | None = None) -> tuple[Any, Any]:
        """The inner method's state, and the phase with its number among the inner method's phases."""
        own = state.phase if self.evaluation.every == "end" else state.phase // 2 + 1
        values = {field.name: getattr(state, field.name) for field in dataclasses.fields(self.inner.state)}
        inner = self.inner.state(**(values | {"phase": own}))
        return inner, None if phase is None else replace(phase, index=own)

    def _outer(self, inner: State, phase: int, round: int, histograms: Matrix) -> State:
        values = {field.name: getattr(inner, field.name) for field in dataclasses.fields(inner)}
        return self.state(**(values | {"phase": phase, "round": round, "histograms": histograms}))


def histograms_of(state: State) -> Matrix:
    """Released histograms of held-out records (evaluations, silos, cells).

    Raises InputError for a run without any.
    """
    found = getattr(state, "histograms", None)
    if not isinstance(found, np.ndarray):
        raise InputError("this run evaluates no held-out records")
    return found


@cache
def _with_histograms(inner: Any) -> type[State]:
    fields, name = [("histograms", "np.ndarray")], f"Evaluated{inner.__name__}"
    kind = dataclasses.make_dataclass(name, fields, bases=(inner,), frozen=True)
    return cast(type[State], kind)
