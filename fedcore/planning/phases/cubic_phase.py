"""Phases of DP-FCRN: in a round a silo gives tau - 1 answers about one model, all of its records in each, or all about
the one record that it drew for the round.

Huo et al., Algorithms 1 and 2 (spec dp-fcrn 5 and 10). Answers of a round about one sample are adaptive, so together
they are at most the Gaussian mechanism of sqrt(tau - 1) times the sensitivity, which is what sampling amplifies: one
event. The paper amplifies each answer by itself, as if it had a record of its own, and claims too little.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from fedcore.accounting.composition import spent
from fedcore.accounting.events import GaussianRelease, Sampling, mean_sensitivity
from fedcore.accounting.published.claims import FormulaInputs, PaperFormula
from fedcore.accounting.published.papers import published
from fedcore.errors import InputError
from fedcore.planning.phase import Phase
from fedcore.planning.phases.assembly import assembled, check_answers
from fedcore.planning.problem import Problem, SiloFacts
from fedcore.planning.questions.question import QuadraticModelQuestion
from fedcore.planning.schedule import Schedule, Share

PAPER = "dp-fcrn"

Drawn = Literal["all", "record"]
"""What the answers of a round are about: all records, or one that is drawn for the round."""


@dataclass(frozen=True)
class CubicRounds:
    """`rounds` R of `answers` each, of `kept` numbers, about parts of records of norm at most `bound`."""

    rounds: int
    answers: int
    kept: int
    bound: float
    drawn: Drawn

    @property
    def question(self) -> QuadraticModelQuestion:
        """What silos answer in each round."""
        return QuadraticModelQuestion(clip=self.bound, numbers=self.kept, one_sample=self.drawn == "record")

    def event(self, problem: Problem, n: int, sigma: float) -> GaussianRelease:
        """Of all answers of a silo that trains on n records."""
        mechanism, count = problem.budget.mechanism, self.rounds * self.answers
        slack = self.question.rounding.slack(n, self.drawn != "all")
        if self.drawn == "all":
            return GaussianRelease(0, n, mean_sensitivity(self.bound, n, mechanism, slack), sigma, count, mechanism)
        together = mean_sensitivity(self.bound, 1, mechanism, slack) * math.sqrt(self.answers)
        return GaussianRelease(
            0, n, together, sigma, self.rounds, mechanism, sampling="without-replacement", rate=1.0 / n
        )

    def published(self, problem: Problem, silo: SiloFacts) -> FormulaInputs:
        """The question to the paper's equation 7. Its bound has k/d in it already."""
        return FormulaInputs(
            silo.trained,
            self.rounds,
            problem.budget.delta(silo.n),
            1,
            self.bound,
            "without-replacement",
            local_steps=self.answers + 1,
        )


def cubic_phase(problem: Problem, asked: CubicRounds, settings: dict[str, Any]) -> Phase:
    """The one phase of these rounds, calibrated. Raises InputError for what is not accounted for, and for a target
    outside the calibration's range."""
    budget = problem.budget
    check_answers(asked.rounds, asked.rounds if asked.drawn == "record" else 0)
    if problem.trust.shuffle is not None or problem.trust.aggregator:
        raise InputError(
            "DP-FCRN's silos answer several times in a round, each noised: choose privacy.trust = inter-silo"
        )
    if budget.calibration == "experiments" or (budget.calibration == "paper" and asked.drawn == "all"):
        raise InputError(
            f"privacy.calibration = {budget.calibration}: the paper's noise is for one record a round; choose exact, "
            "or paper with algorithm.sampling = record"
        )
    alike: dict[tuple[int, int], Share] = {}  # silos of one size have one calibration
    shares = []
    for silo in problem.silos:
        if (silo.n, silo.trained) not in alike:
            alike[silo.n, silo.trained] = _share(problem, silo, asked)
        shares.append(replace(alike[silo.n, silo.trained], silo=silo.name))
    sampling: Sampling = "without-replacement" if asked.drawn == "record" else "poisson"
    schedule = Schedule(asked.rounds, asked.answers, sampling)
    return assembled(problem, 1, schedule, shares, settings, question=asked.question)


def _share(problem: Problem, silo: SiloFacts, asked: CubicRounds) -> Share:
    delta, n = problem.budget.delta(silo.n), silo.trained

    def formula() -> PaperFormula:
        return published(PAPER, asked.published(problem, silo))

    sigma = problem.budget.sigma_for(asked.event(problem, n, 0.0), silo.n, formula)
    claimed = math.inf if asked.drawn == "all" else formula().epsilon(sigma)
    return Share(
        silo=silo.name,
        n=n,
        start=0,
        batch=n if asked.drawn == "all" else 1,
        sigma=sigma,
        epsilon_accounted=spent([asked.event(problem, n, sigma)], delta),
        epsilon_paper=claimed,
        delta=delta,
        rate=1.0 if asked.drawn == "all" else 1.0 / n,
    )
