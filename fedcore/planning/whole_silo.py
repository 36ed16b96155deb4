"""A plan that meets two targets: one for each record, and one for the whole data set of each silo.

`planned` first finds each phase's noise for the record-level target alone. Then one factor per silo multiplies all of
the silo's noise, in all phases, evaluations among them. It is the least factor at which the composition of all messages
of the silo meets its whole-silo target (`fedcore.accounting.whole_silo`), and at least 1. A larger silo has less noise
for the same record-level target, and needs a larger factor.

One factor for all phases leaves their noise in the proportions of the method's theorem. The result is the method at a
smaller record-level target. A phase's part of the whole-silo budget is the square of its part of the records. Where
lambda grows by 2^3 per phase, that is near the best split. The sum of the phases' error terms d sigma_i^2 / (lambda_i
R_i) is 11 % above its least value (a test has the numbers).

Schedules that use epsilon get the config's epsilon divided by the factor of the smallest silo. That is the relation in
theorems, whose noise is inversely proportional to epsilon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

from fedcore.accounting.calibration import EPSILONS, Budget
from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.published.claims import PaperFormula
from fedcore.errors import InputError
from fedcore.planning.invariants import check_plan
from fedcore.planning.plan import Plan
from fedcore.planning.problem import Problem

PASSES = 12
"""Number of plans that are tried; two are enough where rounds and batches are numbers."""
_FREE = 5
"""Number of passes in which a factor may fall below its earlier value. A schedule with another epsilon may use records
more or less often."""
_CLOSE = 1e-3
"""Relative tolerance: a factor counts as the least if it could be lower by less than this."""
_ROUNDING = 1e-9


class Planner(Protocol):
    """The part of a method that makes its plan."""

    @property
    def name(self) -> str: ...

    def plan(self, problem: Problem) -> Plan: ...


@dataclass(frozen=True)
class RaisedBudget(Budget):
    """`found` with its noise multiplied by a factor per size of silo. `epsilon`: the one for schedules."""

    found: Budget = field(default_factory=lambda: Budget(None))
    factors: tuple[tuple[int, float], ...] = ()

    def sigma_for(self, event: GaussianRelease, n: int, formula: Callable[[], PaperFormula]) -> float:
        return self._by_size[n] * self.found.sigma_for(event, n, formula)

    @cached_property
    def _by_size(self) -> dict[int, float]:
        return dict(self.factors)

    def aimed_at(self, epsilon: float | None) -> Budget:
        return replace(self, found=self.found.aimed_at(epsilon))


def planned(method: Planner, problem: Problem) -> Plan:
    """The method's plan of a problem, with the noise for its whole-silo target, if it has one.

    Raises InputError as `method.plan` and `invariants.check_plan`, and if the schedule keeps changing with its noise.
    """
    made, target = method.plan(problem), problem.budget.whole_silo
    if target is None:
        check_plan(made)
        return made
    factors = {silo.n: 1.0 for silo in problem.silos}
    smallest = min(problem.silos, key=lambda silo: silo.trained).n
    alike = {(silo.n, silo.held): silo.name for silo in problem.silos}
    for number in range(PASSES):
        needed = dict.fromkeys(factors, 0.0)
        for (n, _), silo in alike.items():
            needed[n] = max(needed[n], factors[n] * target.factor(made.silo_events(silo)))
        least = all(factors[n] == 1.0 or needed[n] >= factors[n] * (1.0 - _CLOSE) for n in factors)
        if _keeps(made, problem, alike.values()) and (least or number >= _FREE):
            plan = _of(made, problem)
            check_plan(plan)
            return plan
        for n, factor in factors.items():
            if number < _FREE:
                factors[n] = max(1.0, needed[n] * (1.0 + _ROUNDING))
            else:
                factors[n] = max(factor, needed[n]) * (1.0 + _CLOSE)
        epsilon = max(EPSILONS[0], (problem.budget.epsilon or 0.0) / factors[smallest])
        budget = RaisedBudget(
            epsilon,
            problem.budget.fixed_delta,
            "exact",
            problem.budget.mechanism,
            found=problem.budget,
            factors=tuple(factors.items()),
        )
        made = method.plan(replace(problem, budget=budget))
    raise InputError(
        f"privacy.whole_silo: the schedule of {method.name} changes with its noise and finds none for both targets; "
        "give algorithm.rounds and algorithm.batch as numbers"
    )


def _keeps(made: Plan, problem: Problem, silos: Iterable[str]) -> bool:
    """True if both targets hold at these silos, by the accountants."""
    budget, evaluation = problem.budget, problem.evaluation
    record = max(budget.epsilon or 0.0, evaluation.epsilon or 0.0 if evaluation is not None else 0.0)
    plan = _of(made, problem)
    return budget.whole_silo is not None and all(
        plan.silo_epsilon(silo) <= record * (1.0 + _ROUNDING)
        and plan.whole_silo_epsilon(silo) <= budget.whole_silo.epsilon
        for silo in silos
    )


def _of(made: Plan, problem: Problem) -> Plan:
    """A plan made with a raised budget, with the problem and its targets put back."""
    phases = (
        phase if phase.evaluates else replace(phase, noise=replace(phase.noise, target=problem.budget.epsilon))
        for phase in made.phases
    )
    return replace(made, problem=problem, phases=tuple(phases))
