"""Phases of DIFF2: rounds that restart with gradients, and rounds about differences of gradients.

Murata and Suzuki 2023, Algorithm 1 and Proposition 4.1 (spec diff2, 3.2, 4 and 8). A silo's noise is on its own mean:
sigma_1 in restart rounds, sigma_2 times the length of the step in others. Both kinds are full batches, so all of them
together are a Gaussian mechanism with `mu^2 = m_1 (S_1 / sigma_1)^2 + m_2 (S_2 / sigma_2)^2`, S the sensitivities. The
split v is the part of mu^2 that goes to restarts. The paper's u is 1 / v.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedcore.accounting.composition import spent
from fedcore.accounting.events import GaussianRelease, mean_sensitivity
from fedcore.accounting.published import claims
from fedcore.accounting.published.claims import Kind, PaperFormula, crossing
from fedcore.accounting.published.papers import published
from fedcore.errors import InputError
from fedcore.planning.aggregated import check_aggregator, mean_noise, noise_as_planned
from fedcore.planning.phase import Phase
from fedcore.planning.phases.assembly import assembled, check_answers
from fedcore.planning.problem import Problem, SiloFacts
from fedcore.planning.questions.question import DifferenceQuestion, GradientQuestion, Question
from fedcore.planning.schedule import Part, Schedule, Share
from fedcore.planning.theorems.cycle import PAPER_SPLIT, Cycle

PAPER = "diff2"


@dataclass(frozen=True)
class Stream:
    """All answers of a silo to one question. `count`: their number."""

    name: str
    question: Question
    count: int

    def event(self, problem: Problem, n: int) -> GaussianRelease:
        mechanism = problem.budget.mechanism
        sensitivity = mean_sensitivity(self.question.clip, n, mechanism, self.question.rounding.slack(n))
        return GaussianRelease(0, n, sensitivity, 0.0, self.count, mechanism)


def difference_phase(problem: Problem, cycle: Cycle, slope: float, settings: dict[str, Any]) -> Phase:
    """The one phase of DIFF2 with the GD routine, calibrated.

    `slope`: C_2, the bound on a record's difference of gradients per unit of the step's length. Raises InputError for
    less than all silos in a round, a shuffler, and a target outside the calibration's range.
    """
    check_problem(problem)
    check_answers(cycle.rounds, 0)
    streams = streams_of(problem, cycle, slope)
    sigmas = {stream.name: _planned(problem, stream, cycle) for stream in streams}
    shares = {stream.name: _shares(problem, streams, sigmas, stream, cycle) for stream in streams}
    entrusted, schedule = problem.trust.aggregator, Schedule(cycle.rounds)
    restarts, *differences = streams
    if not differences:
        return assembled(problem, 1, schedule, shares["restart"], settings, entrusted=entrusted)
    question = differences[0].question
    restart = Part(1, cycle.period, restarts.question, tuple(shares["restart"]), entrusted=entrusted)
    return assembled(
        problem,
        1,
        schedule,
        shares["difference"],
        settings,
        question=question,
        entrusted=entrusted,
        parts=(restart,),
    )


def streams_of(problem: Problem, cycle: Cycle, slope: float) -> tuple[Stream, ...]:
    """The stream of restarts and, if there are any, that of differences."""
    restarts = Stream("restart", GradientQuestion(clip=problem.objective.clip), cycle.restarts)
    if not cycle.differences:
        return (restarts,)
    return restarts, Stream("difference", DifferenceQuestion(clip=slope), cycle.differences)


def check_problem(problem: Problem) -> None:
    """Raises InputError for participation and trust that the running estimate does not allow."""
    if not problem.participation.full:
        raise InputError(
            "DIFF2's running estimate of the gradient is of all silos: participation.silos_per_round = "
            f"{problem.participation.words} of {problem.n_silos} leaves some out; leave it out (null)"
        )
    if problem.trust.shuffle is not None:
        raise InputError(
            "privacy.trust = shuffler has its accounting for rounds of one kind, and DIFF2 has two: choose inter-silo "
            "or central, or a method of minibatch SGD"
        )
    if problem.budget.calibration == "experiments":
        raise InputError("privacy.calibration = experiments is a formula for minibatch SGD: choose exact or paper")
    check_aggregator(problem)


def unit_noise(problem: Problem, slope: float) -> float:
    """Variance of the noise on the mean over all silos of one difference that has the whole budget.

    It is per coordinate, and per squared unit of the step's length. Each of m_2 differences with the part 1 - v of the
    budget has m_2 / (1 - v) times that. Raises InputError where noise is given, which no count of answers changes.
    """
    budget, stream = problem.budget, Stream("difference", DifferenceQuestion(clip=slope), 1)
    if budget.multiplier is not None:
        raise InputError("algorithm.period = null follows from privacy.epsilon: give it with privacy.noise_multiplier")
    cycle = Cycle(2, 2, 0.0)
    return mean_noise(_planned(problem, stream, cycle), problem.weights, problem.trust.aggregator)


def _planned(problem: Problem, stream: Stream, cycle: Cycle) -> list[float]:
    """Sigma at each silo, in the problem's order."""
    found: dict[tuple[int, int], float] = {}  # silos of one size have one calibration
    for silo in problem.silos:
        if (silo.n, silo.trained) not in found:
            found[silo.n, silo.trained] = _sigma(problem, silo, stream, cycle)
    return noise_as_planned(problem, [found[silo.n, silo.trained] for silo in problem.silos])


def _sigma(problem: Problem, silo: SiloFacts, stream: Stream, cycle: Cycle) -> float:
    budget, part = problem.budget, _part_of_budget(stream, cycle)
    event = stream.event(problem, silo.trained)
    sigma = budget.sigma_for(event, silo.n, lambda: _published(problem, silo, stream, cycle))
    found = budget.multiplier is None and (budget.epsilon is None or budget.calibration == "exact")
    return sigma / math.sqrt(part) if found else sigma


def _part_of_budget(stream: Stream, cycle: Cycle) -> float:
    """The stream's part of mu^2: v or 1 - v; all of it where there are no differences."""
    if not cycle.differences:
        return cycle.part
    return cycle.part * (cycle.split if stream.name == "restart" else 1.0 - cycle.split)


def _published(problem: Problem, silo: SiloFacts, stream: Stream, cycle: Cycle) -> PaperFormula:
    """The paper's formula for the noise of one stream; its first kind is that stream.

    For the whole budget it is Proposition 4.1 with u = 1 / v. For a part of the budget it is Proposition E.2, with u_1
    and u_2 for the parts of both streams.
    """
    delta, n = problem.budget.delta(silo.n), silo.trained
    whole = published(
        PAPER, claims.FormulaInputs(n, cycle.rounds, delta, n, stream.question.clip, "full", period=cycle.period)
    )
    kind = next(kind for kind in whole.kinds if kind.name == stream.name)
    paper = 1.0
    if cycle.differences:
        paper = PAPER_SPLIT if stream.name == "restart" else 1.0 - PAPER_SPLIT
    factor = math.sqrt(paper / _part_of_budget(stream, cycle))
    scaled: Callable[[float], float] = lambda epsilon: factor * kind.sigma(epsilon)  # noqa: E731
    first = Kind(kind.name, scaled, kind.event)
    return PaperFormula((first,), lambda sigma: crossing(scaled, sigma), whole.limit, whole.source)


def _shares(
    problem: Problem, streams: Sequence[Stream], sigmas: dict[str, list[float]], stream: Stream, cycle: Cycle
) -> list[Share]:
    """Shares of the silos in this stream, with the epsilons of all streams together."""
    shares: list[Share] = []
    alike: dict[tuple[Any, ...], Share] = {}
    for place, silo in enumerate(problem.silos):
        mine = {each.name: sigmas[each.name][place] for each in streams}
        key = (silo.n, silo.trained, *mine.values())
        if key not in alike:
            delta = problem.budget.delta(silo.n)
            events = [replace(each.event(problem, silo.trained), sigma=mine[each.name]) for each in streams]
            claims = [_published(problem, silo, each, cycle).epsilon(mine[each.name]) for each in streams]
            alike[key] = Share(
                silo=silo.name,
                n=silo.trained,
                start=0,
                batch=silo.trained,
                sigma=mine[stream.name],
                epsilon_accounted=spent(events, delta),
                epsilon_paper=max(claims),
                delta=delta,
            )
        shares.append(replace(alike[key], silo=silo.name))
    return shares
