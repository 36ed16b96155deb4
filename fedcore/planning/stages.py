"""The multi-stage plan of the accelerated solver: stage lengths and prox constants, fixed before the run.

Source: Gao et al. 2024, Algorithm 5, in the corrected form of spec localized-isrl-dp 6.2: the variance V^2 instead of
L^2 in the stage length (Q1), and the product R(R+1)(R+2) in the numerator of upsilon (Q2); the last stage is truncated
to the rounds that are left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedcore.errors import InputError

MOST_STAGES = 2**15
"""Of a phase. Each halves a gap, so a thousand are beyond floating point; without variance they do not grow longer."""


@dataclass(frozen=True)
class Stage:
    rounds: int
    upsilon: float


def gradient_variance(
    dim: int, sigma: float, clip: float, participants: float, n_silos: int, batch: float, records: int,
    drawn_points: bool = False,
) -> float:  # fmt: skip
    """V^2: bound on E |aggregated noisy gradient - true gradient|^2, with M of N silos and K of n records.

    d sigma^2 / M + 1{K < n} L^2 / (M K) + 1{M < N} (L^2 / M)(N - M) / max(N - 1, 1). The second term is there with
    K = n too where gradients are at drawn points: the sum over records of E |Z_j g_j|^2 / K^2 is at most L^2 / K (spec
    7.6). The last term is ours: the paper's bounds omit it although silos differ (Q15).
    """
    within = clip**2 / (participants * batch) if batch < records or drawn_points else 0.0
    between = clip**2 / participants * (n_silos - participants) / max(n_silos - 1, 1)
    return dim * sigma**2 / participants + within + between


def stage_plan(rounds: int, smoothness: float, mu: float, gap: float, variance: float) -> tuple[Stage, ...]:
    """Stages that use exactly `rounds` rounds; `gap` bounds the objective's gap at the start.

    `smoothness` and `mu` are of the regularised objective (beta + lambda_i and lambda_i). Raises InputError unless
    mu > 0 and gap > 0, and for more than `MOST_STAGES`.
    """
    if not (mu > 0 and gap > 0):
        raise InputError(f"algorithm.lam: the strong convexity {mu:g} and the gap {gap:g} must be > 0")
    plan: list[Stage] = []
    left, k = rounds, 1
    while left > 0:
        if len(plan) == MOST_STAGES:
            raise InputError(f"algorithm.rounds: {rounds} rounds make more than {MOST_STAGES} stages; choose fewer")
        # 2^-k falls until the length overflows; from there on the rest of the budget is one stage anyway.
        target = max(gap * 2.0 ** -(k + 1), 1e-300)
        wanted = max(4.0 * math.sqrt(2.0 * smoothness / mu), 128.0 * variance / (3.0 * mu * target))
        run = left if wanted >= left else math.ceil(wanted)
        spread = mu * variance * run * (run + 1) * (run + 2) / (3.0 * max(gap * 2.0 ** -(k - 1), 1e-300))
        plan.append(Stage(run, max(2.0 * smoothness, math.sqrt(spread))))
        left -= run
        k += 1
    return tuple(plan)


def position(stages: tuple[Stage, ...], round: int) -> tuple[Stage, int]:
    """The stage that round (from 1 within the phase) belongs to, and its number r (from 1) within the stage."""
    r = round
    for stage in stages:
        if r <= stage.rounds:
            return stage, r
        r -= stage.rounds
    raise ValueError(f"round {round} is past the {sum(s.rounds for s in stages)} rounds of the stage plan")
