"""The table of a plan's phases: records, rounds, batch, noise and the three epsilons of each."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from rich.table import Table

from fedcore.directed_rounding import in_full, shown_up
from fedcore.planning.phase import Phase
from fedcore.planning.questions.question import DifferenceQuestion, SecondOrderQuestion
from flows.commands.arguments import number
from flows.reports.table import plain_table

HEADS = ("phase", "n", "rounds", "batch", "lam", "radius", "clip", "sigma", "target", "accounted", "paper")


def phase_table(title: str, rows: Iterable[tuple[str, dict[str, Any]]]) -> Table:
    """The table of rows that `phase_rows` made."""
    table = plain_table(title)
    for head in HEADS:
        table.add_column(head, justify="right")
    for name, phase in rows:
        table.add_row(
            name,
            str(phase["n"]),
            str(phase["rounds"]),
            f"{phase['batch']:.6g}",
            *(number(phase[key]) for key in ("lam", "radius", "clip")),
            shown_up(phase["sigma"]),
            in_full(phase["epsilon_target"]),
            shown_up(phase["epsilon_accounted"]),
            claimed(phase["epsilon_paper"], phase["epsilon_target"]),
        )
    return table


def claimed(epsilon: float | None, target: float | None) -> str:
    """The paper's epsilon, for comparison; the target itself if the paper's formula made the noise."""
    if epsilon is not None and target is not None and math.isclose(epsilon, target, rel_tol=1e-12):
        return in_full(target)
    return shown_up(epsilon)


def phase_rows(phase: Phase) -> list[tuple[str, dict[str, Any]]]:
    """Name and numbers of a phase, or of each of its kinds of round."""
    kinds = phase.kinds if phase.parts else (phase,)
    names = {DifferenceQuestion.kind: "differences", SecondOrderQuestion.kind: "gradients, Hessians"}
    others = "gradients" if any(kind.question.kind == SecondOrderQuestion.kind for kind in kinds) else "restarts"
    found = []
    for kind in kinds:
        name = "evaluation" if kind.evaluates else ""
        if phase.parts:
            name = "turns" if kind.schedule.in_turn else names.get(kind.question.kind, others)
        values: dict[str, float | None] = {
            "n": kind.n,
            "rounds": kind.rounds,
            "batch": kind.batch,
            "lam": kind.subproblem.lam,
            "radius": kind.subproblem.radius,
            "clip": kind.question.clip,
            "sigma": kind.sigma,
            "epsilon_target": kind.noise.target,
            "epsilon_accounted": kind.epsilon_accounted,
            "epsilon_paper": kind.epsilon_paper,
        }
        finite = {key: None if value is None or math.isinf(value) else value for key, value in values.items()}
        found.append((f"{name} {kind.index}".strip(), finite))
    return found
