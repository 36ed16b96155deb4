"""Phases of a plan that are about held-out records."""

from __future__ import annotations

import math
from dataclasses import replace

from fedcore.accounting.calibration import Budget
from fedcore.accounting.composition import spent
from fedcore.accounting.events import GaussianRelease, mean_sensitivity
from fedcore.planning.evaluation import HALF_DIAMETER, Evaluation
from fedcore.planning.phase import Phase
from fedcore.planning.phases.assembly import assembled
from fedcore.planning.problem import Problem, SiloFacts
from fedcore.planning.questions.statistics import HistogramQuestion
from fedcore.planning.schedule import Schedule, Share


def evaluation_phase(problem: Problem, evaluation: Evaluation, index: int, times: int) -> Phase:
    """One round about all held-out records, with the noise of an evaluation.

    With that noise `times` such phases meet the evaluation's target. The noise's `target` is that of all of them, the
    share's `epsilon_accounted` its own. No paper prints noise for this answer, so no epsilon is claimed. The
    calibration is exact, whatever training's noise follows. Raises InputError for a target out of range.
    """
    budget = problem.budget.aimed_at(evaluation.epsilon)
    question = HistogramQuestion(clip=HALF_DIAMETER, cells=evaluation.cells)
    alike: dict[tuple[int, int], Share] = {}  # silos of one size have one calibration
    shares = []
    for silo in problem.silos:
        size = silo.n, silo.held
        if size not in alike:
            alike[size] = _share(budget, silo, times, question)
        shares.append(replace(alike[size], silo=silo.name))
    made = assembled(problem, index, Schedule(1), shares, {}, question=question)
    return replace(made, noise=replace(made.noise, target=evaluation.epsilon))


def _share(budget: Budget, silo: SiloFacts, times: int, question: HistogramQuestion) -> Share:
    delta = budget.delta(silo.n)
    slack = question.rounding.slack(silo.held)
    sensitivity = mean_sensitivity(question.clip, silo.held, budget.mechanism, slack)
    sigma = budget.sigma("multi-pass", question.clip, silo.held, times, silo.n, slack=slack)
    event = GaussianRelease(silo.trained, silo.n, sensitivity, sigma, 1, budget.mechanism)
    return Share(
        silo=silo.name,
        n=silo.held,
        start=silo.trained,
        batch=silo.held,
        sigma=sigma,
        epsilon_accounted=spent([event], delta),
        epsilon_paper=math.inf,
        delta=delta,
    )
