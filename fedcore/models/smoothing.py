"""Config section `model.smoothing`: kind, amount, and the smoothed loss of a problem.

Source: Gao et al. 2024, Theorem 3.1 (Moreau, which the paper calls Nesterov smoothing) and Algorithm 6 (convolution);
spec localized-isrl-dp 7.4 and 7.6.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedcore.hyperparameters import DECLARED, Factor
from fedcore.losses.convolution import Convolution
from fedcore.losses.drawn_convolution import DrawnConvolution
from fedcore.losses.moreau import Moreau, Smoothable
from fedcore.planning.problem import Problem
from fedcore.planning.theorems.localization import base_weight

Envelope = Callable[[Problem], float | None]


@dataclass(frozen=True, config=DECLARED)
class MoreauSmoothing:
    """Smoothing by the Moreau envelope.

    `beta`: smoothness constant of the smoothed loss in w, loss per squared weight. None: that of the method's theorem,
    or of Theorem 3.1 where the method has none.
    """

    name: Literal["moreau"] = "moreau"
    beta: Annotated[Factor, Field(gt=0)] | None = None

    def of(self, loss: Smoothable, problem: Problem, record_bound: float, envelope: Envelope | None = None) -> Moreau:
        """The envelope of `loss` for records of norm at most `record_bound`.

        It is beta-smooth in w, with gap L^2 / (2 beta). `envelope`: from a problem to beta by the method's theorem, or
        None.
        """
        beta = self.beta
        if beta is None and envelope is not None:
            beta = envelope(problem)
        return Moreau(loss, (theory_beta(problem) if beta is None else beta) / record_bound**2)


@dataclass(frozen=True, config=DECLARED)
class ConvolutionSmoothing:
    """Smoothing by the mean over a ball around the model.

    `radius`: s of the ball; None: Algorithm 6's. `estimate`: of the gradient. `exact`: in closed form; `sampled`: at a
    random point of the ball for each record and round, as in Algorithm 7.
    """

    name: Literal["convolution"] = "convolution"
    radius: Annotated[Factor, Field(gt=0)] | None = None
    estimate: Literal["exact", "sampled"] = "exact"

    def of(
        self, loss: Smoothable, problem: Problem, record_bound: float, envelope: Envelope | None = None
    ) -> Convolution | DrawnConvolution:
        """Mean of `loss` over the ball for records of norm `record_bound`.

        Its gap is at most L s, and it is L sqrt(d)/s-smooth in w.
        """
        radius = theory_radius(problem) if self.radius is None else self.radius
        if self.estimate == "sampled":
            return DrawnConvolution(loss, radius, record_bound, problem.objective.dim)
        return Convolution(loss, radius * record_bound, problem.objective.dim)


def theory_beta(problem: Problem) -> float:
    """b = (L sqrt(M) / D) min(sqrt(n), epsilon n / sqrt(d ln(1/delta))) of Theorem 3.1.

    Without noise the minimum is sqrt(n). Written as L^2 / (D^2 lambda) with the theorem's lambda: the gap L^2 / (2 b)
    is lambda D^2 / 2, the price of lambda.
    """
    return problem.objective.clip**2 / (problem.objective.diameter**2 * base_weight(problem))


def theory_radius(problem: Problem) -> float:
    """s = (D / sqrt(M)) (1/sqrt(n) + sqrt(d ln(1/delta)) / (epsilon n)) of Algorithm 6.

    Without noise the second factor is 1/sqrt(n).
    """
    n, epsilon = problem.n, problem.budget.epsilon
    noise = (
        math.sqrt(problem.objective.dim * math.log(1 / problem.delta)) / (epsilon * n) if epsilon is not None else 0.0
    )
    return problem.objective.diameter / math.sqrt(problem.harmonic_participants) * (1.0 / math.sqrt(n) + noise)
