"""The shared part of statistics released before a run: one answer per silo about all records.

They are no methods of training and not in ALGORITHMS, but run in the same way, in one phase of one round. Each silo
adds Gaussian noise to its own mean of a statistic of single records. The server pools these means with the silos'
public numbers of records as weights. Without noise the result is that of all records in one place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedcore.algorithms.method import Silo, Traits
from fedcore.arrays import Arrays, Vector
from fedcore.errors import InputError
from fedcore.optim.averaging import Messages
from fedcore.planning.phase import Phase
from fedcore.planning.phases.training_phase import make_phase
from fedcore.planning.plan import Plan
from fedcore.planning.problem import Problem
from fedcore.planning.questions.statistics import ColumnMomentsQuestion, EigenvalueQuestion, MomentsQuestion
from fedcore.state import State


@dataclass(frozen=True)
class MomentsState(State):
    """`moments`: pooled mean (numbers,), or the silos' releases (silos,); zeros before the round."""

    moments: Vector


class PooledStatistic(Traits):
    """A mean of a statistic t(x) over all silos' records. `question`: its kind of question."""

    name: ClassVar[str]
    question: ClassVar[type[MomentsQuestion] | type[ColumnMomentsQuestion] | type[EigenvalueQuestion]]
    state: ClassVar[type[MomentsState]] = MomentsState
    trains: ClassVar[bool] = False
    row_by_row: ClassVar[bool] = True

    @property
    def numbers(self) -> int:
        """Length of t(x)."""
        raise NotImplementedError

    @property
    def half_diameter(self) -> float:
        """C such that replacing one record moves the sum of t by at most 2 C."""
        raise NotImplementedError

    @property
    def record_bound(self) -> float:
        """The norm to which each record is scaled."""
        raise NotImplementedError

    @property
    def words(self) -> str:
        """The statistic in words, for errors."""
        raise NotImplementedError

    def plan(self, problem: Problem) -> Plan:
        """One phase of one round.

        Raises InputError if the problem's length or sensitivity is not the statistic's.
        """
        if problem.objective.dim != self.numbers or problem.objective.clip != self.half_diameter:
            raise InputError(
                f"{self.words} are {self.numbers} numbers with bound {self.half_diameter:g}; the problem has "
                f"{problem.objective.dim} and {problem.objective.clip:g}"
            )
        whole = {silo.name: (0, silo.trained) for silo in problem.silos}
        question = self.question(clip=self.half_diameter, record_bound=self.record_bound)
        phase = make_phase(problem, 1, 1, whole, question=question)
        # No paper prints noise for this answer, so no epsilon is claimed for it.
        shares = tuple(replace(share, epsilon_paper=math.inf) for share in phase.shares)
        return Plan(problem, (replace(phase, shares=shares),))

    def init(self, w0: Vector) -> MomentsState:
        return MomentsState(1, 1, w0)

    def broadcast(self, state: MomentsState, phase: Phase) -> Arrays:
        """Empty: the question depends on public numbers alone."""
        return {}

    def silo_step(self, sent: Arrays, silo: Silo) -> Vector:
        return silo.ask(self.asks[0])

    def server_update(self, state: MomentsState, messages: Messages, phase: Phase) -> MomentsState:
        """The state after pooling the messages of all silos, which are in the order of the phase's shares."""
        total, records = np.zeros_like(state.moments), 0
        for message, share in zip(messages.values(), phase.shares, strict=True):
            total += share.n * message
            records += share.n
        return MomentsState(state.phase + 1, 1, total / records)

    def output(self, state: MomentsState) -> Vector:
        return state.moments


def pooled_noise(plan: Plan) -> float:
    """Standard deviation of the noise on each number of a plan's pooled statistic; 0 without noise."""
    shares = plan.phases[0].shares
    return math.sqrt(math.fsum((share.n * share.sigma) ** 2 for share in shares)) / sum(share.n for share in shares)
