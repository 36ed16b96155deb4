"""A method whose steps follow from a number for beta, with a test that detects too small a number.

The wrapper stands around the method at the driver alone. Silos give the same answers as without it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import numpy as np

from fedcore.algorithms.method import Method, Silo
from fedcore.arrays import Arrays, Vector
from fedcore.errors import InputError
from fedcore.optim.acceleration import AccelerationCoefficients
from fedcore.optim.averaging import Messages, mean_message
from fedcore.optim.curvature import certified_curvature, message_variance, sampling_error
from fedcore.planning.curvature import KnownCurvature
from fedcore.planning.phase import Phase
from fedcore.planning.plan import Plan
from fedcore.planning.problem import Problem
from fedcore.planning.stages import Stage, position
from fedcore.state import State

FALSE_ALARM = 1e-6
"""Largest probability of stopping a run whose number is not too small."""
_NONE = np.empty(0)


def watched(method: Method[Any], plan: Plan) -> Method[Any]:
    """The method with the test, for such a plan; itself where beta is the worst case."""
    if not isinstance(method, KnownCurvature) or method.known_curvature is None:
        return method
    return cast(Method[Any], Watched(method, method.known_curvature, plan.rounds, plan.problem.objective.drawn_points))


@dataclass(frozen=True)
class Watched:
    """`inner`, whose steps take `number` for beta, over `rounds` rounds, with the test.

    Its state is the inner state with three arrays of the round before in the phase. `asked` (d,): the query. `answered`
    (d,): the mean message. `doubt` (2,): the variance of its noise, and the bound on its sampling error. All are empty
    before the second round. `drawn_points`: the problem's.
    """

    inner: Any
    number: float
    rounds: int
    drawn_points: bool

    @property
    def name(self) -> str:
        name: str = self.inner.name
        return name

    @property
    def asks(self) -> tuple[str, ...]:
        asks: tuple[str, ...] = self.inner.asks
        return asks

    @property
    def row_by_row(self) -> bool:
        rows: bool = self.inner.row_by_row
        return rows

    @property
    def state(self) -> type[State]:
        return _with_last_round(self.inner.state)

    def plan(self, problem: Problem) -> Plan:
        plan: Plan = self.inner.plan(problem)
        return plan

    def init(self, w0: Vector) -> State:
        return self._outer(self.inner.init(w0), _NONE, _NONE, _NONE)

    def broadcast(self, state: State, phase: Phase) -> Arrays:
        sent: Arrays = self.inner.broadcast(self._inner(state), phase)
        return sent

    def silo_step(self, sent: Arrays, silo: Silo) -> Vector:
        message: Vector = self.inner.silo_step(sent, silo)
        return message

    def server_update(self, state: Any, messages: Messages, phase: Phase) -> State:
        """The state after the round.

        Raises InputError where messages certify a curvature for which the round's step is unstable.
        """
        inner = self._inner(state)
        (asked,) = self.inner.broadcast(inner, phase).values()
        answered = mean_message(messages)
        # Each round's part: half for the noise, a quarter for the sampling error of each of its two messages.
        alarm = FALSE_ALARM / self.rounds
        error = sampling_error(phase, messages, self.drawn_points, alarm / 4)
        doubt = np.array([message_variance(phase, messages), error])
        if state.asked.size:
            variance, error = doubt + state.doubt
            found = certified_curvature(asked - state.asked, answered - state.answered, variance, error, alarm / 2)
            stage, r = position(tuple(Stage(*each) for each in phase.settings["stages"]), state.round)
            step = AccelerationCoefficients.at(r, stage.upsilon, phase.subproblem.mu)
            if found > self.number and step.amplification(found + phase.subproblem.mu) > 1:
                raise InputError(
                    f"algorithm.smoothness = {self.number:.4g} is less than the curvature {found:.4g} of the loss, "
                    f"seen in round {state.phase}.{state.round}, and steps for so little are unstable there; give at "
                    f"least {found:.4g}, or worst-case"
                )
        after = self.inner.server_update(inner, messages, phase)
        if after.phase > inner.phase:
            return self._outer(after, _NONE, _NONE, _NONE)
        return self._outer(after, asked, answered, doubt)

    def shown(self, phase: Phase) -> dict[str, float]:
        numbers: dict[str, float] = self.inner.shown(phase)
        return numbers

    def curve(self, before: State, after: State, phase: Phase) -> dict[str, float]:
        numbers: dict[str, float] = self.inner.curve(self._inner(before), self._inner(after), phase)
        return numbers

    def output(self, state: State) -> Vector:
        model: Vector = self.inner.output(self._inner(state))
        return model

    def _inner(self, state: State) -> Any:
        names = [field.name for field in dataclasses.fields(self.inner.state)]
        return self.inner.state(**{name: getattr(state, name) for name in names})

    def _outer(self, inner: State, asked: Vector, answered: Vector, doubt: Vector) -> State:
        values = {field.name: getattr(inner, field.name) for field in dataclasses.fields(inner)}
        return self.state(**values, asked=asked, answered=answered, doubt=doubt)  # type: ignore[call-arg]


@cache
def _with_last_round(inner: Any) -> type[State]:
    fields = [(name, "np.ndarray") for name in ("asked", "answered", "doubt")]
    kind = dataclasses.make_dataclass(f"Watched{inner.__name__}", fields, bases=(inner,), frozen=True)
    return cast(type[State], kind)
