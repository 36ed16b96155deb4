"""Phases and problems as plain values by flat names, for `fedcore plan --json`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fedcore.planning.phase import Phase
from fedcore.planning.problem import Problem
from fedcore.planning.questions.question import (
    DifferenceQuestion,
    QuadraticModelQuestion,
    Question,
    SecondOrderQuestion,
)
from fedcore.planning.questions.statistics import HistogramQuestion, StatisticQuestion
from fedcore.planning.schedule import Part, Schedule, Share


def plain_problem(problem: Problem) -> dict[str, Any]:
    """Problem, objective and trust in one dictionary; `n`: of the smallest silo."""
    found = asdict(problem)
    trust, objective = found.pop("trust"), found.pop("objective")
    silos = [{"name": silo.name, "n": silo.n, "held": silo.held} for silo in problem.silos]
    aggregator = "trusted" if problem.trust.aggregator else None
    return (
        found
        | objective
        | trust
        | {"silos": silos, "weights": problem.weights, "aggregator": aggregator, "n": problem.n}
    )


def plain_phase(phase: Phase, dim: int) -> dict[str, Any]:
    """The phase as a dictionary, for models of `dim` weights.

    `parts` lists the phase's parts, with the keys that may differ there.
    """
    found = {
        "index": phase.index,
        "rounds": phase.rounds,
        "n": phase.n,
        "batch": phase.batch,
        "lam": phase.subproblem.lam,
        "radius": phase.subproblem.radius,
        "diameter": phase.subproblem.diameter,
        "sigma": phase.sigma,
        "epsilon_target": phase.noise.target,
        "epsilon_accounted": phase.epsilon_accounted,
        "epsilon_paper": phase.epsilon_paper,
        "fresh_blocks": phase.schedule.fresh_blocks,
        "mechanism": phase.noise.mechanism,
        "settings": phase.settings,
        "rate": phase.rate,
        "ridge": phase.subproblem.ridge,
        "at_most_once": phase.schedule.at_most_once,
        "record_bound": phase.question.record_bound if isinstance(phase.question, StatisticQuestion) else None,
        **_plain_rounds(phase.question, phase.schedule, phase.shares, phase.noise.entrusted, dim),
    }
    if phase.weights is not None:
        found["weights"] = phase.weights
    if phase.parts:
        found["parts"] = [_plain_part(part, dim) for part in phase.parts]
    return found


def _plain_part(part: Part, dim: int) -> dict[str, Any]:
    found = _plain_rounds(part.question, part, part.shares, part.entrusted, dim)
    return {"first": part.first, "every": part.every, **found}


def _plain_rounds(
    question: Question, schedule: Schedule | Part, shares: tuple[Share, ...], entrusted: bool, dim: int
) -> dict[str, Any]:
    """Question and schedule of the rounds of one kind, as plain values."""
    found: dict[str, Any] = {
        "answer": question.kind,
        "clip": question.clip,
        "shares": [_plain_share(share) for share in shares],
        "sampling": schedule.sampling,
        "answers": schedule.answers,
        "vectors_down": question.vectors_down,
    }
    if schedule.in_turn:
        found["in_turn"] = True
    if entrusted:
        found["entrusted"] = True
    return found | _of_kind(question, dim)


def _of_kind(question: Question, dim: int) -> dict[str, Any]:
    """Numbers that only this kind of question has."""
    if isinstance(question, DifferenceQuestion) and question.vectors_up > 1:
        return {"vectors_up": question.vectors_up}
    if isinstance(question, SecondOrderQuestion):
        return {"numbers": question.length(dim), "balance": question.balance}
    if isinstance(question, HistogramQuestion):
        return {"numbers": question.cells}
    if isinstance(question, QuadraticModelQuestion):
        return {"numbers": question.numbers} | ({"one_sample": True} if question.one_sample else {})
    return {}


def _plain_share(share: Share) -> dict[str, Any]:
    return {key: value for key, value in vars(share).items() if key != "weight"}
