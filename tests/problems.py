"""Problems and phases by flat names: tests set one number, whatever object of the plan holds it."""

from dataclasses import fields, replace
from typing import Any

from fedcore.accounting.calibration import Budget
from fedcore.planning.evaluation import Evaluation
from fedcore.planning.participation import SilosPerRound
from fedcore.planning.phase import Phase
from fedcore.planning.problem import ObjectiveFacts, Problem, SiloFacts, Trust
from fedcore.planning.questions.question import Question
from fedcore.planning.shuffle import Shuffle


def problem_of(
    silos: tuple[SiloFacts, ...],
    dim: int,
    clip: float,
    smoothness: float,
    diameter: float,
    participants: SilosPerRound,
    budget: Budget,
    drawn_points: bool = False,
    ridge: float = 0.0,
    weights: tuple[float, ...] | None = None,
    evaluation: Evaluation | None = None,
    person: str | None = None,
    shuffle: Shuffle | None = None,
    aggregator: bool = False,
) -> Problem:
    """The problem of these numbers. `weights`: of the silos, in their order; None: all are 1."""
    objective = ObjectiveFacts(dim, clip, smoothness, diameter, ridge, drawn_points)
    if weights is not None:
        silos = _weighted(silos, weights)
    return Problem(silos, objective, budget, participants, Trust(person, shuffle, aggregator), evaluation)


def changed(problem: Problem, **values: Any) -> Problem:
    """The problem with these values, by the names of `problem_of`."""
    objective = {key: values.pop(key) for key in _names(ObjectiveFacts) & values.keys()}
    trust = {key: values.pop(key) for key in _names(Trust) & values.keys()}
    weights = values.pop("weights", None)
    silos = values.pop("silos", problem.silos)
    return replace(
        problem,
        silos=silos if weights is None else _weighted(silos, weights),
        objective=replace(problem.objective, **objective),
        trust=replace(problem.trust, **trust),
        **values,
    )


def changed_phase(phase: Phase, **values: Any) -> Phase:
    """The phase with these values; those of its question, schedule, noise and subproblem by their own names."""
    for name in ("question", "schedule", "noise", "subproblem"):
        part = getattr(phase, name)
        mine = {key: values.pop(key) for key in _names(type(part)) & values.keys()}
        phase = replace(phase, **{name: replace(part, **mine)})
    return replace(phase, **values)


def _weighted(silos: tuple[SiloFacts, ...], weights: tuple[float, ...]) -> tuple[SiloFacts, ...]:
    return tuple(replace(silo, weight=weight) for silo, weight in zip(silos, weights, strict=True))


def _names(kind: type) -> set[str]:
    return {field.name for field in fields(kind)}


def question_of(kind: str, clip: float) -> Question:
    """A question for answers of this name, whether there are any or not."""
    return Question(kind=kind, clip=clip)
