"""Numbers that the theorems on noisy minibatch SGD choose: rounds, batches, steps and smoothing.

Source: Lowy and Razaviyayn 2023, Theorems 2.1, 2.2, 2.4 and E.1 in their complete forms, corrected (spec isrl-dp-fl 2,
6.1, 6.2 and 6.5; E3, E9, E12). L is the largest clipping bound times weight of a silo. D is the diameter, and n counts
the records of the smallest silo. The ridge mu makes the objective strongly convex, whatever the loss, since it is added
after smoothing. So the objective is (b + mu)-smooth. The constant mu b / (mu + b), which smoothing leaves of a strongly
convex loss (E25), does not apply.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from fedcore.errors import InputError
from fedcore.planning.batches import Batch, least_records, minibatch_sgd_batch, weighted_clip, whole_batch
from fedcore.planning.phase import Phase
from fedcore.planning.problem import Problem
from fedcore.planning.stages import batch_variance, noise_variance
from fedcore.planning.theorems.noise_level import NoiseLevel, level_of

ROUNDS, BATCH = "algorithm.rounds = null", "algorithm.batch = theory"
STEP, SMOOTHING = "algorithm.step = theory", "model.smoothing.beta = null"
"""Config keys that are left to a theorem, as errors name them."""

MOST_PASSES = 100
"""Passes of the search for a number of rounds; each moves the number by less than the one before."""


@dataclass(frozen=True)
class Rates:
    """The constants of a theorem, and quantities that follow from them for R rounds.

    `beta`, `mu`: of the objective; mu = 0: merely convex. `level`: noise level for R rounds.
    """

    n: int
    dim: int
    lipschitz: float
    diameter: float
    beta: float
    mu: float
    level: Callable[[int], NoiseLevel]

    @classmethod
    def of(cls, problem: Problem, beta: float, mu: float, key: str) -> Rates:
        """The rates of a problem. `key`: the config key that is left to the theorem, for errors."""
        level = partial(level_of, problem, key=key)
        return cls(
            problem.n, problem.objective.dim, weighted_clip(problem), problem.objective.diameter, beta, mu, level
        )

    def noise(self, rounds: int) -> float:
        """d psit: the part of the squared accuracy due to R rounds of noise, (loss per weight)^2."""
        return self.dim * self.level(rounds).psi

    def enough(self, rounds: int) -> float:
        """B = 1/A^2 = min{n, 1/(d xit)}: number of records that R rounds use in all."""
        return min(float(self.n), self.lipschitz**2 / self.noise(rounds))

    def sgd_rounds(self, rounds: int) -> float:
        """First term of R of Theorem 2.1, with the logarithms of `rounds` rounds; may be negative.

        Convex: beta D sqrt(Mt) / (L A). Strongly: (8 beta / mu) ln(beta D^2 mu Mt / (d psit)).
        """
        level = self.level(rounds)
        if self.mu == 0.0:
            return self.beta * self.diameter * math.sqrt(level.participants * self.enough(rounds)) / self.lipschitz
        start = self.beta * self.diameter**2 * self.mu
        return 8.0 * self.beta / self.mu * _log(start * level.participants / self.noise(rounds))

    def sgd_smoothness(self, rounds: int) -> float:
        """b of Theorem 2.2. Convex: (L sqrt(Mt) / D) / A. Strongly: mu Mt / A^2.

        With it `sgd_rounds` are the theorem's: Mt B, and 8 Mt B ln(b D^2 mu Mt / (d psit)).
        """
        participants, enough = self.level(rounds).participants, self.enough(rounds)
        if self.mu == 0.0:
            return self.lipschitz / self.diameter * math.sqrt(participants * enough)
        return self.mu * participants * enough

    def accelerated_rounds(self, rounds: int, gap: float) -> float:
        """The first term of R of Theorem E.1, with the logarithms of `rounds` rounds; `gap`: Delta.

        Convex: sqrt(beta D sqrt(Mt) / sqrt(d psit)). Strongly: sqrt(beta / mu) ln(Delta mu Mt / (d psit)).
        """
        participants, noise = self.level(rounds).participants, self.noise(rounds)
        if self.mu == 0.0:
            return math.sqrt(self.beta * self.diameter * math.sqrt(participants / noise))
        return math.sqrt(self.beta / self.mu) * _log(gap * self.mu * participants / noise)

    def accelerated_smoothness(self, rounds: int) -> float:
        """b of Theorem 2.4. Convex: L^2 sqrt(Mt) / (D sqrt(d psit)). Strongly: mu Mt L^2 / (d psit)."""
        participants, noise = self.level(rounds).participants, self.noise(rounds)
        if self.mu == 0.0:
            return self.lipschitz**2 / self.diameter * math.sqrt(participants / noise)
        return self.mu * participants * self.lipschitz**2 / noise


def least_rounds(wanted: Callable[[int], float], key: str) -> int:
    """The R with R = ceil(wanted(R)), at least 1.

    `wanted` falls slowly as R grows, as logarithms do. 1 is also the theorem's answer where its logarithm is not
    positive: its risk is no less than that of the start. Where rounding leaves no such R, the search alternates between
    two numbers. The larger one is returned, which is at least its own `wanted`. Raises InputError, naming `key`, if the
    numbers are not finite.
    """
    before, rounds = 1, 1
    for _ in range(MOST_PASSES):
        value = wanted(rounds)
        if not value < math.inf:
            raise InputError(f"{key}: the constants give no finite number; give one")
        # Rounding may put a whole number slightly above itself; ceil must not return the next one.
        before, rounds = rounds, math.ceil(max(value * (1.0 - 1e-12), 1.0))
        if rounds == before:
            break
    return max(before, rounds)


def sgd_beta(problem: Problem, method: str) -> float:
    """beta of Algorithm 1 with weights: that of the silo with the largest weight, ridge included.

    Source: spec isrl-dp-fl 6.8. Raises InputError, naming `method`, if the loss is nonsmooth.
    """
    most = max(problem.weights or (1.0,))
    return problem.objective.smoothness_for(method) + (most - 1.0) * problem.objective.smoothness


def sgd_rounds(problem: Problem, beta: float, batch: Batch) -> int:
    """R of Algorithm 1, by Theorem 2.1: the least R >= max{first term, B / K}, with K = n for null.

    theory: R of the first term, which grows by a tenth until the theorem's K for that R (`sgd_batch`) is at most n.
    Raises InputError naming the key that does not fit.
    """
    rates, K = Rates.of(problem, beta, problem.objective.ridge, ROUNDS), _records(problem, batch)
    rounds = least_rounds(lambda R: max(rates.sgd_rounds(R), rates.enough(R) / K), ROUNDS)
    while batch == "theory" and least_records(problem, problem.n, rounds) > problem.n:
        rounds = math.ceil(1.1 * rounds)
    return rounds


def sgd_batch(problem: Problem, rounds: int) -> int:
    """K of Theorem 2.1 for the R of `sgd_rounds`, by the same B. Raises InputError without epsilon."""
    return minibatch_sgd_batch(problem, rounds, Rates.of(problem, 0.0, 0.0, BATCH).enough(rounds))


def sgd_step(problem: Problem, phase: Phase, beta: float) -> float:
    """eta of Theorem 2.1 for the phase's rounds, batches and, if mu > 0, noise.

    Convex: `min{1/(4 beta), D sqrt(Mt) / (L R A)}`. Strongly:
    `min{1/(4 beta), ln(max{2, mu^2 D^2 R^2 / (2 V^2)}) / (mu R)}` with `V^2 = 4 L^2 / (M K) + d sigma^2 / M` (E9). For
    unequal silos V^2 has the exact means of both terms. Units: squared weight per loss.
    """
    R, mu, D = phase.rounds, problem.objective.ridge, problem.objective.diameter
    longest = 1.0 / (4.0 * beta) if beta > 0 else math.inf
    if mu == 0.0:
        rates = Rates.of(problem, beta, mu, STEP)
        return min(longest, D * math.sqrt(rates.level(R).participants * rates.enough(R)) / (rates.lipschitz * R))
    variance = 4.0 * batch_variance(problem, phase, of_all=True) + noise_variance(problem, phase)
    return min(longest, math.log(max(2.0, (mu * D * R) ** 2 / (2.0 * variance))) / (mu * R))


def sgd_envelope(problem: Problem, rounds: int | None, batch: Batch) -> float:
    """b of Theorem 2.2, for the given number of rounds, or the theorem's own.

    Raises InputError without epsilon.
    """
    rates, K = Rates.of(problem, 0.0, problem.objective.ridge, SMOOTHING), _records(problem, batch)

    def wanted(R: int) -> float:
        smoothed = replace(rates, beta=rates.sgd_smoothness(R) + problem.objective.ridge)
        return max(smoothed.sgd_rounds(R), rates.enough(R) / K)

    return rates.sgd_smoothness(least_rounds(wanted, SMOOTHING) if rounds is None else rounds)


def accelerated_rounds(problem: Problem, beta: float, gap: float, strongly: bool, batch: Batch) -> int:
    """R of Algorithm 2 on all records, by Theorem E.1.

    It is the least R >= `max{first term, 1{M K < N n} L^2 / (K d psit)}`. The theorem's Phihat^2 is at most L^2.
    theory: R for all records, with the K of `accelerated_batch`. The variance from a subset of silos is in V^2, hence
    in every step, but in no term of the theorem's R (E5). Raises InputError naming the key that does not fit.
    """
    rates, K = Rates.of(problem, beta, problem.objective.ridge if strongly else 0.0, ROUNDS), _records(problem, batch)
    varies = problem.n > K or not problem.participation.full

    def wanted(rounds: int) -> float:
        sampled = rates.lipschitz**2 / rates.noise(rounds) / K if varies else 0.0
        return max(rates.accelerated_rounds(rounds, gap), sampled)

    return least_rounds(wanted, ROUNDS)


def accelerated_batch(problem: Problem, rounds: int) -> int:
    """K of Algorithm 2 for R rounds: the published noise's least K, or L^2 / (R d psit) if larger.

    With the latter the second term of the theorem's R is at most R. K is at most n, a full batch. Raises InputError
    without epsilon.
    """
    n, noise = problem.n, problem.objective.dim * level_of(problem, rounds, BATCH).psi
    return whole_batch(max(least_records(problem, n, rounds), weighted_clip(problem) ** 2 / noise / rounds), n)


def accelerated_envelope(problem: Problem, rounds: int | None, strongly: bool, gap: float) -> float:
    """b of Theorem 2.4, for the given number of rounds, or the first term of the theorem's own.

    Raises InputError for noise in place of a target.
    """
    rates = Rates.of(problem, 0.0, problem.objective.ridge if strongly else 0.0, SMOOTHING)

    def wanted(R: int) -> float:
        beta = rates.accelerated_smoothness(R) + problem.objective.ridge
        return replace(rates, beta=beta).accelerated_rounds(R, gap)

    return rates.accelerated_smoothness(least_rounds(wanted, SMOOTHING) if rounds is None else rounds)


def _records(problem: Problem, batch: Batch) -> int:
    """K as given, or all records."""
    return min(batch, problem.n) if isinstance(batch, int) else problem.n


def _log(argument: float) -> float:
    return math.log(argument) if argument > 0 else -math.inf
