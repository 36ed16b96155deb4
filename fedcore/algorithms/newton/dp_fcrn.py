"""DP-FCRN: silos solve cubic-regularised Newton models by noised steps and send k of d coordinates.

Huo, Liu, Ding, Johansson and Shi, "Federated Cubic Regularized Newton Learning with Sparsification-amplified
Differential Privacy". Algorithms 1 and 2, as the spec corrects them (dp-fcrn 5, 9 and 11).
"""

from __future__ import annotations

import math
from dataclasses import dataclass as plain_dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedcore.algorithms.method import Silo, Traits
from fedcore.arrays import Arrays, Vector
from fedcore.errors import InputError
from fedcore.hyperparameters import DECLARED, Count, Factor, Seed
from fedcore.optim.averaging import Messages, mean_message
from fedcore.optim.cubic_descent import Average, noised_descent, step_lengths
from fedcore.optim.projection import onto_domain
from fedcore.optim.random_mask import random_mask, spread
from fedcore.planning.phase import Phase
from fedcore.planning.phases.assembly import check_steps
from fedcore.planning.phases.cubic_phase import CubicRounds, Drawn, cubic_phase
from fedcore.planning.plan import Plan
from fedcore.planning.problem import Problem
from fedcore.planning.questions.question import QuadraticModelQuestion
from fedcore.state import State

SLACK = 1.2
"""Ratio of the default bound on a gradient's masked part to sqrt(k / d) times that on the whole (spec dp-fcrn 11.2)."""


@plain_dataclass(frozen=True)
class ModelState(State):
    """`w` (d,): iterate."""

    w: Vector


@dataclass(frozen=True, config=DECLARED, kw_only=True)
class DpFcrn(Traits):
    """Each round every silo solves a cubic model of its own loss in k coordinates by tau - 1 steps.

    The k coordinates come from public randomness; the steps are noised and projected. The silo sends k numbers, and the
    server adds the mean of the vectors that they estimate. The mask comes before the sum. So a record's part is clipped
    within the masked coordinates, and k / d is no assumption. Models stay in the ball of model.diameter, steps in one
    of `radius` around the model; the paper has a box instead. With `sampling: record` and `privacy.calibration: paper`
    it is the published algorithm, whose plan shows the epsilon that its noise spends.
    """

    name: Literal["dp-fcrn"] = "dp-fcrn"
    rounds: Annotated[Count, Field(ge=1)] = 10
    """R, communication rounds."""
    local_steps: Annotated[Count, Field(ge=2)] = 8
    """tau, points of a silo's solver, which uses tau - 1 noised gradients; with 2 the Hessian has no part yet."""
    kept: Annotated[Factor, Field(gt=0, le=1)] = 1.0
    """k / d, part of the coordinates that a silo solves for and sends in a round, rounded up to one at least."""
    cubic: Annotated[Factor, Field(ge=0)] = 1.0
    """M, weight of the cubic term, loss per cubed weight; in theory at least the Lipschitz constant of the Hessian."""
    radius: Annotated[Factor, Field(gt=0)] = 1.0
    """Longest step of a silo's solver, in weights."""
    convexity: Annotated[Factor, Field(gt=0)] | None = None
    """mu of the paper's step rule 2 / (mu (s + 2)), loss per squared weight; null: model.ridge."""
    step_rule: Literal["capped", "paper"] = "capped"
    """capped: no step longer than one over the model's curvature; paper: as published."""
    average: Average = "paper"
    """Average of a solver's points: all but the last (paper), or all but the first (shifted), for one more gradient."""
    scale: Annotated[Factor, Field(gt=0)] = 1.0
    """alpha, the factor on the sent step."""
    bound: Annotated[Factor, Field(gt=0)] | None = None
    """Bound on a record's part of an answer, loss per weight; null: 1.2 sqrt(k / d) model.clip, at most model.clip."""
    sampling: Drawn = "all"
    """Records of a round's answers: all, or, as published, one that is drawn for the round."""
    draw: Seed = 0
    """Public seed of the masks."""

    title: ClassVar[str] = "federated cubic-regularised Newton with sparsified uploads"
    source: ClassVar[str] = "Huo et al. 2024, Algorithms 1 and 2"
    state: ClassVar[type[ModelState]] = ModelState
    asks: ClassVar[tuple[str, ...]] = (QuadraticModelQuestion.kind,)
    takes_given_noise: ClassVar[bool] = True
    several_answers: ClassVar[bool] = True
    linear_only: ClassVar[bool] = True
    sends_sums: ClassVar[bool] = False

    @property
    def answers(self) -> int:
        return self.local_steps if self.average == "shifted" else self.local_steps - 1

    def sent(self, dim: int) -> int:
        """k, the number of coordinates sent of a model of d weights."""
        return min(dim, max(1, math.ceil(self.kept * dim - 1e-9)))

    def message_lengths(self, problem: Problem) -> tuple[int, ...]:
        return (self.sent(problem.objective.dim),)

    def plan(self, problem: Problem) -> Plan:
        check_steps("algorithm.local_steps", self.answers)
        k = self.sent(problem.objective.dim)
        bound = self.bound or min(1.0, SLACK * math.sqrt(k / problem.objective.dim)) * problem.objective.clip
        convexity = problem.objective.ridge if self.convexity is None else self.convexity
        if self.step_rule == "paper" and not convexity > 0:
            raise InputError("algorithm.step_rule = paper needs algorithm.convexity, or model.ridge, above 0")
        curvature = problem.objective.smoothness_for(self.name) + self.cubic * self.radius
        steps = step_lengths(self.answers, convexity, 0.0 if self.step_rule == "paper" else curvature)
        cubic = CubicRounds(self.rounds, self.answers, k, bound, self.sampling)
        return Plan(problem, (cubic_phase(problem, cubic, {"steps": steps}),))

    def init(self, w0: Vector) -> ModelState:
        return ModelState(1, 1, w0)

    def broadcast(self, state: ModelState, phase: Phase) -> Arrays:
        return {"w": state.w}

    def silo_step(self, sent: Arrays, silo: Silo) -> Vector:
        """The step in the masked coordinates, times `scale` (k,)."""
        w = sent["w"]
        mask = self._mask(*silo.address, w.size)
        chosen = mask > 0

        def gradient(v: Vector) -> Vector:
            return silo.ask(QuadraticModelQuestion.kind, w, mask, v)

        ridge = (silo.ridge, w[chosen]) if silo.ridge else None
        v = noised_descent(
            gradient,
            int(chosen.sum()),
            self.local_steps,
            silo.phase.settings["steps"],
            self.cubic,
            self.radius,
            ridge,
            self.average,
        )
        return self.scale * v

    def server_update(self, state: ModelState, messages: Messages, phase: Phase) -> ModelState:
        steps = {}
        for place, message in messages.items():
            mask = self._mask(phase.shares[place].silo, state.phase, state.round, state.w.size)
            steps[place] = spread(message, mask)
        w = onto_domain(
            state.w + mean_message(messages.changed(steps)), phase.subproblem.diameter, state.w, phase.subproblem.radius
        )
        return ModelState(*phase.following(state.round), w)

    def output(self, state: ModelState) -> Vector:
        return state.w

    def _mask(self, silo: str, phase: int, round: int, dim: int) -> Vector:
        return random_mask(self.draw, silo, phase, round, dim, self.sent(dim))
