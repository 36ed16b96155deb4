"""Questions that a site admits: exactly the arrays of the method's own broadcast, with models within the domain.

The names come from the method's own broadcast at the start of the phase, for a problem of one weight and one silo. Its
vectors go to all silos, the rows of its matrices to each silo alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from fedcore.algorithms.method import Method
from fedcore.arrays import is_vector
from fedcore.errors import InputError, SiloError
from fedcore.messages import BOUND, Query, is_bounded
from fedcore.planning.phase import Phase
from fedcore.planning.plan import Plan

SLACK = 1e-9
"""Relative tolerance on the domain's radius: a projection onto the ball is exact up to rounding only."""


class RoundQuestion(NamedTuple):
    """One silo's checked question in one round. `digest`: of all arrays that it receives, computed at its site."""

    run: str
    phase: int
    round: int
    arrays: dict[str, np.ndarray]
    digest: bytes


@dataclass(frozen=True)
class Form:
    """The arrays of one phase's questions. `common`: names of those for all silos, which are models.

    `own`: names of those for one silo alone. `dim`: length of each. `radius`: of the ball around 0 that holds models.
    """

    common: frozenset[str]
    own: frozenset[str]
    dim: int
    radius: float

    @classmethod
    def of(cls, method: Method[Any], plan: Plan, phase: Phase, round: int = 1) -> Form:
        """The form of the questions of this method in this round. Raises InputError for models without a domain."""
        state = replace(method.init(np.zeros(1)), phase=phase.index, round=round)
        sent = method.broadcast(state, replace(phase, shares=phase.shares[:1]))
        common = frozenset(name for name, array in sent.items() if array.ndim == 1)
        if common and not math.isfinite(phase.subproblem.diameter):
            raise InputError(
                f"{method.name} asks about models, and model.diameter = {phase.subproblem.diameter:g} bounds none"
            )
        return cls(
            common, frozenset(sent) - common, plan.problem.objective.dim, phase.subproblem.diameter / 2 * (1 + SLACK)
        )

    def fault(self, query: Query, silos: list[str]) -> str | None:
        """Sentence if these silos must not take the query's arrays; None if they may.

        Own arrays of another silo are refused: no digest here would cover them.
        """
        if set(query.arrays) != self.common:
            return f"a query of this phase holds the arrays {_names(self.common)}"
        if set(query.own) != (set(silos) if self.own else set()):
            return f"a query of this phase holds arrays of their own for {'each' if self.own else 'no'} participant"
        own = [arrays for silo, arrays in query.own.items()]
        if any(set(arrays) != self.own for arrays in own):
            return f"a participant's own arrays of this phase are {_names(self.own)}"
        for array in (*query.arrays.values(), *(array for arrays in own for array in arrays.values())):
            if not is_vector(array, self.dim) or not is_bounded(array):
                return f"a query needs float64 arrays of {self.dim} values below {BOUND:g}"
        if not all(float(np.linalg.norm(model)) <= self.radius for model in query.arrays.values()):
            return f"a query is about models of norm at most {self.radius:.6g}, half of model.diameter"
        return None


Forms = Mapping[tuple[int, int], Form]
"""The form for each (phase, kind of round) (`Phase.kind`)."""


def forms_of(method: Method[Any], plan: Plan) -> Forms:
    """The forms of all questions of a plan. Raises InputError for models without a domain."""
    return {
        (phase.index, kind): Form.of(method, plan, phase, round)
        for phase in plan.phases
        for kind, round in phase.first_rounds.items()
    }


def checked_phase(query: Query, names: list[str], plan: Plan | None, forms: Forms) -> Phase:
    """The phase of the approved plan, in the query's round, in which it asks `names`, the silos of a site.

    `plan`: None if no plan was approved. Raises SiloError, naming the first silo, if the query does not fit the plan
    and its forms.
    """
    if plan is None or plan.digest != query.plan:
        raise SiloError(names[0], "plan", f"it has not approved run {query.run} with this plan")
    if not plan.has(query.phase, query.round):
        raise SiloError(names[0], "plan", f"round {query.phase}.{query.round} is not in the approved plan")
    if len(set(names)) < len(names):
        raise SiloError(names[0], "query", "a query names each participant once")
    phase = plan.phases[query.phase - 1]
    here = phase.at(query.round)
    if here.schedule.in_turn and names != [turn := here.whose_turn(phase.turn(query.round))]:
        raise SiloError(names[0], "plan", f"round {query.phase}.{query.round} is the turn of silo {turn}")
    fault = forms[query.phase, phase.kind(query.round)].fault(query, names)
    if fault is not None:
        raise SiloError(names[0], "query", fault)
    return here


def _names(names: frozenset[str]) -> str:
    return ", ".join(sorted(names)) or "none"
