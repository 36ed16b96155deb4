"""Checks that every method's plan passes: the records of each phase, and their privacy cost.

`Plan` checks itself against its problem when it is made. `fedcore.planning.whole_silo.planned` checks the plan that a
driver or a silo gets from a method. Each silo checks its own share before it agrees. Errors name phase, silo and
records. Record numbers count from 1 in the order of the silo's split, whose last records are held out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Protocol

from fedcore.accounting.composition import spent
from fedcore.accounting.events import GaussianRelease
from fedcore.directed_rounding import in_full, shown_down, shown_up
from fedcore.errors import InputError
from fedcore.planning.phase import Phase
from fedcore.planning.problem import Problem, SiloFacts, check_shares
from fedcore.planning.shuffled import phase_epsilon

ROUNDING = 1e-9
"""Relative tolerance on a target: calibrations meet it up to the rounding of a few operations."""


class Plan(Protocol):
    """The part of a plan that these checks read (`fedcore.planning.plan`)."""

    @property
    def problem(self) -> Problem: ...

    @property
    def phases(self) -> tuple[Phase, ...]: ...

    def kind_of(self, silo: str) -> tuple[Any, ...]: ...


def check_ranges(problem: Problem, phases: Iterable[Phase]) -> None:
    """Raises InputError unless each phase has a share of every silo, within the phase's records.

    Training is about the first `SiloFacts.trained` records alone, an evaluation about all that are held out, once. So
    they compose in parallel, and no model is tested on records that it has seen. Cheap: no list of rounds or blocks.
    """
    phases = tuple(phases)
    check_shares(problem.n_silos, sum(len(phase.kinds) for phase in phases), "algorithm")
    names = tuple(silo.name for silo in problem.silos)
    trainings = evaluations = 0
    for phase in phases:
        kinds = phase.kinds
        evaluates = any(kind.evaluates for kind in kinds)
        evaluations, trainings = evaluations + evaluates, trainings + (not evaluates)
        for kind in kinds:
            if tuple(share.silo for share in kind.shares) != names:
                raise InputError(f"phase {phase.index} has no share of each of the {len(names)} silos, in their order")
            if kind.weights != problem.weights or kind.subproblem.ridge != problem.objective.ridge:
                raise InputError(f"phase {phase.index} has other weights of silos, or another ridge, than its problem")
            if kind.noise.mechanism != problem.budget.mechanism:
                raise InputError(
                    f"phase {phase.index} has {kind.noise.mechanism} noise, not {problem.budget.mechanism}"
                )
            if kind.noise.entrusted and not problem.trust.aggregator:
                raise InputError(f"phase {phase.index} leaves its noise to an aggregator, and this problem trusts none")
            for silo in problem.silos:
                _check_range(problem, phase, kind, silo)
    if problem.evaluation is not None and evaluations > problem.evaluation.count(trainings):
        raise InputError(
            f"{evaluations} phases ask held-out records, and evaluation.every = {problem.evaluation.every} has "
            f"{problem.evaluation.count(trainings)} of them, which a method does not plan itself"
        )


def check_plan(plan: Plan, silos: Iterable[str] | None = None) -> None:
    """Raises InputError unless these silos (None: all) pay no more than the problem's targets.

    For training the limit is `Budget.epsilon` where noise is calibrated exactly, or the given noise. With a shuffler
    that epsilon is towards those who see shuffled batches. Noise from a paper's formula promises no epsilon by itself:
    its cost is shown and charged. Evaluations keep to their own target, whatever training's noise. Statistics that are
    released before training are plans of their own, with targets of their own.
    """
    facts = plan.problem.facts
    alike: dict[tuple[object, ...], str] = {}  # one account for silos that differ only in their name
    for name in facts if silos is None else silos:
        for phase in plan.phases:
            for kind in phase.kinds:
                _check_range(plan.problem, phase, kind, facts[name])
        alike.setdefault((facts[name].held, *plan.kind_of(name)), name)
    for name in alike.values():
        _check_silo(plan, facts[name])


def _check_range(problem: Problem, phase: Phase, kind: Phase, silo: SiloFacts) -> None:
    share = kind.by_silo[silo.name]
    start, stop = share.start, share.start + (kind.rounds * int(share.batch) if kind.schedule.fresh_blocks else share.n)
    place = f"phase {phase.index} asks silo {silo.name} about {problem.unit} {start + 1} to {stop}"
    if not 0 <= start < stop <= silo.n:
        raise InputError(f"{place}, and it has {silo.n}")
    if not kind.evaluates:
        if stop > silo.trained:
            raise InputError(
                f"{place}, and {max(start, silo.trained) + 1} to {stop} are among its {silo.held} that are held out of "
                f"training: a phase of training keeps to the first {silo.trained} (SiloFacts.trained)"
            )
        return
    whole = (start, stop) == (silo.trained, silo.n) and share.rate == 1 and not kind.schedule.fresh_blocks
    if problem.evaluation is None or not whole or phase.parts or (phase.rounds, phase.schedule.answers) != (1, 1):
        raise InputError(
            f"{place} to evaluate a model, and an evaluation is one answer about the {silo.held} {problem.unit} that "
            "it holds out, all of them"
        )


def _check_silo(plan: Plan, silo: SiloFacts) -> None:
    problem, budget, name = plan.problem, plan.problem.budget, silo.name
    delta = budget.delta(silo.n)
    training = [(phase, phase.charged(name)) for phase in plan.phases if not phase.evaluates]
    held = [(phase, phase.charged(name)) for phase in plan.phases if phase.evaluates]
    if problem.evaluation is not None and problem.evaluation.epsilon is not None:
        _check_epsilon(problem, name, held, delta, problem.evaluation.epsilon, "evaluation.epsilon")
    if budget.multiplier is not None:
        for phase, events in training:
            for event in events:
                if event.sigma < budget.multiplier * event.sensitivity * (1.0 - ROUNDING):
                    raise InputError(
                        f"phase {phase.index}: silo {name} adds noise of "
                        f"{shown_down(event.sigma / event.sensitivity)} times the sensitivity to answers about "
                        f"{problem.unit} {event.start + 1} to {event.stop}, less than the agreed "
                        f"privacy.noise_multiplier = {in_full(budget.multiplier)}"
                    )
    if budget.epsilon is None or budget.calibration != "exact":
        return
    try:
        _check_epsilon(problem, name, training, delta, budget.epsilon, "privacy.epsilon")
    except InputError:
        if problem.trust.shuffle is None or _shuffled_epsilon(plan, name) > budget.epsilon * (1.0 + ROUNDING):
            raise


def _check_epsilon(
    problem: Problem,
    silo: str,
    charged: list[tuple[Phase, list[GaussianRelease]]],
    delta: float,
    target: float,
    key: str,
) -> None:
    """Raises InputError if a record of the silo pays more than `target` for these phases together."""
    events = [event for _, each in charged for event in each]
    if not events or (epsilon := spent(events, delta)) <= target * (1.0 + ROUNDING):
        return
    borders = sorted({border for event in events for border in (event.start, event.stop)})
    costs = {
        at: spent([event for event in events if event.start <= at < event.stop], delta)
        for at in borders[:-1]
        if any(event.start <= at < event.stop for event in events)
    }
    worst = max(costs, key=lambda at: costs[at])
    end = next(border for border in borders if border > worst)
    indices = [f"{phase.index}" for phase, each in charged if any(event.start <= worst < event.stop for event in each)]
    raise InputError(
        f"phase{'s' * (len(indices) > 1)} {', '.join(indices)}: {problem.unit} {worst + 1} to {end} of silo {silo} pay "
        f"epsilon {shown_up(epsilon)}, above the agreed {key} = {in_full(target)}: a method's noise comes from "
        "fedcore.planning.phases, for all answers of its plan together"
    )


def _shuffled_epsilon(plan: Plan, silo: str) -> float:
    """Epsilon towards those who see shuffled batches; infinite where phases share records."""
    shards = sorted({(event.start, event.stop) for phase in plan.phases for event in phase.charged(silo)})
    if any(first[1] > second[0] for first, second in pairwise(shards)):
        return math.inf
    return max(phase_epsilon(plan.problem, phase, silo) for phase in plan.phases)
