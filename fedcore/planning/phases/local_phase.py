"""Phases of methods with local steps: K answers per round, each about its own sample of fixed size.

Source: Noble, Bellet and Dieuleveut 2022, Algorithms 1 and 2 (spec dp-scaffold 4.1, 4.2, 5). Noise is for the largest
number of answers that a silo may give, because the guarantee does not rely on how the server draws participants.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

from fedcore.accounting.composition import spent
from fedcore.accounting.events import GaussianRelease, mean_sensitivity
from fedcore.accounting.published.claims import FormulaInputs
from fedcore.accounting.published.epsilons import claims, largest_rounds, monotone_claim
from fedcore.accounting.published.papers import published
from fedcore.accounting.rounding import CENTRED
from fedcore.accounting.rounds_search import most_rounds
from fedcore.directed_rounding import in_full
from fedcore.errors import InputError
from fedcore.planning.phase import Phase
from fedcore.planning.phases.assembly import assembled, check_answers, check_steps
from fedcore.planning.plan import Plan
from fedcore.planning.problem import Problem, SiloFacts
from fedcore.planning.schedule import Schedule, Share

PAPER = "noble-2022-numeric"
"""Formula behind the paper's epsilon: the numerical procedure towards a third party, over all rounds. `monotone_claim`
makes its claim monotone in the sampling rate."""


def local_phases(
    problem: Problem, rounds: int | None, steps: int, sample: float, settings: dict[str, Any], first: int = 0
) -> tuple[Phase, ...]:
    """Calibrated phases with `rounds` rounds in all and `steps` answers in each.

    An answer is about floor(sample * n) of n records. `first` > 0: number of rounds of a first phase, in which each
    silo answers once at most. `rounds` None: the largest number that keeps to privacy.epsilon with
    privacy.noise_multiplier, by the calibration's accountant. Raises InputError naming the key that does not fit.
    """
    if problem.budget.private and problem.budget.calibration == "paper" and not problem.participation.fixed:
        raise InputError(
            "privacy.calibration = paper: the paper's procedure is for a fixed number of silos in a round, not for a "
            "law of it; give participation.silos_per_round a number, or take exact"
        )
    if problem.budget.calibration == "experiments":
        raise InputError(
            "privacy.calibration = experiments is a formula for minibatch SGD, without a proof; for local steps it is "
            "far from its target: choose exact or paper"
        )
    if problem.trust.shuffle is not None:
        raise InputError(
            "privacy.trust = shuffler has its accounting for one answer a round, and local steps make several: choose "
            "a method of minibatch SGD"
        )
    check_steps("algorithm.local_steps", steps)
    pull = problem.objective.ridge + settings.get("prox_weight", 0.0)
    if settings["step"] * pull > 2.0:
        raise InputError(
            f"algorithm.step: local steps of length {settings['step']:g} times {pull:g}, model.ridge and "
            "algorithm.prox_weight together, are more than 2: models would grow with each; choose a smaller step"
        )
    if rounds is None:
        sizes = {(silo.n, silo.held): silo for silo in problem.silos}
        rounds = min(_most_rounds(problem, silo, steps, sample, first) for silo in sizes.values())
    elif problem.budget.epsilon is not None and problem.budget.multiplier is not None:
        raise InputError(
            "privacy.epsilon, privacy.noise_multiplier and algorithm.rounds fix one another: leave one out (null)"
        )
    if rounds <= first:
        raise InputError(
            f"algorithm.rounds = {rounds} must be more than the {first} rounds in which the control variates are "
            "started; choose more rounds, or algorithm.warm = false"
        )
    sampled = any(0 < sample_size(sample, silo.trained) < silo.trained for silo in problem.silos)
    check_answers(rounds, rounds * steps if sampled else 0)
    shares = _shares(problem, rounds, steps, sample, first)
    lengths = [first, rounds - first] if first else [rounds]
    phases = []
    for index, length in enumerate(lengths, 1):
        at_most_once = index < len(lengths)
        mine = tuple(_accounted(share, problem, steps if at_most_once else steps * length) for share in shares)
        schedule = Schedule(length, steps, "without-replacement", at_most_once=at_most_once)
        phases.append(assembled(problem, index, schedule, mine, settings))
    return tuple(phases)


def claimed(problem: Problem, phase: Phase, n: int, rounds: int) -> float:
    """The paper's epsilon for the phase's noise at silos of n records, after this many rounds.

    Infinite where the number of participants is drawn, a case that the paper does not cover.
    """
    share = next(share for share in phase.shares if share.n == n)
    question = _question(problem, n, share.delta, rounds, phase.schedule.answers, share.rate)
    return _claim(problem, question, share.sigma)


def published_claims(plan: Plan) -> dict[str, Any]:
    """`epsilon_papers` of a plan with local steps: the paper's epsilons for its noise, by formula.

    Each is the largest over silos, over all rounds. {} for other plans, without noise, and where the number of
    participants is drawn.
    """
    phase = next(phase for phase in reversed(plan.phases) if not phase.evaluates)
    private, fixed = plan.problem.budget.private, plan.problem.participation.fixed
    if phase.schedule.sampling != "without-replacement" or not (private and fixed):
        return {}
    found: dict[str, float] = {}
    for n, share in {share.n: share for share in phase.shares}.items():
        question = _question(plan.problem, n, share.delta, plan.training_rounds, phase.schedule.answers, share.rate)
        for name, epsilon in claims(PAPER, question, share.sigma).items():
            found[name] = max(epsilon, found.get(name, 0.0))
    return {"epsilon_papers": found}


def sample_size(sample: float, n: int) -> int:
    """b = floor(s n), safe against products that come out a last bit too small (spec dp-scaffold 4.0)."""
    return math.floor(sample * n + 1e-9)


def _shares(problem: Problem, rounds: int, steps: int, sample: float, first: int) -> list[Share]:
    shares: list[Share] = []
    alike: dict[tuple[int, int], Share] = {}  # silos of one size have one calibration
    for silo in problem.silos:
        size, n = (silo.n, silo.held), silo.trained
        if size not in alike:
            event = _event(problem, silo, sample, _answers(rounds, steps, first))
            delta = problem.budget.delta(silo.n)
            question = _question(problem, n, delta, rounds, steps, sample)
            sigma = problem.budget.sigma_for(event, silo.n, partial(published, PAPER, question))
            alike[size] = Share(
                silo=silo.name,
                n=n,
                start=0,
                batch=sample_size(sample, n),
                sigma=sigma,
                epsilon_accounted=math.nan,
                epsilon_paper=_claim(problem, question, sigma),
                delta=delta,
                rate=event.rate,
            )
        shares.append(replace(alike[size], silo=silo.name))
    return shares


def _accounted(share: Share, problem: Problem, answers: int) -> Share:
    event = replace(_event(problem, SiloFacts(share.silo, share.n), share.rate, answers), sigma=share.sigma)
    return replace(share, epsilon_accounted=spent([event], share.delta))


def _event(problem: Problem, silo: SiloFacts, sample: float, answers: int) -> GaussianRelease:
    n = silo.trained
    size = sample_size(sample, n)
    if size < 1:
        raise InputError(
            f"algorithm.sampling_rate = {in_full(sample)} of the {n} {problem.unit} of silo {silo.name} is less than "
            "one; choose more"
        )
    slack = CENTRED.slack(n, size != n)
    sensitivity = mean_sensitivity(problem.objective.clip, size, problem.budget.mechanism, slack)
    return GaussianRelease(
        0,
        n,
        sensitivity,
        0.0,
        answers,
        problem.budget.mechanism,
        sampling="full" if size == n else "without-replacement",
        rate=size / n,
    )


def _question(problem: Problem, n: int, delta: float, rounds: int, steps: int, sample: float) -> FormulaInputs:
    """Inputs of the paper's procedure for a silo that trains on n records, over all rounds of all phases."""
    size = sample_size(sample, n)
    return FormulaInputs(
        n,
        rounds,
        delta,
        size,
        problem.objective.clip,
        "full" if size == n else "without-replacement",
        local_steps=steps,
        silos=problem.n_silos,
        silos_per_round=problem.participation.most,
    )


def _claim(problem: Problem, question: FormulaInputs, sigma: float) -> float:
    # The claim rises and falls with the number of participants, so no single number can stand for a law.
    return monotone_claim(PAPER, question, sigma) if problem.participation.fixed else math.inf


def _answers(rounds: int, steps: int, first: int) -> int:
    """The largest number of a silo's answers: one round of a first phase, and all rounds after it."""
    return steps * (rounds - first + (first > 0))


def _most_rounds(problem: Problem, silo: SiloFacts, steps: int, sample: float, first: int) -> int:
    epsilon, multiplier = problem.budget.epsilon, problem.budget.multiplier
    if epsilon is None or multiplier is None:
        raise InputError(
            "algorithm.rounds = null asks for the largest number of rounds that keeps to privacy.epsilon with "
            "privacy.noise_multiplier: set both, or give a number of rounds"
        )
    event, delta = _event(problem, silo, sample, 1), problem.budget.delta(silo.n)
    event = replace(event, sigma=event.sensitivity * multiplier)

    def keeps(rounds: int) -> bool:
        check_answers(rounds, 0 if event.sampling == "full" else rounds * steps)
        return spent([replace(event, count=_answers(first + rounds, steps, first))], delta) <= epsilon

    if problem.budget.calibration == "paper":
        question = _question(problem, silo.trained, delta, 1, steps, sample)
        found = largest_rounds(PAPER, question, epsilon, event.sigma)[PAPER]
    else:
        found = first + most_rounds(keeps)
    if found <= first:
        raise InputError(
            f"privacy.noise_multiplier = {in_full(multiplier)} is too little noise for a single round at epsilon "
            f"{in_full(epsilon)}"
        )
    return found
