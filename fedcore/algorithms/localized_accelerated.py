"""Localized ISRL-DP accelerated minibatch SGD.

Gao, Lowy, Zhou and Wright, "Private Heterogeneous Federated Learning Without a Trusted Server Revisited", ICML 2024.
Algorithm 1 with the accelerated solver (Algorithm 2) in its multi-stage form (Algorithm 5). Each stage starts at the
result of the one before. The form is that of spec localized-isrl-dp 6.2, corrected (Q1 to Q5, Q8, Q15).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedcore.algorithms.accelerated.solver import Accelerated, stage_settings
from fedcore.algorithms.localized import Localized
from fedcore.hyperparameters import DECLARED, Factor
from fedcore.planning.batches import gradient_minimal_batch, least_batch
from fedcore.planning.phases.training_phase import make_phase
from fedcore.planning.plan import Plan
from fedcore.planning.problem import Problem
from fedcore.planning.stages import gradient_variance, stage_plan
from fedcore.planning.theorems.complexity import accelerated_complexity
from fedcore.planning.theorems.localization import localization, rounds_of, shards, starting_gap, theory_rounds


@dataclass(frozen=True, config=DECLARED, kw_only=True)
class LocalizedAccelerated(Localized, Accelerated):
    """Phase i: multi-stage accelerated noisy SGD on shard i, near the model of phase i-1.

    The domain is W and a ball around that model. `batch: theory` takes the paper's K_i with the fewest gradients, and
    at least the least K_i of its noise formula.
    """

    name: Literal["localized-accelerated"] = "localized-accelerated"
    rounds_scale: Annotated[Factor, Field(gt=0)] = 1.0
    """Factor on the theorem's R_i, where rounds are left to the theorem."""
    gap: Literal["tight", "paper"] = "tight"
    """Bound Delta_i on the phase's starting gap: tight, by strong convexity; paper: L D."""

    title: ClassVar[str] = "localized ISRL-DP accelerated minibatch SGD"
    source: ClassVar[str] = "Gao, Lowy, Zhou, Wright 2024, Algorithms 1, 2 and 5 (corrected)"

    def plan(self, problem: Problem) -> Plan:
        problem = self.known(problem)
        smoothness, phases = self.beta(problem), []
        for local in localization(problem, self.lam, self.exponent, self.max_phases):
            gap = starting_gap(problem, local.lam, self.gap)
            K = gradient_minimal_batch(problem, local.n) if self.batch == "theory" else self.batch
            rounds = rounds_of(self.rounds, local.index)
            if rounds is None:
                rounds = theory_rounds(problem, local, gap, self.rounds_scale, K)
            if self.batch == "theory" and K is not None:
                K = max(K, least_batch(problem, local.n, rounds))
            phase = make_phase(
                problem, local.index, rounds, shards(problem, local.index), lam=local.lam, radius=local.radius, batch=K
            )
            variance = gradient_variance(problem, phase)
            stages = stage_plan(rounds, smoothness + local.lam, phase.subproblem.mu, gap, variance)
            phases.append(replace(phase, settings=stage_settings(stages, variance, gap)))
        return Plan(problem, tuple(phases), accelerated_complexity(problem))
