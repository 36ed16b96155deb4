"""Choice of DIFF2's period and split, and the numbers of the theorem that its plan shows beside them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from fedcore.errors import InputError
from fedcore.planning.phase import Phase
from fedcore.planning.phases.difference_phase import check_problem, unit_noise
from fedcore.planning.problem import Problem
from fedcore.planning.questions.question import DifferenceQuestion
from fedcore.planning.theorems.cycle import PAPER_SPLIT, Cycle
from fedcore.planning.theorems.restarts import best_cycle, growth, longest_step, theorem_period
from fedcore.randomness import draws, public_key

Period = int | Literal["theory"] | None


def planned_cycle(
    problem: Problem,
    rounds: int,
    period: Period,
    split: float | None,
    slope: float,
    step: float,
    part: float = 1.0,
    steps: int = 1,
) -> Cycle:
    """Period and split, given or chosen.

    `part`: of the budget, for restarts and differences. `steps`: K of a round, the server's and local ones. Raises
    InputError for a period beyond R, for a problem that does not fit DIFF2, and for a missing epsilon that a choice
    needs.
    """
    check_problem(problem)
    if isinstance(period, int) and period > rounds:
        raise InputError(f"algorithm.period = {period} must be at most algorithm.rounds = {rounds}: one restart")
    if period == "theory":
        period = _theorem_period(problem, rounds, slope)
        if period is None:
            raise InputError("algorithm.period = theory follows from privacy.epsilon: give it, or a number")
    if problem.budget.multiplier is not None and period is not None:
        return Cycle(rounds, period, PAPER_SPLIT)  # noise is given, and there is nothing to split
    if split is None and problem.budget.calibration == "paper":
        split = PAPER_SPLIT if part == 1.0 else 0.5
    # Sensitivities, hence noise, are in proportion to bounds.
    noise = problem.objective.dim * unit_noise(problem, slope) / part
    cost, relative = 4.0 * growth(steps) * step**2 * noise, noise / slope**2
    return replace(best_cycle(rounds, period, split, cost, relative), part=part)


def cycle_settings(problem: Problem, phase: Phase, cycle: Cycle, slope: float) -> dict[str, Any]:
    """Settings of a phase that show T, v and the theorem's longest step, and the paper's T and v.

    T is the period, v the split. The split is left out where no noise is split, the paper's period where there is no
    epsilon.
    """
    found: dict[str, Any] = {"period": cycle.period}
    if cycle.differences and problem.budget.epsilon is not None:
        found |= {"split": cycle.split, "paper_split": PAPER_SPLIT}
    if (theorem := _theorem_period(problem, cycle.rounds, slope)) is not None:
        found["paper_period"] = theorem
    differences = [
        kind for kind in phase.kinds if isinstance(kind.question, DifferenceQuestion) and not kind.schedule.in_turn
    ]
    noise = differences[0].mean_noise if differences else 0.0
    turns = next((kind for kind in phase.kinds if kind.schedule.in_turn), None)
    local = None if turns is None else (turns.schedule.answers + 1, int(turns.batch), turns.sigma**2)
    return found | {"longest_step": longest_step(slope, cycle.period, noise, problem.objective.dim, local)}


def drawn_place(seed: int, rounds: int) -> int:
    """The round whose first model the theorem returns, uniform on 1 .. R, by a public seed."""
    return int(draws(public_key(seed), "drawn model").integers(1, rounds + 1, 1)[0])


def _theorem_period(problem: Problem, rounds: int, slope: float) -> int | None:
    epsilon = problem.budget.epsilon
    if epsilon is None:
        return None
    silos = problem.n_silos if problem.trust.aggregator else problem.n_silos**0.5
    return theorem_period(rounds, problem.objective.clip, slope, problem.objective.dim, problem.n * silos * epsilon)
