"""Phases with gradient and Hessian in one answer every T-th round, and gradients in the others.

Ours. All answers are about all records, so together they are one Gaussian mechanism,
`mu^2 = m_1 (S_1 / sigma)^2 + m_2 (S_2 / sigma)^2`. S_1 is the sensitivity of both parts together
(`fedcore.planning.sensitivity.second_order`), S_2 that of a gradient. Gradients have the same noise in all rounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from fedcore.accounting.composition import spent
from fedcore.accounting.events import GaussianRelease, Mechanism, mean_sensitivity
from fedcore.errors import InputError
from fedcore.planning.aggregated import check_aggregator, noise_as_planned
from fedcore.planning.phase import Phase
from fedcore.planning.phases.assembly import assembled, check_answers
from fedcore.planning.problem import Problem, SiloFacts
from fedcore.planning.questions.question import GradientQuestion, Question, SecondOrderQuestion
from fedcore.planning.schedule import Part, Schedule, Share
from fedcore.planning.sensitivity.second_order import MOST_WEIGHTS, half_diameter, length


@dataclass(frozen=True)
class NewtonRounds:
    """R `rounds`, of which every `period`-th, beginning with the first, is about Hessians too.

    `balance`: of the question of these rounds (`SecondOrderQuestion`).
    """

    rounds: int
    period: int
    balance: float

    @property
    def both(self) -> int:
        """Rounds with Hessians, ceil(R / T)."""
        return -(-self.rounds // self.period)

    def question(self, problem: Problem) -> SecondOrderQuestion:
        """The question of a round with Hessians."""
        return SecondOrderQuestion(clip=half_diameter(problem.objective.clip, self.balance), balance=self.balance)

    def events(self, problem: Problem, n: int, sigma: float) -> list[GaussianRelease]:
        """Privacy events of all rounds at a silo that trains on n records, one for each kind of round."""
        mechanism = problem.budget.mechanism
        kinds: tuple[tuple[Question, int], ...] = (
            (self.question(problem), self.both),
            (GradientQuestion(clip=problem.objective.clip), self.rounds - self.both),
        )
        return [
            GaussianRelease(0, n, _sensitivity(question, n, mechanism), sigma, count, mechanism)
            for question, count in kinds
            if count
        ]


def newton_phase(problem: Problem, newton: NewtonRounds, settings: dict[str, Any]) -> Phase:
    """The one phase of these rounds, calibrated.

    Raises InputError for a period beyond R, noise by a paper's formula, a shuffler, and a target outside the
    calibration's range.
    """
    _check(problem, newton)
    shares = _shares(problem, newton)
    entrusted, schedule, question = problem.trust.aggregator, Schedule(newton.rounds), newton.question(problem)
    if newton.both == newton.rounds:
        return assembled(problem, 1, schedule, shares, settings, question=question, entrusted=entrusted)
    part = Part(1, newton.period, question, tuple(shares), entrusted=entrusted)
    return assembled(problem, 1, schedule, shares, settings, entrusted=entrusted, parts=(part,))


def _sensitivity(question: Question, n: int, mechanism: Mechanism) -> float:
    return mean_sensitivity(question.clip, n, mechanism, question.rounding.slack(n))


def _check(problem: Problem, newton: NewtonRounds) -> None:
    check_answers(newton.rounds, 0)
    if newton.period > newton.rounds:
        raise InputError(f"algorithm.period = {newton.period} must be at most algorithm.rounds = {newton.rounds}")
    dim = problem.objective.dim
    if dim > MOST_WEIGHTS:
        raise InputError(
            f"algorithm.name = noised-newton is for models of at most {MOST_WEIGHTS:,} weights: of {dim:,} a "
            f"silo would send {length(dim):,} numbers; choose dp-fcrn, or a method of first order"
        )
    if problem.trust.shuffle is not None:
        raise InputError(
            "privacy.trust = shuffler has its accounting for gradients, and Hessians are longer messages: choose "
            "inter-silo or central, or a method of minibatch SGD"
        )
    if problem.budget.private and problem.budget.epsilon is not None and problem.budget.calibration != "exact":
        raise InputError(f"privacy.calibration = {problem.budget.calibration}: no paper has this method; choose exact")
    if not 0 < problem.objective.smoothness < math.inf:
        raise InputError(
            f"Hessians are clipped to the loss's smoothness, which is {problem.objective.smoothness:g} here"
        )
    check_aggregator(problem)


def _shares(problem: Problem, newton: NewtonRounds) -> list[Share]:
    sizes: dict[tuple[int, int], float] = {}
    for silo in problem.silos:
        sizes.setdefault((silo.n, silo.trained), _sigma(problem, silo, newton))
    sigmas = noise_as_planned(problem, [sizes[silo.n, silo.trained] for silo in problem.silos])
    return [_share(problem, silo, newton, sigma) for silo, sigma in zip(problem.silos, sigmas, strict=True)]


def _sigma(problem: Problem, silo: SiloFacts, newton: NewtonRounds) -> float:
    """Sigma of one answer, by the sensitivity of all answers together."""
    events = newton.events(problem, silo.trained, 1.0)
    total = math.sqrt(sum(event.count * event.sensitivity**2 for event in events))
    if problem.budget.multiplier is not None:
        return max(event.sensitivity for event in events) * problem.budget.multiplier
    one = replace(events[0], sensitivity=total, count=1)
    return problem.budget.sigma_for(one, silo.n, _no_formula)


def _no_formula() -> Any:
    raise InputError("no paper has noise for answers of gradients and Hessians")


def _share(problem: Problem, silo: SiloFacts, newton: NewtonRounds, sigma: float) -> Share:
    delta, n = problem.budget.delta(silo.n), silo.trained
    return Share(
        silo=silo.name,
        n=n,
        start=0,
        batch=n,
        sigma=sigma,
        epsilon_accounted=spent(newton.events(problem, n, sigma), delta),
        epsilon_paper=math.inf,
        delta=delta,
    )
