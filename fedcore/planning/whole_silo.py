"""A plan that keeps to two targets: one for each record, and one for the whole data set of each silo.

Each phase's noise is found for the record-level target as without the second one. Then all noise of a silo, in all
phases, evaluations among them, is multiplied by one factor, the least at which the composition of everything that the
silo sends keeps to its whole-silo target (`fedcore.accounting.whole_silo`); 1 where it does anyway. Silos of different
sizes have factors of their own: a larger one has less noise for the same record-level target, and needs a larger one.

One factor for all phases leaves them in the proportions of the method's theorem, so what comes out is the method at a
smaller record-level target: a phase's part of the whole-silo budget is the square of its part of the records. Where
lambda grows by 2^3 from phase to phase, the sum of the phases' error terms d sigma_i^2 / (lambda_i R_i) is 11 % above
the least of any split (a test has the numbers). Schedules follow: where they ask for epsilon, they are told that of the
config divided by the factor of the smallest silo, as in theorems, whose noise is inversely proportional to epsilon.
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
"""Plans that are tried; one more than the first is enough where rounds and batches are numbers."""
_FREE = 5
"""Of these, so many may lower a factor that an earlier one had: a schedule that is told another epsilon may change how
often records are asked."""
_CLOSE = 1e-3
"""A factor that could be lower by less than this, relative, is the least one."""
_ROUNDING = 1e-9


class Planner(Protocol):
    """A method, as far as its plan goes."""

    @property
    def name(self) -> str: ...

    def plan(self, problem: Problem) -> Plan: ...


@dataclass(frozen=True)
class RaisedBudget(Budget):
    """`found` with its noise multiplied by a factor for each size of a silo. `epsilon` is what schedules are told."""

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
    """The method's plan of a problem, with the noise that its whole-silo target asks for, if it has one.

    Raises InputError as `method.plan`, if the schedule keeps changing with its noise, and as `invariants.check_plan`.
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
        told = max(EPSILONS[0], (problem.budget.epsilon or 0.0) / factors[smallest])
        budget = RaisedBudget(
            told,
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
    """Whether both targets hold at these silos, by the accountants."""
    budget, evaluation = problem.budget, problem.evaluation
    record = max(budget.epsilon or 0.0, evaluation.epsilon or 0.0 if evaluation is not None else 0.0)
    plan = _of(made, problem)
    return budget.whole_silo is not None and all(
        plan.silo_epsilon(silo) <= record * (1.0 + _ROUNDING)
        and plan.whole_silo_epsilon(silo) <= budget.whole_silo.epsilon
        for silo in silos
    )


def _of(made: Plan, problem: Problem) -> Plan:
    """A plan that was made with a raised budget, as that of the problem, with its targets."""
    phases = (
        phase if phase.evaluates else replace(phase, noise=replace(phase.noise, target=problem.budget.epsilon))
        for phase in made.phases
    )
    return replace(made, problem=problem, phases=tuple(phases))
