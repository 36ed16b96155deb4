"""Phases assembled from a question, a schedule and shares; bounds on the answers of a phase."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fedcore.errors import InputError
from fedcore.limits import MOST_ROUNDS, MOST_SAMPLED, MOST_STEPS
from fedcore.planning.phase import Noise, Phase, Subproblem
from fedcore.planning.problem import Problem
from fedcore.planning.questions.question import GradientQuestion, Question
from fedcore.planning.schedule import Part, Schedule, Share, weighted


def assembled(
    problem: Problem,
    index: int,
    schedule: Schedule,
    shares: Sequence[Share],
    settings: dict[str, Any],
    *,
    question: Question | None = None,
    lam: float = 0.0,
    radius: float = math.inf,
    entrusted: bool = False,
    parts: tuple[Part, ...] = (),
) -> Phase:
    """The phase of these shares, with the problem's weights, noise, ridge and domain.

    `question`: None for gradients. `lam`, `radius`: as of `Subproblem`. `entrusted`: as of `Noise`.
    """
    objective, budget = problem.objective, problem.budget
    return Phase(
        index=index,
        question=GradientQuestion(clip=objective.clip) if question is None else question,
        schedule=schedule,
        shares=weighted(problem, shares),
        noise=Noise(budget.mechanism, budget.epsilon, entrusted),
        subproblem=Subproblem(objective.diameter, objective.ridge, lam, radius),
        settings=settings,
        parts=tuple(replace(part, shares=weighted(problem, part.shares)) for part in parts),
    )


def check_answers(rounds: int, sampled: int) -> None:
    """Raises InputError for more rounds in a phase, or answers about samples, than a plan may have."""
    if rounds > MOST_ROUNDS:
        raise InputError(f"algorithm.rounds: a phase has at most {MOST_ROUNDS} rounds; choose fewer")
    if sampled > MOST_SAMPLED:
        raise InputError(
            f"algorithm.rounds: a phase has at most {MOST_SAMPLED} answers about samples of the records; choose fewer "
            "rounds or local steps, or all records in each answer"
        )


def check_steps(key: str, answers: int) -> None:
    """Raises InputError for more answers in a round than a silo computes before it sends.

    `key`: the config key that gives their number, for the error.
    """
    if answers >= MOST_STEPS:
        raise InputError(
            f"{key}: {answers} answers in a round are more than the {MOST_STEPS - 1} that a silo computes before it "
            "sends; choose fewer"
        )
