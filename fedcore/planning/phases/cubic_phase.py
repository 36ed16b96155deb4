"""Phases of DP-FCRN: tau - 1 answers per round about one model.

Each answer is about all of a silo's records, or each about the one record that the silo drew for the round. Huo et al.,
Algorithms 1 and 2 (spec dp-fcrn 5 and 10). Answers of a round about one sample are adaptive. Together they are at most
the Gaussian mechanism of sqrt(tau - 1) times the sensitivity. Sampling amplifies that one event. The paper amplifies
each answer by itself, as if it had a record of its own, and claims too little.
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
"""Records of a round's answers: all, or one that is drawn for the round."""


@dataclass(frozen=True)
class CubicRounds:
    """R `rounds` of `answers` each, of `coordinates` numbers; a record's part has norm at most `bound`."""

    rounds: int
    answers: int
    coordinates: int
    bound: float
    drawn: Drawn

    @property
    def question(self) -> QuadraticModelQuestion:
        """The question of each round."""
        return QuadraticModelQuestion(clip=self.bound, numbers=self.coordinates, one_sample=self.drawn == "record")

    def event(self, problem: Problem, n: int, sigma: float) -> GaussianRelease:
        """Privacy event of all answers of a silo that trains on n records."""
        mechanism, count = problem.budget.mechanism, self.rounds * self.answers
        slack = self.question.rounding.slack(n, self.drawn != "all")
        if self.drawn == "all":
            return GaussianRelease(0, n, mean_sensitivity(self.bound, n, mechanism, slack), sigma, count, mechanism)
        together = mean_sensitivity(self.bound, 1, mechanism, slack) * math.sqrt(self.answers)
        return GaussianRelease(
            0, n, together, sigma, self.rounds, mechanism, sampling="without-replacement", rate=1.0 / n
        )

    def published(self, problem: Problem, silo: SiloFacts) -> FormulaInputs:
        """Inputs of the paper's equation 7. The bound includes the factor k/d already."""
        return FormulaInputs(
            silo.trained,
            self.rounds,
            problem.budget.delta(silo.n),
            1,
            self.bound,
            "without-replacement",
            local_steps=self.answers + 1,
        )


def cubic_phase(problem: Problem, cubic: CubicRounds, settings: dict[str, Any]) -> Phase:
    """The one phase of these rounds, calibrated.

    Raises InputError for settings without an accounting, and for a target outside the calibration's range.
    """
    budget = problem.budget
    check_answers(cubic.rounds, cubic.rounds if cubic.drawn == "record" else 0)
    if problem.trust.shuffle is not None or problem.trust.aggregator:
        raise InputError(
            "DP-FCRN's silos answer several times in a round, each noised: choose privacy.trust = inter-silo"
        )
    if budget.calibration == "experiments" or (budget.calibration == "paper" and cubic.drawn == "all"):
        raise InputError(
            f"privacy.calibration = {budget.calibration}: the paper's noise is for one record a round; choose exact, "
            "or paper with algorithm.sampling = record"
        )
    alike: dict[tuple[int, int], Share] = {}  # silos of one size have one calibration
    shares = []
    for silo in problem.silos:
        if (silo.n, silo.trained) not in alike:
            alike[silo.n, silo.trained] = _share(problem, silo, cubic)
        shares.append(replace(alike[silo.n, silo.trained], silo=silo.name))
    sampling: Sampling = "without-replacement" if cubic.drawn == "record" else "poisson"
    schedule = Schedule(cubic.rounds, cubic.answers, sampling)
    return assembled(problem, 1, schedule, shares, settings, question=cubic.question)


def _share(problem: Problem, silo: SiloFacts, cubic: CubicRounds) -> Share:
    delta, n = problem.budget.delta(silo.n), silo.trained

    def formula() -> PaperFormula:
        return published(PAPER, cubic.published(problem, silo))

    sigma = problem.budget.sigma_for(cubic.event(problem, n, 0.0), silo.n, formula)
    claimed = math.inf if cubic.drawn == "all" else formula().epsilon(sigma)
    return Share(
        silo=silo.name,
        n=n,
        start=0,
        batch=n if cubic.drawn == "all" else 1,
        sigma=sigma,
        epsilon_accounted=spent([cubic.event(problem, n, sigma)], delta),
        epsilon_paper=claimed,
        delta=delta,
        rate=1.0 if cubic.drawn == "all" else 1.0 / n,
    )
