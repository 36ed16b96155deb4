"""A silo's checks of a plan before it agrees: charges, answers, targets and noise. They read no record."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from typing import Any

from fedcore.accounting.events import RESERVED, GaussianRelease, mean_sensitivity
from fedcore.accounting.filters import Charge
from fedcore.algorithms import Method
from fedcore.errors import InputError, SiloError
from fedcore.mechanisms.grid import Grid, charged_grid, delta_cost
from fedcore.planning.invariants import check_plan
from fedcore.planning.phase import Phase
from fedcore.planning.plan import Plan
from fedcore.planning.problem import Problem
from fedcore.silo.answers import ANSWERS
from fedcore.silo.policies.policy import MOST_RUNS


def charge_of(silo: str, plan: Plan) -> Charge:
    """The full charge of a plan. Raises SiloError for an event without a sound bound in this accountant."""
    with contextlib.suppress(ValueError):
        return plan.charge(silo)
    raise SiloError(silo, "plan", "its accountant knows no sound bound for an event of the plan")


def check_answers(silo: str, plan: Plan, method: Method[Any]) -> None:
    """Raises SiloError unless every phase charges for the answer that it names, and the method declares it."""
    for phase in (kind for each in plan.phases for kind in each.kinds):
        kind, event = ANSWERS.get(phase.question.kind), phase.event(silo, 1)
        if kind is None or phase.question.kind not in method.asks:
            raise SiloError(silo, "plan", f"phase {phase.index} asks for {phase.question.kind}, which is not agreed")
        count, sampled = phase.by_silo[silo].batch, event.sampling != "full"
        reach = kind.half_diameter(plan.problem, phase)
        if sampled:  # a record that joins a sample adds its whole part, charged as half a replacement
            reach = max(reach, kind.largest_norm(plan.problem, phase))
        answers = math.sqrt(phase.schedule.answers) if phase.question.one_sample else 1.0
        sensitivity = mean_sensitivity(reach, count, event.mechanism, slack_of(plan.problem, phase, event))
        charged = sensitivity * answers <= event.sensitivity
        if not charged or (sampled and not kind.samples):
            sentence = f"phase {phase.index} does not charge for its answers, {phase.question.kind}"
            raise SiloError(silo, "plan", sentence)


def slack_of(problem: Problem, phase: Phase, event: GaussianRelease) -> float:
    """Effect of rounding on the sums of an event, relative to 2 C, at least by the answer's own `largest_norm`."""
    kind, terms, sampled = ANSWERS[phase.question.kind], event.stop - event.start, event.sampling != "full"
    listed = phase.question.rounding
    reach = kind.largest_norm(problem, phase) / kind.half_diameter(problem, phase) * (1.0 - 2.0**-40)
    return replace(listed, reach=max(listed.reach, reach)).slack(terms, sampled)


def check_agreed(silo: str, plan: Plan) -> None:
    """Raises SiloError if the plan trains on this silo's held-out records, or charges one more than agreed."""
    try:
        check_plan(plan, [silo])
    except InputError as error:
        fault = str(error)
    else:
        return
    # Not in the handler: the first error would travel as the context of this one.
    raise SiloError(silo, "plan", fault)


def check_whole_silo(silo: str, plan: Plan) -> None:
    """Raises SiloError if the whole silo's epsilon exceeds the agreed target, where there is one."""
    target = plan.problem.budget.whole_silo
    if target is None:
        return
    with contextlib.suppress(ValueError):
        if plan.whole_silo_epsilon(silo) <= target.epsilon:
            return
    raise SiloError(silo, "plan", "its noise does not keep to the target for the whole silo")


def check_noise(silo: str, n: int, guarded: bool, plan: Plan) -> None:
    """Raises SiloError unless the plan's noise is of this silo's kind, and delta covers discrete noise."""
    budget = plan.problem.budget
    trusting = any(kind.noise.entrusted for phase in plan.phases for kind in phase.kinds)
    if guarded and trusting:
        raise SiloError(silo, "noise", "it trusts no aggregator: what it sends has its own noise")
    if (budget.mechanism == "discrete-gaussian") != guarded or (guarded and not budget.private):
        mine = "noise on a grid under a key of its own" if guarded else "noise that follows from a seed"
        raise SiloError(silo, "noise", f"it adds {mine}; the plan asks for another kind, or for none")
    if not guarded:
        return
    dim = max(kind.question.length(plan.problem.objective.dim) for phase in plan.phases for kind in phase.kinds)
    costs = [(plan.silo_epsilon(silo), budget.delta(n))]
    if budget.whole_silo is not None:
        costs.append((plan.whole_silo_epsilon(silo), budget.whole_silo.delta))
    for epsilon, delta in costs:
        if delta_cost(dim, plan.most_answers, epsilon) <= RESERVED * delta / MOST_RUNS:
            continue
        raise SiloError(silo, "noise", "its delta is too small for the distance of discrete noise")
    for phase in (kind for each in plan.phases for kind in each.kinds):
        grid_of(silo, plan.problem, phase, phase.event(silo, 1))


def grid_of(silo: str, problem: Problem, phase: Phase, event: GaussianRelease, scale: float = 1.0) -> Grid:
    """The grid of a phase's sums, from public numbers. Raises SiloError if the planned event does not cover it.

    `scale`: factor of the event and of the sums (`Answer.scale`).
    """
    kind = ANSWERS[phase.question.kind]
    try:
        reach, norm = scale * kind.half_diameter(problem, phase), scale * kind.largest_norm(problem, phase)
        slack = slack_of(problem, phase, event)
        return charged_grid(
            event, reach, phase.by_silo[silo].batch, phase.question.length(problem.objective.dim), norm, slack
        )
    except InputError as error:
        fault = str(error)
    # Not in the handler: the first error would travel as the context of this one.
    raise SiloError(silo, "noise", f"phase {phase.index}: {fault}")
