"""Localized ISRL-DP accelerated minibatch SGD.

Gao, Lowy, Zhou and Wright, "Private Heterogeneous Federated Learning Without a Trusted Server Revisited", ICML 2024:
Algorithm 1 with the accelerated solver (Algorithm 2) in its multi-stage form (Algorithm 5), each stage started at the
result of the one before, in the corrected form of spec localized-isrl-dp 6.2 (Q1 to Q5, Q8, Q15).
"""

from __future__ import annotations

from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedcore.algorithms.localized import Localized
from fedcore.algorithms.method import Silo
from fedcore.arrays import Arrays, Vector
from fedcore.hyperparameters import DECLARED, Real
from fedcore.optim.acceleration import AccelerationCoefficients
from fedcore.optim.averaging import Messages, mean_message
from fedcore.optim.projection import onto_domain
from fedcore.optim.regularised import regularised
from fedcore.planning.batches import gradient_minimal_batch, least_batch
from fedcore.planning.complexity import accelerated_complexity
from fedcore.planning.curvature import KnownCurvature
from fedcore.planning.localization import (
    localization,
    pieces,
    rounds_of,
    starting_gap,
    theory_rounds,
)
from fedcore.planning.phase import Phase, make_phase
from fedcore.planning.plan import Plan
from fedcore.planning.problem import Problem
from fedcore.planning.stages import Stage, gradient_variance, position, stage_plan
from fedcore.state import State


@plain_dataclass(frozen=True)
class AcceleratedState(State):
    """`w`: iterate; `aggregate`: w_ag, the solver's answer; `centre`: model at the start of the phase (all (d,))."""

    w: Vector
    aggregate: Vector
    centre: Vector


@dataclass(frozen=True, config=DECLARED, kw_only=True)
class LocalizedAccelerated(KnownCurvature, Localized):
    """Phase i: multi-stage accelerated noisy SGD on piece i, over W and the ball around the model of phase i-1.

    `batch: theory` takes the paper's K_i with the fewest gradients, and not below what its noise is stated for.
    """

    name: Literal["localized-accelerated"] = "localized-accelerated"
    rounds_scale: Annotated[Real, Field(gt=0)] = 1.0
    """Factor on the theorem's R_i, where rounds are left to it."""
    gap: Literal["tight", "paper"] = "tight"
    """Bound Delta_i on the phase's starting gap: tight, by strong convexity; paper: L D."""

    title: ClassVar[str] = "localized ISRL-DP accelerated minibatch SGD"
    source: ClassVar[str] = "Gao, Lowy, Zhou, Wright 2024, Algorithms 1, 2 and 5 (corrected)"
    state: ClassVar[type[AcceleratedState]] = AcceleratedState

    def plan(self, problem: Problem) -> Plan:
        problem = self.known(problem)
        smoothness, phases = problem.smoothness_for(self.name), []
        for local in localization(problem, self.lam, self.exponent, self.max_phases):
            gap = starting_gap(problem, local.lam, self.gap)
            K = gradient_minimal_batch(problem, local.n) if self.batch == "theory" else self.batch
            rounds = rounds_of(self.rounds, local.index)
            if rounds is None:
                rounds = theory_rounds(problem, local, gap, self.rounds_scale, K)
            if self.batch == "theory" and K is not None:
                K = max(K, least_batch(problem, local.n, rounds))
            phase = make_phase(
                problem, local.index, rounds, pieces(problem, local.index), lam=local.lam, radius=local.radius, batch=K
            )
            variance = gradient_variance(
                problem.dim, phase.sigma, phase.clip, problem.harmonic_participants, problem.n_silos, phase.batch,
                phase.n, problem.drawn_points,
            )  # fmt: skip
            stages = stage_plan(rounds, smoothness + local.lam, phase.mu, gap, variance)
            settings = {
                "gap": gap,
                "variance": variance,
                "stages": [[stage.rounds, stage.upsilon] for stage in stages],
            }
            phases.append(replace(phase, settings=settings))
        return Plan(problem, tuple(phases), accelerated_complexity(problem))

    def init(self, w0: Vector) -> AcceleratedState:
        return AcceleratedState(phase=1, round=1, w=w0, aggregate=w0, centre=w0)

    def broadcast(self, state: AcceleratedState, phase: Phase) -> Arrays:
        coefficients, w = _coefficients(state, phase)
        return {"w": coefficients.middle(state.aggregate, w)}

    def silo_step(self, sent: Arrays, silo: Silo) -> Vector:
        return silo.ask("gradient", sent["w"])

    def server_update(
        self, state: AcceleratedState, messages: Messages, phase: Phase
    ) -> AcceleratedState:
        coefficients, previous = _coefficients(state, phase)
        middle = coefficients.middle(state.aggregate, previous)
        gradient = regularised(mean_message(messages, phase.weights), middle, state.centre, phase)
        w = onto_domain(
            coefficients.unprojected(middle, previous, gradient), phase.diameter, state.centre, phase.radius
        )
        alpha = coefficients.alpha
        aggregate = alpha * w + (1.0 - alpha) * state.aggregate
        if state.round < phase.rounds:
            return replace(state, round=state.round + 1, w=w, aggregate=aggregate)
        return AcceleratedState(phase.index + 1, 1, w=aggregate, aggregate=aggregate, centre=aggregate)

    def output(self, state: AcceleratedState) -> Vector:
        return state.aggregate


def _coefficients(state: AcceleratedState, phase: Phase) -> tuple[AccelerationCoefficients, Vector]:
    """Coefficients of the state's round, and the previous iterate: a new stage restarts at the aggregate."""
    stages = tuple(Stage(rounds, upsilon) for rounds, upsilon in phase.settings["stages"])
    stage, r = position(stages, state.round)
    w = state.aggregate if r == 1 else state.w
    return AccelerationCoefficients.at(r, stage.upsilon, phase.mu), w
