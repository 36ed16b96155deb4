"""SIMULATION: a method's view of several simulated silos in one round, whose answers are rows of a matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from fedcore.arrays import Matrix, Vector
from fedcore.errors import SiloError
from fedcore.mechanisms.gaussian import NoiseAhead
from fedcore.mechanisms.grid import GridGaussian
from fedcore.messages import Query
from fedcore.planning.phase import Phase
from fedcore.silo.answers import ANSWERS
from fedcore.silo.columns.group import Group
from fedcore.silo.question import RoundQuestion
from fedcore.silo.refusal import with_public_errors
from fedcore.silo.round_view import PlannedRound, RoundView

_NO_GRID = GridGaussian()
V = TypeVar("V", bound=RoundView)


class MatrixView(PlannedRound):
    """Implements `fedcore.algorithms.method.Silo` for several simulated silos: answers are matrices (silos, length)."""

    def __init__(self, group: Group, query: Query, digests: Mapping[str, bytes], phase: Phase) -> None:
        super().__init__(group.names[0], phase)
        self._group, self._query, self._digests = group, query, digests
        first = group.members[0].run
        self._problem = first.plan.problem
        address, _ = first.keys.address(first.named, query.phase, query.round, digests[group.names[0]])
        self._noise = NoiseAhead(group.mechanism, group.keys, address, phase.schedule.answers)
        self._views: list[ExactView] = []

    @property
    def ridge(self) -> float:
        return self._problem.objective.ridge

    @property
    def address(self) -> tuple[str, int, int]:
        raise SiloError(self._silo, "plan", "a method that computes row by row needs no silo's name")

    def ask(self, kind: str, *arrays: Vector | Matrix) -> Matrix:
        """`RoundView.ask` of every silo (silos, length). An array (d,) is for all silos, (silos, d) has a row for each.

        Raises SiloError as `RoundView.ask`.
        """
        self._admit(kind)
        self.answered += 1
        total, scale = self._summed(kind, arrays)
        self._add_noise(total, scale)
        total /= self._group.count
        return total

    def _summed(self, kind: str, arrays: Sequence[np.ndarray]) -> tuple[Matrix, float | Matrix]:
        """Exact sums (silos, length), and their scale, where it differs as (silos, 1)."""
        names, own = self._group.names, any(array.ndim > 1 for array in arrays)
        scale = 0.0 if own else ANSWERS[kind].scale(self._problem, *arrays)
        stack = self._group.stack if scale > 0.0 else None
        stacked = None if stack is None else stack.sums(*arrays)
        if stack is not None and stacked is not None and len(stacked) == len(names):
            return stacked, scale
        found = {} if stack is None or stacked is None else dict(zip(stack.silos, stacked, strict=True))
        self._views = self._views or [self.of(at, ExactView) for at in range(len(names))]
        scales = np.full((len(names), 1), scale)
        sums = []
        for at, view in enumerate(self._views):
            if (total := found.get(names[at])) is None:
                rows = [array if array.ndim == 1 else array[at] for array in arrays]
                view.answered = self.answered - 1
                total = with_public_errors(names[at], view.ask, kind, *rows)
                scales[at] = view.scale
            sums.append(total)
        return np.array(sums), scales

    def of(self, at: int, kind: type[V]) -> V:
        """A view of the silo at this position alone."""
        query, member = self._query, self._group.members[at]
        digest = self._digests[member.name]
        question = RoundQuestion(query.run, query.phase, query.round, query.arrays_for(member.name), digest)
        return kind(member.name, member.run, question, self._phase, member.shard, self._noise, _NO_GRID)

    def _add_noise(self, total: Matrix, scale: float | Matrix) -> None:
        if self._group.noise[0, 0] > 0:
            self._noise.add(self.answered, self._group.noise * scale, total)


class ExactView(RoundView):
    """NOT PRIVATE: a simulated silo's view whose answers are exact sums; `MatrixView` adds the noise.

    `scale`: of the newest answer.
    """

    scale = 0.0

    def ask(self, kind: str, *arrays: Vector) -> Vector:
        self.scale = 0.0
        return super().ask(kind, *arrays)

    def _released(self, total: Vector, context: bytes, scale: float) -> Vector:
        self.scale = scale
        return total
