"""Phases without local steps: one answer per round, about all of a shard, a sample or a fresh block."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from fedcore.accounting.calibration import Passes, paper_formula
from fedcore.accounting.composition import spent
from fedcore.accounting.events import GaussianRelease, Sampling, mean_sensitivity
from fedcore.errors import InputError
from fedcore.limits import MOST_ADDED_BLOCKS, MOST_BLOCKS
from fedcore.planning.aggregated import check_aggregator, noise_as_planned
from fedcore.planning.phase import Phase
from fedcore.planning.phases.assembly import assembled, check_answers
from fedcore.planning.problem import Problem
from fedcore.planning.questions.question import GradientQuestion, Question
from fedcore.planning.schedule import Schedule, Share


def make_phase(
    problem: Problem,
    index: int,
    rounds: int,
    shards: dict[str, tuple[int, int]],
    *,
    lam: float = 0.0,
    radius: float = math.inf,
    blocks: int | None = None,
    batch: int | None = None,
    settings: dict[str, Any] | None = None,
    question: Question | None = None,
) -> Phase:
    """A calibrated phase without local steps.

    `shards`: each silo's (start, records). `blocks`: number of fresh blocks, of n // blocks records; None: none.
    `batch`: expected number of records of an answer about the smallest shard. Records enter by secret Poisson samples,
    with the same rate at all silos. None, or all of that shard: full batches. `question`: None for gradients. Raises
    InputError if a silo has no record for the phase, or the calibration does not reach the target's range. Raises
    ValueError for a batch below 1, or with blocks.
    """
    if batch is not None and (batch < 1 or blocks is not None):
        raise ValueError(f"batch = {batch} must be at least 1, and is for phases without fresh blocks")
    budget, passes = problem.budget, _passes(blocks)
    question = GradientQuestion(clip=problem.objective.clip) if question is None else question
    smallest = min(n for _, n in shards.values())
    check_answers(rounds, rounds if batch is not None and batch < smallest else 0)
    if blocks is not None and blocks * len(shards) > MOST_BLOCKS:
        raise InputError(
            f"algorithm.rounds = {blocks}: fresh blocks at each of {len(shards)} silos are more than {MOST_BLOCKS} in "
            "all; choose fewer rounds"
        )
    if blocks is not None and problem.budget.whole_silo is not None and blocks > MOST_ADDED_BLOCKS:
        raise InputError(
            f"algorithm.rounds = {blocks}: with privacy.whole_silo the fresh blocks of a silo add, one by one, and are "
            f"at most {MOST_ADDED_BLOCKS}; choose fewer rounds"
        )
    expected = batch if batch is not None and batch < smallest else None
    if expected is not None and problem.trust.shuffle is not None:
        raise InputError(
            f"privacy.trust = shuffler has its accounting for full batches only, and algorithm.batch = {batch} is a "
            f"sample of {smallest} {problem.unit}: choose null"
        )
    check_aggregator(problem)
    rate = 1.0 if expected is None else expected / smallest
    rounding, uses = question.rounding, list[float]()
    found: dict[tuple[float, int, int], float] = {}  # silos of one size have one calibration
    for silo in problem.silos:
        _, n = shards[silo.name]
        used: float = n if blocks is None else n // blocks
        if expected is not None:
            used = expected * n // smallest if expected * n % smallest == 0 else expected * n / smallest
        if used < 1:
            raise InputError(
                f"silo {silo.name}: {silo.trained} {problem.unit} are fewer than phase {index} needs; lower "
                + ("algorithm.rounds" if blocks else "algorithm.max_phases")
            )
        uses.append(used)
        if (used, n, silo.n) not in found:
            messages = None if problem.trust.shuffle is None else problem.trust.shuffle.minimum
            slack = rounding.slack(n if blocks is None else int(used), expected is not None)
            sigma = budget.sigma(passes, question.clip, used, rounds, silo.n, n, rate, messages, slack)
            found[used, n, silo.n] = sigma
    needed = [found[used, shards[silo.name][1], silo.n] for used, silo in zip(uses, problem.silos, strict=True)]
    shares: list[Share] = []
    alike: dict[tuple[float, int, int, float], Share] = {}
    for silo, used, sigma in zip(problem.silos, uses, noise_as_planned(problem, needed), strict=True):
        start, n = shards[silo.name]
        if (used, n, silo.n, sigma) in alike:
            shares.append(replace(alike[used, n, silo.n, sigma], silo=silo.name, start=start))
            continue
        slack = rounding.slack(n if blocks is None else int(used), expected is not None)
        sensitivity = mean_sensitivity(question.clip, used, budget.mechanism, slack)
        answers = rounds if blocks is None else 1
        sampling: Sampling = "full" if expected is None else "poisson"
        release = GaussianRelease(0, n, sensitivity, sigma, answers, budget.mechanism, sampling=sampling, rate=rate)
        delta = budget.delta(silo.n)
        formula = paper_formula(passes, question.clip, used, rounds, delta, n)
        shares.append(
            Share(
                silo=silo.name,
                n=n,
                start=start,
                batch=used,
                sigma=sigma,
                epsilon_accounted=spent([release], delta),
                epsilon_paper=formula.epsilon(sigma),
                delta=delta,
                rate=rate,
            )
        )
        alike[used, n, silo.n, sigma] = shares[-1]
    return assembled(
        problem,
        index,
        Schedule(rounds, fresh_blocks=blocks is not None),
        shares,
        settings or {},
        question=question,
        lam=lam,
        radius=radius,
        entrusted=problem.trust.aggregator,
    )


def check_blocks(problem: Problem, rounds: int) -> None:
    """Raises InputError for a silo with fewer records than rounds, each of which takes a fresh block."""
    for silo in problem.silos:
        if silo.trained < rounds:
            raise InputError(
                f"silo {silo.name}: {silo.trained} {problem.unit} cannot feed algorithm.rounds = {rounds} "
                f"rounds of fresh blocks; lower algorithm.rounds to at most {problem.n}"
            )


def _passes(blocks: int | None) -> Passes:
    return "multi-pass" if blocks is None else "one-pass"
