"""A phase of a plan: rounds on one piece of every silo's records, with each silo's share and noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from fedcore.accounting.events import GaussianRelease, Mechanism, Sampling, mean_sensitivity
from fedcore.errors import InputError
from fedcore.planning.evaluation import EVALUATION
from fedcore.planning.problem import Problem

MOST_ROUNDS = 10**7
"""Of a phase; so many that no count of rounds or answers overflows."""
MOST_SAMPLED = 2**20
"""Answers of a phase about samples: composing more takes an accountant minutes, and gigabytes."""


@dataclass(frozen=True)
class Share:
    """One silo's part of one phase: which of its positions are used, and with how much noise.

    `n`: records of the piece, at positions [start, start + n) of the silo's split. `batch`: the public number that an
    answer's sum is divided by: n (full batch in every round), the size of a round's fresh block, or the expected number
    of records of a secret sample, rate * n, which need not be whole. `rate`: probability with which a record of the
    piece takes part in an answer, by its own coin; 1: no sampling.
    """

    silo: str
    n: int
    start: int
    batch: float
    sigma: float
    epsilon_accounted: float
    epsilon_paper: float
    delta: float
    rate: float = 1.0


@dataclass(frozen=True)
class Phase:
    """One phase: R rounds on one piece of every silo's records.

    `n`, `batch`: of the smallest silo. `rate`: the largest of any silo's secret samples; 1: none. `sampling`: how they
    are drawn, if they are. `answers`: of a silo in one round, each with its own sample and noise. `at_most_once`: a
    silo that is drawn a second time in the phase is not asked again. `vectors_down`: arrays (d,) that a silo receives
    in a round; it sends one. `lam`: regularisation weight around the phase's centre. `radius`: of the ball around the
    centre. `diameter`: of the domain W. `clip`: bound on one record's gradient. `sigma`: the largest of any silo.
    `settings`: the method's own public numbers (step sizes, stage lengths), none of which bears on privacy. `ridge`:
    the problem's. `answer`: what is asked of silos, by name. `record_bound`: norm to which records are scaled where
    that is moments. `weights`: the problem's. `numbers`: of an answer; None: as many as the model has weights.
    """

    index: int
    rounds: int
    n: int
    batch: float
    lam: float
    radius: float
    diameter: float
    clip: float
    sigma: float
    epsilon_target: float | None
    epsilon_accounted: float
    epsilon_paper: float
    fresh_blocks: bool
    mechanism: Mechanism
    settings: dict[str, Any]
    shares: tuple[Share, ...] = field(repr=False)
    rate: float = 1.0
    ridge: float = 0.0
    sampling: Sampling = "poisson"
    answers: int = 1
    at_most_once: bool = False
    vectors_down: int = 1
    answer: str = "gradient"
    record_bound: float | None = None
    weights: tuple[float, ...] | None = None
    numbers: int | None = None

    @property
    def evaluates(self) -> bool:
        """Whether it asks records that are held out, which takes all silos and moves no model."""
        return self.answer == EVALUATION

    def length(self, problem: Problem) -> int:
        """Numbers of an answer."""
        return problem.dim if self.numbers is None else self.numbers

    @property
    def mu(self) -> float:
        """Strong convexity of the phase's objective over a convex loss: lam + ridge, loss per squared weight."""
        return self.lam + self.ridge

    @cached_property
    def by_silo(self) -> dict[str, Share]:
        return {share.silo: share for share in self.shares}

    def event(self, silo: str, round: int) -> GaussianRelease:
        """What the answers of `silo` in this round (from 1) reveal. Raises KeyError for a silo without a share."""
        share = self.by_silo[silo]
        start, stop = share.start, share.start + share.n
        if self.fresh_blocks:
            block = int(share.batch)
            start += (round - 1) * block
            stop = start + block
        sensitivity = mean_sensitivity(self.clip, share.batch, self.mechanism)
        return GaussianRelease(
            start, stop, sensitivity, share.sigma, self.answers, self.mechanism,
            sampling="full" if share.rate == 1 else self.sampling, rate=share.rate,
        )  # fmt: skip

    def events(self, silo: str) -> list[GaussianRelease]:
        """Events of all rounds of this phase at `silo`, if it is asked as often as it may be."""
        if self.fresh_blocks:
            return [self.event(silo, round) for round in range(1, self.rounds + 1)]
        return [replace(self.event(silo, 1), count=self.most_answers)]

    @property
    def most_answers(self) -> int:
        """The largest number of answers that a silo may be asked for in this phase."""
        return self.answers if self.at_most_once else self.rounds * self.answers

    def turns(self, participants: float) -> float:
        """How often silos are asked in this phase, all together, if so many are expected in a round.

        Expected, where their number is drawn or a second draw of a silo counts for nothing.
        """
        if self.evaluates:
            return self.rounds * len(self.shares)
        if not self.at_most_once:
            return self.rounds * participants
        silos = len(self.shares)
        return silos * (1.0 - (1.0 - participants / silos) ** self.rounds)

    def gradient_evaluations(self, participants: float) -> float:
        """Gradients of records that are computed in this phase, expected."""
        if self.evaluates:
            return 0.0
        records = self.answers * sum(share.batch for share in self.shares)
        if self.at_most_once:
            return records * self.turns(participants) / len(self.shares)
        return self.rounds * records * participants / len(self.shares)


def assembled(
    problem: Problem, index: int, rounds: int, shares: Sequence[Share], settings: dict[str, Any], **more: Any
) -> Phase:
    """The phase of these shares, whose own numbers are those of the smallest silo, or the largest of any.

    `more`: the fields of `Phase` that have no default, or another value than theirs.
    """
    chosen = {"lam": 0.0, "radius": math.inf, "fresh_blocks": False} | more
    return Phase(
        index=index,
        rounds=rounds,
        n=min(share.n for share in shares),
        batch=min(share.batch for share in shares),
        diameter=problem.diameter,
        clip=problem.clip,
        sigma=max(share.sigma for share in shares),
        epsilon_target=problem.budget.epsilon,
        epsilon_accounted=max(share.epsilon_accounted for share in shares),
        epsilon_paper=max(share.epsilon_paper for share in shares),
        mechanism=problem.budget.mechanism,
        settings=settings,
        shares=tuple(shares),
        rate=max(share.rate for share in shares),
        ridge=problem.ridge,
        weights=problem.weights,
        **chosen,
    )


def check_answers(rounds: int, sampled: int) -> None:
    """Raises InputError for more rounds in a phase, or answers about samples, than are planned for."""
    if rounds > MOST_ROUNDS:
        raise InputError(f"algorithm.rounds: a phase has at most {MOST_ROUNDS} rounds; choose fewer")
    if sampled > MOST_SAMPLED:
        raise InputError(
            f"algorithm.rounds: a phase has at most {MOST_SAMPLED} answers about samples of the records; choose fewer "
            "rounds or local steps, or all records in each answer"
        )
