"""Stages of the accelerated solver: lengths, prox constants, and the variance behind them.

Source: Gao et al. 2024, Algorithm 5, in the corrected form of spec localized-isrl-dp 6.2. Two corrections: the stage
length has the variance V^2 instead of L^2 (Q1), and upsilon has R(R+1)(R+2) in the numerator (Q2). The last stage is
truncated to the rounds that are left. Lowy and Razaviyayn 2023 have the same stages (spec isrl-dp-fl 6.4, E11).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedcore.errors import InputError
from fedcore.limits import MOST_STAGES
from fedcore.planning.phase import Phase
from fedcore.planning.problem import Problem


@dataclass(frozen=True)
class Stage:
    rounds: int
    upsilon: float


def gradient_variance(problem: Problem, phase: Phase) -> float:
    """V^2: bound on a round's E |mean message - true gradient|^2, in units of (loss per weight)^2.

    The expectation is over noise, samples and participants. M of N silos take part (M the harmonic mean of their number
    over rounds). Silo i has batch K_i, noise sigma_i and weight c_i (of mean 1). L is the clipping bound, and means are
    over all silos i:

        `d mean(c_i^2 sigma_i^2) / M + mean(1{K_i < n_i} c_i^2 L^2 / K_i) / M`
        `+ mean(c_i^2) (L^2 / M)(N - M) / max(N - 1, 1)`

    The first term is exact, since participants are a uniform subset of their number. The paper has its bound
    `min{Sigma^2 / M', sigma_max^2 / M}`. The second term bounds the variance of a record's gradient by
    `|c_i g|^2 <= c_i^2 L^2`. Two cases include it with K_i = n_i too. At drawn points the sum over records of
    `E |Z_j g_j|^2 / K^2` is at most L^2 / K (spec localized-isrl-dp 7.6). A fresh block per round stands for the
    population. The last term bounds the variance of the silos' gradients. Gao et al. omit it (Q15); Lemma E.5 of Lowy
    and Razaviyayn has it (spec isrl-dp-fl, 4 and E5).
    """
    M, N = problem.harmonic_participants, problem.n_silos
    between = phase.question.clip**2 / M * (N - M) / max(N - 1, 1) * _mean(_squares(problem))
    within = batch_variance(problem, phase, of_all=problem.objective.drawn_points or phase.schedule.fresh_blocks)
    return noise_variance(problem, phase) + within + between


def noise_variance(problem: Problem, phase: Phase) -> float:
    """d mean(c_i^2 sigma_i^2) / M, the first term of `gradient_variance`."""
    noise = [square * share.sigma**2 for square, share in zip(_squares(problem), phase.shares, strict=True)]
    return problem.objective.dim * _mean(noise) / problem.harmonic_participants


def batch_variance(problem: Problem, phase: Phase, of_all: bool) -> float:
    """mean(c_i^2 L^2 / K_i) / M over all silos, the second term of `gradient_variance`.

    A silo with a full batch counts 0, unless `of_all`.
    """
    return _mean(
        [
            square * (phase.question.clip**2 / (problem.harmonic_participants * share.batch))
            if of_all or share.batch < share.n
            else 0.0
            for square, share in zip(_squares(problem), phase.shares, strict=True)
        ]
    )


def _squares(problem: Problem) -> list[float]:
    """c_i^2 of each silo."""
    return [weight**2 for weight in problem.weights or (1.0,) * problem.n_silos]


def _mean(values: Sequence[float]) -> float:
    """Mean of the values; if all are equal, exactly that value, which a sum and a quotient would round."""
    return values[0] if min(values) == max(values) else math.fsum(values) / len(values)


Upsilon = Literal["corrected", "printed"]
"""Rule for the constant of a stage. corrected: R(R+1)(R+2) is a factor under the root; printed: a divisor, as
published, which nearly always leaves the constant at 2 beta."""


def stage_plan(
    rounds: int,
    smoothness: float,
    mu: float,
    gap: float,
    variance: float,
    scale: float = 1.0,
    rule: Upsilon = "corrected",
    key: str = "algorithm.lam",
) -> tuple[Stage, ...]:
    """Stages that use exactly `rounds` rounds; `gap` bounds the objective's gap at the start.

    `smoothness` and `mu` are of the whole objective, regularisers included. `scale`: factor on the variance's part of a
    stage's length, whose constant is about a hundred times what quadratics need (spec isrl-dp-fl 6.4). Raises
    InputError, naming the `key` that mu comes from, unless mu > 0 and gap > 0, and for more than `MOST_STAGES`.
    """
    if not (mu > 0 and gap > 0):
        raise InputError(f"{key}: the strong convexity {mu:g} and the gap {gap:g} must be > 0")
    plan: list[Stage] = []
    left, k = rounds, 1
    while left > 0:
        if len(plan) == MOST_STAGES:
            raise InputError(f"algorithm.rounds: {rounds} rounds make more than {MOST_STAGES} stages; choose fewer")
        # 2^-k falls until the length overflows; from there on the rest of the budget is one stage anyway.
        target = max(gap * 2.0 ** -(k + 1), 1e-300)
        wanted = max(4.0 * math.sqrt(2.0 * smoothness / mu), scale * (128.0 * variance / (3.0 * mu * target)))
        run = left if wanted >= left else math.ceil(wanted)
        most = 3.0 * max(gap * 2.0 ** -(k - 1), 1e-300)
        if rule == "corrected":
            spread = mu * variance * run * (run + 1) * (run + 2) / most
        else:
            spread = mu * variance / (most * run * (run + 1) * (run + 2))
        plan.append(Stage(run, max(2.0 * smoothness, math.sqrt(spread))))
        left -= run
        k += 1
    return tuple(plan)


def single_stage(rounds: int, smoothness: float, distance: float, variance: float) -> Stage:
    """One stage without a regulariser: upsilon = max{2 beta, sqrt(2 V^2 R(R+1)(R+2) / (3 D^2))}.

    It minimises the bound `2 upsilon D^2 / (R(R+1)) + 4 V^2 (R+2) / (3 upsilon)` on the expected gap, D >= |w_0 - w*|
    (`distance`). Source: Lowy and Razaviyayn 2023, Algorithm 2 (spec isrl-dp-fl 6.5, the alternative). Raises
    InputError for a distance so small that upsilon is infinite.
    """
    spread = math.sqrt(2.0 * variance * rounds * (rounds + 1) * (rounds + 2) / 3.0)
    upsilon = max(2.0 * smoothness, spread / distance if distance > 0 else math.inf)
    if not upsilon < math.inf:
        raise InputError(f"model.diameter: within {distance:g} of the start no step is finite; choose a larger one")
    return Stage(rounds, upsilon)


def position(stages: tuple[Stage, ...], round: int) -> tuple[Stage, int]:
    """The stage of a round (from 1 within the phase), and the round's number r (from 1) within the stage."""
    r = round
    for stage in stages:
        if r <= stage.rounds:
            return stage, r
        r -= stage.rounds
    raise ValueError(f"round {round} is past the {sum(s.rounds for s in stages)} rounds of the stage plan")
