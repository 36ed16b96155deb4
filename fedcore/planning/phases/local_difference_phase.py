"""The phase of DIFF2 with local steps: after each round of all silos, one takes K - 1 steps.

Murata and Suzuki 2023, Algorithms 1 and 4 and Proposition E.2 (spec diff2, 3.4 and 4.2). The accounting counts the
`K - 1` local answers that there are (E2), where the paper counts K. A silo's local answers are about samples without
replacement. The silo adds their noise itself, also where an aggregator is trusted.

Three streams share its budget. Restarts and differences together have the part f of the mu squared that
`difference_phase` gives them, with the same split v. The noise of local steps is the least with which all streams
together meet the target.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedcore.accounting.composition import spent
from fedcore.accounting.events import GaussianRelease, gaussian_delta, mean_sensitivity
from fedcore.accounting.gaussian import mu_of
from fedcore.accounting.noise_search import least_short_noise
from fedcore.accounting.published.claims import FormulaInputs, Kind, PaperFormula, crossing
from fedcore.accounting.published.papers import published
from fedcore.errors import InputError
from fedcore.limits import MOST_STEPS
from fedcore.planning.phase import Phase
from fedcore.planning.phases.assembly import check_answers
from fedcore.planning.phases.difference_phase import difference_phase
from fedcore.planning.problem import Problem, SiloFacts
from fedcore.planning.questions.question import DifferenceQuestion
from fedcore.planning.schedule import Part, Share, turns_of_place, weighted
from fedcore.planning.theorems.cycle import Cycle

PAPER = "diff2-bvr"
PAPER_PART = 2.0 / 3.0
"""1/u_1 + 1/u_2 of the closed form, u_1 = u_2 = 3: the part of restarts and differences, half for each."""


@dataclass(frozen=True)
class LocalSteps:
    """Local steps of one round.

    `steps`: K, the first of them the server's. `batch`: b records of each other step. `slope`: C_3.
    """

    steps: int
    batch: int
    slope: float

    @property
    def answers(self) -> int:
        """Answers of the acting silo in one round."""
        return self.steps - 1

    @property
    def question(self) -> DifferenceQuestion:
        """The question to the acting silo in its turn."""
        return DifferenceQuestion(clip=self.slope, vectors_down=3, vectors_up=2)

    def event(self, problem: Problem, n: int, count: int) -> GaussianRelease:
        mechanism = problem.budget.mechanism
        whole = self.batch == n
        slack = self.question.rounding.slack(n, not whole)
        sensitivity = mean_sensitivity(self.slope, self.batch, mechanism, slack)
        return GaussianRelease(
            0,
            n,
            sensitivity,
            0.0,
            count,
            mechanism,
            sampling="full" if whole else "without-replacement",
            rate=self.batch / n,
        )


def local_difference_phase(
    problem: Problem, cycle: Cycle, slope: float, local: LocalSteps, settings: dict[str, Any]
) -> Phase:
    """One phase of 2 R rounds: odd ones of all silos, even ones of one silo in turn.

    Odd rounds are as in `difference_phase`. `cycle.part`: f. Raises InputError as `difference_phase`, for a batch above
    a silo's records, and where the paper's formula has no noise for it.
    """
    _check(problem, local, settings["step"])
    whole = difference_phase(problem, cycle, slope, settings)
    check_answers(2 * cycle.rounds, local.answers * math.ceil(cycle.rounds / problem.n_silos))
    shares = _local_shares(problem, whole, cycle, local)
    mine = weighted(problem, shares)
    steps = Part(2, 2, local.question, mine, local.answers, "without-replacement", in_turn=True)
    others = tuple(
        replace(part, every=2 * part.every, shares=_with_all_epsilons(part.shares, shares)) for part in whole.parts
    )
    schedule = replace(whole.schedule, rounds=2 * cycle.rounds)
    return replace(whole, schedule=schedule, shares=_with_all_epsilons(whole.shares, shares), parts=(*others, steps))


def _check(problem: Problem, local: LocalSteps, step: float) -> None:
    if not 2 <= local.steps <= MOST_STEPS:
        raise InputError(
            f"algorithm.local_steps = {local.steps} must be from 2 to {MOST_STEPS}: with 1 this is diff2, without any"
        )
    if problem.budget.whole_silo is not None:
        raise InputError("privacy.whole_silo has no noise for the local steps of DIFF2: leave it out, or choose diff2")
    if problem.objective.ridge * step > 2.0:
        raise InputError(
            f"algorithm.step: local steps of length {step:g} times model.ridge = {problem.objective.ridge:g} are more "
            "than 2: models would grow with each; choose a smaller step"
        )
    for silo in problem.silos:
        if local.batch > silo.trained:
            raise InputError(
                f"algorithm.batch = {local.batch} is more than the {silo.trained} {problem.unit} of silo {silo.name}"
            )


def _local_shares(problem: Problem, whole: Phase, cycle: Cycle, local: LocalSteps) -> list[Share]:
    """Shares of the silos in the local steps, with the epsilons of all streams together."""
    shares: list[Share] = []
    alike: dict[tuple[Any, ...], Share] = {}  # silos of one size have one calibration
    for place, silo in enumerate(problem.silos):
        turns = turns_of_place(place, problem.n_silos, cycle.rounds)
        full = [replace(event, start=0, stop=silo.trained) for event in whole.events(silo.name)]
        key = (silo.n, silo.trained, turns, *(event.sigma for event in full))
        if key not in alike:
            # A silo without a turn in these rounds is calibrated for one turn, and charged for none.
            event = local.event(problem, silo.trained, local.answers * max(turns, 1))
            delta = problem.budget.delta(silo.n)
            sigma = _sigma(problem, silo, full, event, cycle, local)
            claimed = _published(problem, silo, cycle, local).epsilon(sigma)
            alike[key] = Share(
                silo=silo.name,
                n=silo.trained,
                start=0,
                batch=local.batch,
                sigma=sigma,
                epsilon_accounted=spent([*full, replace(event, sigma=sigma)] if turns else full, delta),
                epsilon_paper=max(claimed, whole.by_silo[silo.name].epsilon_paper),
                delta=delta,
                rate=event.rate,
            )
        shares.append(replace(alike[key], silo=silo.name))
    return shares


def _sigma(
    problem: Problem,
    silo: SiloFacts,
    full: Sequence[GaussianRelease],
    event: GaussianRelease,
    cycle: Cycle,
    local: LocalSteps,
) -> float:
    budget = problem.budget
    if budget.multiplier is not None or budget.epsilon is None or budget.calibration != "exact":
        return budget.sigma_for(event, silo.n, lambda: _published(problem, silo, cycle, local))
    epsilon, delta = budget.epsilon, budget.delta(silo.n)

    def accounted(multiplier: float) -> float:
        return spent([*full, replace(event, sigma=multiplier * event.sensitivity)], delta)

    mu = mu_of(epsilon, gaussian_delta(delta, budget.mechanism))
    enough = math.sqrt(event.count / (1.0 - cycle.part)) / mu
    question = {
        "full": [[each.count, each.sigma / each.sensitivity] for each in full],
        "sampling": event.sampling,
        "rate": event.rate,
        "rounds": event.count,
        "epsilon": epsilon,
        "delta": delta,
    }
    return event.sensitivity * least_short_noise(accounted, enough, epsilon, question)


def _published(problem: Problem, silo: SiloFacts, cycle: Cycle, local: LocalSteps) -> PaperFormula:
    """Proposition E.2 for the local steps, as a formula whose first kind they are."""
    delta, n = problem.budget.delta(silo.n), silo.trained
    question = FormulaInputs(
        n,
        cycle.rounds,
        delta,
        local.batch,
        local.slope,
        "without-replacement",
        local_steps=local.steps,
        period=cycle.period,
        silos=problem.n_silos,
    )
    found = published(PAPER, question)
    kind: Kind = next(kind for kind in found.kinds if kind.name == "local")
    return replace(found, kinds=(kind,), claim=lambda sigma: crossing(kind.sigma, sigma))


def _with_all_epsilons(shares: Sequence[Share], local: Sequence[Share]) -> tuple[Share, ...]:
    """Shares of another stream, with the epsilons that the shares of the local steps hold for all streams."""
    return tuple(
        replace(share, epsilon_accounted=other.epsilon_accounted, epsilon_paper=other.epsilon_paper)
        for share, other in zip(shares, local, strict=True)
    )
