"""Phases made of the shares of their silos, and how many answers of a phase are planned for at most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fedcore.errors import InputError
from fedcore.limits import MOST_ROUNDS, MOST_SAMPLED, MOST_STEPS
from fedcore.planning.part import Share, totals
from fedcore.planning.phase import Phase
from fedcore.planning.problem import Problem


def assembled(
    problem: Problem, index: int, rounds: int, shares: Sequence[Share], settings: dict[str, Any], **more: Any
) -> Phase:
    """The phase of these shares, whose own numbers are those of the smallest silo, or the largest of any.

    `more`: the fields of `Phase` that have no default, or another value than theirs.
    """
    chosen = {"lam": 0.0, "radius": math.inf, "fresh_blocks": False} | totals(shares) | more
    return Phase(
        index=index,
        rounds=rounds,
        diameter=problem.diameter,
        clip=problem.clip,
        epsilon_target=problem.budget.epsilon,
        mechanism=problem.budget.mechanism,
        settings=settings,
        shares=tuple(shares),
        ridge=problem.ridge,
        weights=problem.weights,
        **chosen,
    )


def check_answers(rounds: int, sampled: int) -> None:
    """Raises InputError for more rounds in a phase, or answers about samples, than are planned for."""
    if rounds > MOST_ROUNDS:
        raise InputError(f"algorithm.rounds: a phase has at most {MOST_ROUNDS} rounds; choose fewer")
    if sampled > MOST_SAMPLED:
        raise InputError(
            f"algorithm.rounds: a phase has at most {MOST_SAMPLED} answers about samples of the records; choose fewer "
            "rounds or local steps, or all records in each answer"
        )


def check_steps(key: str, answers: int) -> None:
    """Raises InputError for more answers in a round, by the number that `key` gives, than a silo computes at a time."""
    if answers >= MOST_STEPS:
        raise InputError(
            f"{key}: {answers} answers in a round are more than the {MOST_STEPS - 1} that a silo computes before it "
            "sends; choose fewer"
        )
