"""Newton steps at the server, from gradients and Hessians that silos release with noise.

Ours. Earlier methods pay for noise in every inner step, or for the size of the step. See DP-FCRN (Huo et al.) and
Ganesh, Haghifam, Steinke and Thakurta 2023, "Faster differentially private convex optimization via second-order
methods". Here a silo answers once in a round. The server then solves the cubic model of Nesterov and Polyak 2006, which
is post-processing and free of charge.
"""

from __future__ import annotations

import math
from dataclasses import dataclass as plain_dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from fedcore.algorithms.method import Silo, Traits
from fedcore.arrays import Arrays, Matrix, Vector
from fedcore.hyperparameters import DECLARED, Count, Factor
from fedcore.optim.averaging import Messages, mean_message
from fedcore.optim.cubic import cubic_minimiser
from fedcore.optim.projection import onto_domain
from fedcore.optim.regularised import regularised
from fedcore.planning.aggregated import mean_noise
from fedcore.planning.phase import Phase
from fedcore.planning.phases.newton_phase import NewtonRounds, newton_phase
from fedcore.planning.plan import Plan
from fedcore.planning.problem import Problem
from fedcore.planning.questions.question import SecondOrderQuestion
from fedcore.planning.sensitivity.second_order import length, scale_of, spectral_noise, unpacked
from fedcore.state import State


@plain_dataclass(frozen=True)
class NewtonState(State):
    """`w` (d,): iterate. `hessian` (d, d): mean or last of the noised Hessians so far."""

    w: Vector
    hessian: Matrix


@dataclass(frozen=True, config=DECLARED, kw_only=True)
class NoisedNewton(Traits):
    """One cubic-regularised Newton step per round, with Hessians in every T-th answer.

    The other answers are gradients. For linear models of up to a few hundred weights: an answer with a Hessian has
    `d + d (d + 1) / 2` numbers.

    The losses are convex, so the mean of the noised Hessians is projected to the nearest positive semidefinite matrix.
    It also gets a ridge in proportion to the size of its noise, which is public. The ridge bounds steps along
    directions whose curvature the noise hides.
    """

    name: Literal["noised-newton"] = "noised-newton"
    rounds: Annotated[Count, Field(ge=1)] = 8
    """R, communication rounds."""
    period: Annotated[Count, Field(ge=1)] = 1
    """T, rounds from one with Hessians to the next."""
    balance: Annotated[Factor, Field(gt=0)] = 1.0
    """Squared ratio of the Hessian's part of an answer to the gradient's: larger values mean less noise on Hessians and
    more on gradients."""
    shift: Annotated[Factor, Field(ge=0)] = 0.3
    """Ridge for the noise, in units of the largest eigenvalue of the noise on the mean Hessian."""
    cubic: Annotated[Factor, Field(ge=0)] = 0.0
    """M, weight of the cubic term, loss per cubed weight; in theory at least the Lipschitz constant of the Hessian. 0:
    a Newton step."""
    step: Annotated[Factor, Field(gt=0, le=1)] = 1.0
    """Part of the Newton step that is taken."""
    hessians: Literal["mean", "last"] = "mean"
    """Hessian of a step. mean: of all released so far, whose noise falls with their number; last: the newest, with
    which steps converge quadratically without noise."""

    title: ClassVar[str] = "Newton steps from noised gradients and Hessians"
    source: ClassVar[str] = "ours; Nesterov, Polyak 2006"
    state: ClassVar[type[NewtonState]] = NewtonState
    asks: ClassVar[tuple[str, ...]] = ("gradient", SecondOrderQuestion.kind)
    takes_given_noise: ClassVar[bool] = True
    row_by_row: ClassVar[bool] = True
    takes_aggregator: ClassVar[bool] = True
    linear_only: ClassVar[bool] = True

    def message_lengths(self, problem: Problem) -> tuple[int, ...]:
        return (problem.objective.dim, length(problem.objective.dim))

    def plan(self, problem: Problem) -> Plan:
        newton = NewtonRounds(self.rounds, self.period, self.balance)
        phase = newton_phase(
            problem, newton, {"scale": scale_of(problem.objective.clip, problem.objective.smoothness, self.balance)}
        )
        return Plan(problem, (phase,))

    def init(self, w0: Vector) -> NewtonState:
        return NewtonState(1, 1, w0, np.zeros((w0.size, w0.size)))

    def broadcast(self, state: NewtonState, phase: Phase) -> Arrays:
        return {"w": state.w}

    def silo_step(self, sent: Arrays, silo: Silo) -> Vector:
        return silo.ask(silo.phase.question.kind, sent["w"])

    def server_update(self, state: NewtonState, messages: Messages, phase: Phase) -> NewtonState:
        mean, hessian, scale = mean_message(messages), state.hessian, phase.settings["scale"]
        known = 1 if self.hessians == "last" else -(-state.round // self.period)  # this round's included
        if phase.at(state.round).question.kind == SecondOrderQuestion.kind:
            mean, fresh = unpacked(mean, state.w.size, scale)
            hessian = hessian + (fresh - hessian) / known
        noise = math.sqrt(_noise(messages, phase) / known) / scale
        gradient = regularised(mean, state.w, state.w, phase)
        v = self.direction(gradient, hessian, phase.subproblem.ridge + self.shift * spectral_noise(noise, state.w.size))
        w = onto_domain(state.w + self.step * v, phase.subproblem.diameter, state.w, phase.subproblem.radius)
        return NewtonState(*phase.following(state.round), w, hessian)

    def direction(self, gradient: Vector, hessian: Matrix, ridge: float) -> Vector:
        """The minimiser of the model with this ridge (d,); 0 along directions without any curvature."""
        values, vectors = np.linalg.eigh(hessian)
        values = np.maximum(values, 0.0) + ridge
        parts = vectors.T @ gradient
        if self.cubic > 0:
            return np.asarray(vectors @ cubic_minimiser(parts, np.diag(values), self.cubic))
        seen = values > 1e-12 * values.max()
        return np.asarray(-vectors[:, seen] @ (parts[seen] / values[seen]))

    def output(self, state: NewtonState) -> Vector:
        return state.w


def _noise(messages: Messages, phase: Phase) -> float:
    """Variance per number of the mean message."""
    sigmas = [phase.shares[place].sigma for place in messages]
    weights = None if phase.weights is None else [phase.weights[place] for place in messages]
    return mean_noise(sigmas, weights, bool(phase.noise.entrusted))
