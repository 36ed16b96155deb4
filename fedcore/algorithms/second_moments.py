"""First and second moments of all silos' records, released once: the statistics behind `data.pca.constants: released`.

Not a method of training and not in ALGORITHMS, but a run like theirs: one phase, one round, each silo asked once about
all of its records. Each adds Gaussian noise to its own moments and the server pools them. With one silo that is
"Analyze Gauss" (Dwork, Talwar, Thakurta, Zhang 2014, Algorithm 1), which perturbs the second moment alone; here the
mean is released along with it, since components are those of the covariance (deviation).
"""

from __future__ import annotations

import math
from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from fedcore.algorithms.method import Silo, Traits
from fedcore.arrays import Arrays, Vector
from fedcore.errors import InputError
from fedcore.hyperparameters import DECLARED, Count, Real
from fedcore.optim.averaging import Messages
from fedcore.planning.moments import half_diameter, length
from fedcore.planning.phase import Phase, make_phase
from fedcore.planning.plan import Plan
from fedcore.planning.problem import Problem
from fedcore.state import State


@plain_dataclass(frozen=True)
class MomentsState(State):
    """`moments`: pooled mean of the statistic (length(p),); zeros before the round."""

    moments: Vector


@dataclass(frozen=True, config=DECLARED)
class SecondMoments(Traits):
    """Every silo's mean of t(x) (`fedcore.planning.moments`), pooled with its public number of records as weight.

    So without noise the result is that of all records in one place.
    """

    features: Annotated[Count, Field(ge=1)]
    """p of a raw record."""
    bound: Annotated[Real, Field(gt=0)]
    """B, the norm to which each record is scaled by itself."""

    name: ClassVar[str] = "second-moments"
    title: ClassVar[str] = "noised moments of the silos' records"
    source: ClassVar[str] = "Dwork, Talwar, Thakurta, Zhang 2014, Algorithm 1 (with the mean, over silos)"
    state: ClassVar[type[MomentsState]] = MomentsState
    trains: ClassVar[bool] = False
    asks: ClassVar[tuple[str, ...]] = ("moments",)

    def plan(self, problem: Problem) -> Plan:
        """One phase of one round. Raises InputError if the problem's length or sensitivity are not the statistic's."""
        if problem.dim != length(self.features) or problem.clip != half_diameter(self.bound):
            raise InputError(
                f"moments of {self.features} features of norm {self.bound:g} are {length(self.features)} numbers with "
                f"bound {half_diameter(self.bound):g}; the problem says {problem.dim} and {problem.clip:g}"
            )
        whole = {silo.name: (0, silo.n) for silo in problem.silos}
        phase = replace(make_phase(problem, 1, 1, whole), answer="moments", record_bound=self.bound)
        # No paper prints noise for this answer, so no epsilon is claimed for it.
        shares = tuple(replace(share, epsilon_paper=math.inf) for share in phase.shares)
        return Plan(problem, (replace(phase, epsilon_paper=math.inf, shares=shares),))

    def init(self, w0: Vector) -> MomentsState:
        return MomentsState(1, 1, w0)

    def broadcast(self, state: MomentsState, phase: Phase) -> Arrays:
        """Nothing: the question depends on public numbers alone."""
        return {}

    def silo_step(self, sent: Arrays, silo: Silo) -> Vector:
        return silo.ask("moments")

    def server_update(self, state: MomentsState, messages: Messages, phase: Phase) -> MomentsState:
        """Messages are those of all silos, in the order of the phase's shares."""
        total, records = np.zeros_like(state.moments), 0
        for message, share in zip(messages.values(), phase.shares, strict=True):
            total += share.n * message
            records += share.n
        return MomentsState(state.phase + 1, 1, total / records)

    def output(self, state: MomentsState) -> Vector:
        return state.moments
