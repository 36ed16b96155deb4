"""A phase of a plan: rounds on one piece of every silo's records, with each silo's share and noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from fedcore.accounting.events import GaussianRelease, Mechanism, Sampling, mean_sensitivity
from fedcore.errors import InputError
from fedcore.planning.aggregated import mean_noise
from fedcore.planning.evaluation import EVALUATION
from fedcore.planning.part import Part, Share, disjoint, totals
from fedcore.planning.problem import Problem
from fedcore.planning.sensitivity.rounding import rounding_of

DIFFERENCE = "gradient-difference"
"""Name of the answer about two models, whose events are in units of the length of the step between these."""


SECOND_ORDER = "gradient-and-hessian"
"""Name of the answer about gradients and Hessians at one model."""

QUADRATIC_MODEL = "gradient-and-hessian-vector"
"""Name of the answer about the gradient of a quadratic model at a displacement."""


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
    `parts`: rounds that ask something else (`at`); all other numbers are those of the rounds that are in none of them,
    but for `rounds` and the epsilons, which are of all. `in_turn`: one silo answers in a round, and the next one in the
    next round. `entrusted`: silos send sums without noise, to which the aggregator that they trust adds it; a share's
    sigma is that noise in units of the silo's own mean. None is no, in both. `vectors_up`: arrays of an answer's length
    that a silo sends in a round; None: one. `balance`: squared ratio of the longest second part of an answer to the
    longest first part, where it has two (`fedcore.planning.sensitivity.second_order`). `one_sample`: the answers of a
    round are about one sample, so they are one event together. None is no.
    Raises InputError for parts that share a round, and for fresh blocks beside parts or samples.
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
    parts: tuple[Part, ...] | None = None
    in_turn: bool | None = None
    entrusted: bool | None = None
    vectors_up: int | None = None
    balance: float | None = None
    one_sample: bool | None = None

    def __post_init__(self) -> None:
        if not disjoint(self.parts or ()):
            raise InputError(f"phase {self.index}: parts of it share a round")
        if self.fresh_blocks and (self.parts or any(share.rate < 1 for share in self.shares)):
            raise InputError(f"phase {self.index}: fresh blocks are asked in all of its rounds, and about no samples")

    def following(self, round: int) -> tuple[int, int]:
        """Phase and round that come after this round of the phase."""
        return (self.index + 1, 1) if round == self.rounds else (self.index, round + 1)

    def at(self, round: int) -> Phase:
        """The phase as it is in this round (from 1): all rounds of one kind, as many as there are of them."""
        return self._kinds[self.kind(round)]

    def kind(self, round: int) -> int:
        """Number of the part that this round is in, from 1; 0: of those in none."""
        return next((number for number, part in enumerate(self.parts or (), 1) if part.has(round)), 0)

    @property
    def first_rounds(self) -> dict[int, int]:
        """By `kind`, of those that there are, the first of its rounds."""
        first = {number: part.first for number, part in enumerate(self.parts or (), 1)}
        if self._kinds[0].rounds:
            first[0] = next(round for round in range(1, self.rounds + 1) if self.kind(round) == 0)
        return {number: round for number, round in sorted(first.items()) if round <= self.rounds}

    @property
    def kinds(self) -> tuple[Phase, ...]:
        """`at`, of each kind of round that there is."""
        return tuple(kind for kind in self._kinds if kind.rounds)

    @cached_property
    def _kinds(self) -> tuple[Phase, ...]:
        if not self.parts:
            return (self,)
        counts = [part.among(self.rounds) for part in self.parts]
        base = replace(self, parts=None, rounds=self.rounds - sum(counts))
        return (base, *(_of_part(base, part, count) for part, count in zip(self.parts, counts, strict=True)))

    @property
    def sigmas(self) -> list[float]:
        """By silo, on its own mean."""
        return [share.sigma for share in self.shares]

    @property
    def mean_noise(self) -> float:
        """Variance per coordinate of the noise on the mean over all silos."""
        return mean_noise(self.sigmas, self.weights, bool(self.entrusted))

    @property
    def evaluates(self) -> bool:
        """Whether it asks records that are held out, which takes all silos and moves no model."""
        return self.answer == EVALUATION

    def length(self, problem: Problem) -> int:
        """Numbers of an answer."""
        return problem.dim if self.numbers is None else self.numbers

    def sent(self, problem: Problem) -> int:
        """Numbers of a silo's message of a round."""
        return self.length(problem) * (self.vectors_up or 1)

    @property
    def mu(self) -> float:
        """Strong convexity of the phase's objective over a convex loss: lam + ridge, loss per squared weight."""
        return self.lam + self.ridge

    @cached_property
    def by_silo(self) -> dict[str, Share]:
        return {share.silo: share for share in self.shares}

    def event(self, silo: str, round: int) -> GaussianRelease:
        """What the answers of `silo` in this round (from 1) reveal. Raises KeyError for a silo without a share."""
        if self.parts:
            return self.at(round).event(silo, round)
        share = self.by_silo[silo]
        start, stop = share.start, share.start + share.n
        if self.fresh_blocks:
            block = int(share.batch)
            start += (round - 1) * block
            stop = start + block
        sampling: Sampling = "full" if share.rate == 1 else self.sampling
        # Who is in no sample stays in its place, so a sum has as many terms as there are positions.
        slack = rounding_of(self.answer, self.balance).slack(stop - start, sampling != "full")
        sensitivity, count = mean_sensitivity(self.clip, share.batch, self.mechanism, slack), self.answers
        if self.one_sample:
            sensitivity, count = sensitivity * math.sqrt(count), 1
        return GaussianRelease(
            start, stop, sensitivity, share.sigma, count, self.mechanism, sampling=sampling, rate=share.rate
        )

    def events(self, silo: str) -> list[GaussianRelease]:
        """Events of all rounds of this phase at `silo`, if it is asked as often as it may be."""
        if self.parts:
            return [event for kind in self.kinds for event in kind.events(silo)]
        if self.fresh_blocks:
            return [self.event(silo, round) for round in range(1, self.rounds + 1)]
        count = self.most_answers if not self.in_turn else self.answers * self.turns_of(silo)
        if self.one_sample:
            count //= self.answers
        return [replace(self.event(silo, 1), count=count)] if count else []

    def charged(self, silo: str) -> list[GaussianRelease]:
        """Events that make of each record what `events` make of it: fresh blocks, one beside the other, as one event.

        A record is in one block, so accounts by position come out as those of all blocks, to the last bit, in a time
        that does not depend on their number.
        """
        if self.parts:
            return [event for kind in self.kinds for event in kind.charged(silo)]
        if self.fresh_blocks and (first := self.event(silo, 1)).sampling == "full":
            return [replace(first, stop=self.event(silo, self.rounds).stop)]
        return self.events(silo)

    @property
    def most_answers(self) -> int:
        """The largest number of answers that a silo may be asked for in this phase."""
        if self.parts:
            return sum(kind.most_answers for kind in self.kinds)
        if self.in_turn:
            return self.answers * math.ceil(self.rounds / len(self.shares))
        return self.answers if self.at_most_once else self.rounds * self.answers

    def whose_turn(self, turn: int) -> str:
        """The silo that answers in the round with this number (from 1) among those in turn: 1 + turn mod N of N.

        Source: Murata and Suzuki 2023, Algorithm 4, p_r (spec diff2, 3.4).
        """
        return self.shares[turn % len(self.shares)].silo

    def turns_of(self, silo: str) -> int:
        """In how many rounds of a phase in turn this silo answers."""
        return turns_of_place([share.silo for share in self.shares].index(silo), len(self.shares), self.rounds)

    def turn(self, round: int) -> int:
        """Number (from 1) of this round of the phase among those of its kind."""
        parts, number = self.parts or (), self.kind(round)
        return parts[number - 1].among(round) if number else round - sum(part.among(round) for part in parts)

    def turns(self, participants: float) -> float:
        """How often silos are asked in this phase, all together, if so many are expected in a round.

        Expected, where their number is drawn or a second draw of a silo counts for nothing.
        """
        if self.parts:
            return sum(kind.turns(participants) for kind in self.kinds)
        if self.in_turn:
            return self.rounds
        if self.evaluates:
            return self.rounds * len(self.shares)
        if not self.at_most_once:
            return self.rounds * participants
        silos = len(self.shares)
        return silos * (1.0 - (1.0 - participants / silos) ** self.rounds)

    def gradient_evaluations(self, participants: float) -> float:
        """Gradients of records that are computed in this phase, expected."""
        if self.parts:
            return sum(kind.gradient_evaluations(participants) for kind in self.kinds)
        if self.evaluates:
            return 0.0
        records = self.answers * self.gradients * sum(share.batch for share in self.shares)
        if self.at_most_once or self.in_turn:
            return records * self.turns(participants) / len(self.shares)
        return self.rounds * records * participants / len(self.shares)

    @property
    def gradients(self) -> int:
        """Gradients of a record that an answer takes: two of a difference."""
        return 2 if self.answer == DIFFERENCE else 1

    def floats(self, participants: float, problem: Problem) -> tuple[float, float]:
        """Numbers that silos send and receive in this phase, expected."""
        if self.parts:
            each = [kind.floats(participants, problem) for kind in self.kinds]
            return sum(up for up, _ in each), sum(down for _, down in each)
        turns = self.turns(participants)
        return turns * self.sent(problem), turns * self.vectors_down * problem.dim


def turns_of_place(place: int, silos: int, rounds: int) -> int:
    """How many of the numbers 1 .. rounds leave this rest when divided by the number of silos (`Phase.whose_turn`)."""
    return 0 if rounds < place else (rounds - place) // silos + (place > 0)


def _of_part(base: Phase, part: Part, rounds: int) -> Phase:
    return replace(base, rounds=rounds, **totals(part.shares), **{name: getattr(part, name) for name in _PART})


_PART = (
    "answer",
    "clip",
    "shares",
    "sampling",
    "answers",
    "vectors_down",
    "vectors_up",
    "in_turn",
    "entrusted",
    "numbers",
    "balance",
)
