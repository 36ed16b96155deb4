"""Forms of Lowy and Razaviyayn's Algorithm 2 on one phase: multi-stage, one-stage, regularised.

Source: Lowy and Razaviyayn 2023, Algorithm 2 and its multi-stage version, Theorems 2.3, 2.4 and E.1, corrected (spec
isrl-dp-fl 6.3 to 6.6; E10, E11, E13). All forms take the steps of `Accelerated`; they differ in stages and lambda.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedcore.algorithms.accelerated.solver import Accelerated, stage_settings
from fedcore.errors import InputError
from fedcore.hyperparameters import DECLARED, Factor
from fedcore.planning.phase import Phase
from fedcore.planning.problem import Problem
from fedcore.planning.stages import Stage, Upsilon, gradient_variance, single_stage, stage_plan
from fedcore.planning.theorems.localization import starting_gap

Form = Literal["multi-stage", "one-stage", "regularised"]


@dataclass(frozen=True, config=DECLARED, kw_only=True)
class AcceleratedForms(Accelerated):
    """Config keys of methods with one phase in one of the three forms."""

    form: Form | None = None
    """multi-stage: stages that halve the gap each, for model.ridge > 0; one-stage: R rounds without a regulariser;
    regularised: R rounds, with (lambda/2)|w - w_0|^2 added by the server; null: multi-stage with a ridge, else
    regularised."""
    lam: Annotated[Factor, Field(gt=0)] | None = None
    """lambda of regularised, loss per squared weight; null: V / (D sqrt(R)), V^2 the variance of a round's mean."""
    stage_scale: Annotated[Factor, Field(gt=0)] = 1.0
    """Factor on the variance's part of a stage's length, for multi-stage. The theorem's 1 makes stages about a hundred
    times as long as quadratics need; 1/32 is a sensible value."""
    upsilon: Upsilon = "corrected"
    """Rule for a stage's constant, for multi-stage: corrected, or as printed, which makes it 2 beta nearly always."""
    gap: Literal["tight", "paper"] = "tight"
    """Bound Delta on the gap at the start: tight, by strong convexity where there is a ridge; paper: L D."""

    def strongly(self, problem: Problem) -> bool:
        """True for multi-stage, by the theorem for strongly convex objectives. Raises InputError if mu = 0."""
        form = self.form_for(problem)
        if form == "multi-stage" and problem.objective.ridge == 0.0:
            raise InputError(
                "model.ridge = 0 makes no strongly convex objective, which algorithm.form = multi-stage needs: give a "
                "ridge, or choose regularised or one-stage"
            )
        return form == "multi-stage"

    def form_for(self, problem: Problem) -> Form:
        """The form for this problem."""
        return self.form or ("multi-stage" if problem.objective.ridge > 0 else "regularised")

    def starting_gap(self, problem: Problem) -> float:
        """Delta >= F(w_0) - F*, by the key `gap`, in units of loss."""
        rule = self.gap if problem.objective.ridge > 0 else "paper"
        return starting_gap(problem, 0.0, rule)

    def formed(self, problem: Problem, phase: Phase) -> Phase:
        """The phase with its stages and lambda, made for the variance of its own noise and batches.

        multi-stage: `stage_plan`. one-stage: `single_stage` at |w_0 - w*|^2 <= min(D^2, 2 Delta / mu). regularised:
        upsilon = 2 (beta + lambda). Raises InputError naming the key that does not fit.
        """
        beta, gap, D, R = self.beta(problem), self.starting_gap(problem), problem.objective.diameter, phase.rounds
        variance = gradient_variance(problem, phase)
        if self.strongly(problem):
            stages = stage_plan(
                R, beta, problem.objective.ridge, gap, variance, self.stage_scale, self.upsilon, "model.ridge"
            )
            return replace(phase, settings=stage_settings(stages, variance, gap))
        if self.form_for(problem) == "one-stage":
            distance = min(D, math.sqrt(2.0 * gap / problem.objective.ridge)) if problem.objective.ridge > 0 else D
            return replace(phase, settings=stage_settings([single_stage(R, beta, distance, variance)], variance))
        lam = math.sqrt(variance / R) / D if self.lam is None else self.lam
        if not lam < math.inf:
            raise InputError(f"model.diameter = {D:g} leaves no finite algorithm.lam = null: choose a larger one")
        subproblem = replace(phase.subproblem, lam=lam)
        return replace(phase, subproblem=subproblem, settings=stage_settings([Stage(R, 2.0 * (beta + lam))], variance))
