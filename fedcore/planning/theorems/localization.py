"""The localization schedules: shards that halve, regularisation that grows, balls that shrink.

Source: Gao et al. 2024, Algorithm 1 and Theorem 2.1 (spec localized-isrl-dp, section 4). The subgradient method follows
Algorithm 4 and Theorem 3.5 (spec 7.5). Per silo, n and delta are the smallest silo's where silos differ (outside the
paper, spec 13.9).

With a ridge term (outside the paper too) lambda, p and the subgradient method's R_i stay the theorem's, in which L is
the clipping bound. Bounds on the objective include the ridge: L of the balls and of Delta_i is `Problem.lipschitz`, and
the strong convexity is lambda_i + ridge. The smoothness beta grows by ridge.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from fedcore.errors import InputError
from fedcore.planning.problem import Problem, check_shares

LARGEST_WEIGHT = 1e100
"""Largest weight of a phase's regulariser. The theorem's weights grow by at most 2^3 in each of 40 phases. The radius
of the phase's domain, the weight's inverse, then has a square above 0."""


@dataclass(frozen=True)
class LocalPhase:
    """Numbers of phase i: records n_i of the smallest silo, lambda_i, and the ball's radius D_i.

    `D_i = 2 L / lambda_i` as published, which is more than needed. By strong convexity the phase's minimiser is within
    `L / (lambda_i + ridge)` of the centre, where the objective's gradient is at most L.
    """

    index: int
    n: int
    lam: float
    radius: float


Schedule = Literal["theory", "manual"] | None
"""`algorithm.schedule`, the source of a phase's numbers: the theorem alone, the config alone, or (None) both."""


class Scheduled(Protocol):
    """The part of a localized method that `check_schedule` reads."""

    @property
    def schedule(self) -> Schedule: ...


M = TypeVar("M", bound=Scheduled)

_THEOREMS: dict[str, tuple[object, ...]] = {
    "rounds": (None,),
    "lam": (None,),
    "exponent": (None,),
    "max_phases": (None,),
    "batch": (None, "theory"),
    "rounds_scale": (1.0,),
}
"""Hyperparameters that a theorem may choose, with the values that leave them open."""


def check_schedule(method: M) -> M:
    """The localized method itself, for `pydantic.model_validator(mode="after")`.

    Raises ValueError for a number that is given and that `theory` chooses, or missing and that `manual` needs.
    """
    given = [name for name, free in _THEOREMS.items() if getattr(method, name, free[0]) not in free]
    missing = [name for name in ("rounds", "lam") if getattr(method, name) is None]
    if method.schedule == "theory" and given:
        raise ValueError(f"algorithm.schedule = theory takes the theorem's numbers; leave out {', '.join(given)}")
    if method.schedule == "manual" and missing:
        raise ValueError(f"algorithm.schedule = manual needs numbers for {', '.join(missing)}")
    return method


def phase_count(n: int) -> int:
    """tau = floor(log2 n), the number of phases."""
    return n.bit_length() - 1


def growth_exponent(n: int, participants: float) -> float:
    """p = max(log_n(M)/2 + 1, 3), by which lambda grows 2^p fold per phase."""
    return max(0.5 * math.log(participants) / math.log(n) + 1.0, 3.0)


def base_weight(problem: Problem) -> float:
    """lambda = L / (D n sqrt(M)) max(sqrt(n), sqrt(d ln(1/delta)) / epsilon).

    Without noise the maximum is its first term.
    """
    n, epsilon = problem.n, problem.budget.epsilon
    noise = math.sqrt(problem.objective.dim * math.log(1 / problem.delta)) / epsilon if epsilon is not None else 0.0
    return (
        problem.objective.clip
        / (problem.objective.diameter * n * math.sqrt(problem.harmonic_participants))
        * max(math.sqrt(n), noise)
    )


def localization(
    problem: Problem, lam: float | None = None, exponent: float | None = None, max_phases: int | None = None
) -> tuple[LocalPhase, ...]:
    """Phases 1..tau with n_i = floor(n / 2^i), lambda_i = lambda 2^((i-1) p), D_i = 2 L / lambda_i.

    None takes the theorem's choice. Stopping after `max_phases` costs nothing in privacy (spec 13.8).
    """
    n = problem.n
    weight = base_weight(problem) if lam is None else lam
    p = growth_exponent(n, problem.harmonic_participants) if exponent is None else exponent
    count = phase_count(n) if max_phases is None else min(phase_count(n), max_phases)
    check_shares(problem.n_silos, count, "algorithm.max_phases")
    phases = []
    for i in range(1, count + 1):
        _check_growth(weight, (i - 1) * p, i)
        lam_i = weight * 2.0 ** ((i - 1) * p)
        phases.append(LocalPhase(i, n // 2**i, lam_i, 2.0 * problem.objective.lipschitz / lam_i))
    return tuple(phases)


def _check_growth(weight: float, doublings: float, phase: int) -> None:
    """Raises InputError where a weight exceeds `LARGEST_WEIGHT` after this many doublings."""
    if math.log2(weight) + doublings > math.log2(LARGEST_WEIGHT):
        raise InputError(
            f"algorithm.exponent: lambda would be above {LARGEST_WEIGHT:g} in phase {phase}; choose a smaller exponent "
            "or lam, or fewer max_phases"
        )


def subgradient_localization(
    problem: Problem, lam: float | None = None, exponent: float | None = None, max_phases: int | None = None
) -> tuple[LocalPhase, ...]:
    """Phases 1..tau of Algorithm 4, with lambda_i = 1 / (eta_i n_i) and D_i = 2 L / lambda_i.

    eta_i is eta / 2^(i p). `eta = (D sqrt(M) / L) min(1/sqrt(n), epsilon / sqrt(d ln(1/delta)))` equals 1 / (lambda n)
    for the lambda of `base_weight`. So `lam` means the same in both schedules. As published, the first phase has
    2^(p+1) lambda, not lambda (spec Q10). The paper leaves out that n_i is rounded down.
    """
    n = problem.n
    weight = base_weight(problem) if lam is None else lam
    p = growth_exponent(n, problem.harmonic_participants) if exponent is None else exponent
    phases = []
    for local in localization(problem, weight, p, max_phases):
        _check_growth(weight * n / local.n, local.index * p, local.index)
        lam_i = weight * n * 2.0 ** (local.index * p) / local.n
        phases.append(LocalPhase(local.index, local.n, lam_i, 2.0 * problem.objective.lipschitz / lam_i))
    return tuple(phases)


def subgradient_rounds(problem: Problem, phase: LocalPhase) -> int:
    """R_i = floor(min(M n_i, M epsilon^2 n_i^2 / d)) + 1 of Algorithm 4; without noise the first term."""
    M, epsilon = problem.harmonic_participants, problem.budget.epsilon
    rounds = M * phase.n
    if epsilon is not None:
        rounds = min(rounds, M * epsilon**2 * phase.n**2 / problem.objective.dim)
    return math.floor(rounds) + 1


def shards(problem: Problem, index: int) -> dict[str, tuple[int, int]]:
    """Each silo's (start, records) in phase `index`: the next floor(n_l / 2^i) positions of its own split."""
    answer = {}
    for silo in problem.silos:
        start = sum(silo.trained // 2**j for j in range(1, index))
        answer[silo.name] = (start, silo.trained // 2**index)
    return answer


def starting_gap(problem: Problem, lam: float, rule: str) -> float:
    """Delta_i, a bound on the phase objective's gap at its start that depends on no record.

    `paper`: L D. `tight`: `min(L D, L^2 / (2 mu))`, mu = lambda_i + ridge, which is valid too (spec section 4). With a
    gradient of norm at most L the objective falls by at most max_t (L t - mu t^2 / 2).
    """
    whole = problem.objective.lipschitz * problem.objective.diameter
    return (
        whole
        if rule == "paper"
        else min(whole, problem.objective.lipschitz**2 / (2.0 * (lam + problem.objective.ridge)))
    )


def theory_rounds(problem: Problem, phase: LocalPhase, gap: float, scale: float = 1.0, batch: int | None = None) -> int:
    """R_i = max(1, ceil(scale max(accelerated term, subsampling term))), logarithms at least 0.

    The accelerated term is `sqrt((beta + lambda_i)/mu) ln(Delta_i mu M eps^2 n_i^2 / (L^2 d))`, mu = lambda_i + ridge.
    The subsampling term is `eps^2 n_i^2 / (K_i d ln(1/delta))`, where M K_i < N n_i or gradients are at drawn points
    (Algorithm 6), else 0. K_i is `batch` (None: n_i). Without noise (eps infinite) the logarithm is of the statistical
    floor instead, `Delta_i mu M n_i / L^2`, the accuracy that the data allow. Raises InputError for an infinite beta or
    number.
    """
    M, n_i, d, L = problem.harmonic_participants, phase.n, problem.objective.dim, problem.objective.clip
    beta = problem.objective.smoothness_for("the theorem's number of rounds")
    epsilon = problem.budget.epsilon
    mu = phase.lam + problem.objective.ridge
    floor = gap * mu * M / L**2
    argument = floor * n_i if epsilon is None else floor * epsilon**2 * n_i**2 / d
    condition = math.sqrt((beta + phase.lam) / mu)
    rounds = condition * max(math.log(argument), 0.0) if argument > 0 else 0.0
    K_i = n_i if batch is None else min(batch, n_i)
    varies = K_i < n_i or not problem.participation.full or problem.objective.drawn_points
    if varies and epsilon is not None:
        rounds = max(rounds, epsilon**2 * n_i / (d * math.log(1 / problem.delta)) * (n_i / K_i))
    if not scale * rounds < math.inf:
        raise InputError(f"algorithm.rounds: lambda = {phase.lam:g} gives no finite number; choose another lam")
    return max(1, math.ceil(scale * rounds))


def rounds_of(rounds: int | tuple[int, ...] | None, index: int) -> int | None:
    """Rounds of phase `index` (from 1) if given: one number for all, or a list whose last is repeated."""
    if isinstance(rounds, tuple):
        return rounds[min(index, len(rounds)) - 1] if rounds else None
    return rounds
