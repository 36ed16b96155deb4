"""A phase of a plan: a question, a schedule of rounds, and each silo's share of records and noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from fedcore.accounting.events import GaussianRelease, Mechanism, Sampling, mean_sensitivity
from fedcore.errors import InputError
from fedcore.planning.aggregated import mean_noise
from fedcore.planning.evaluation import EVALUATION
from fedcore.planning.questions import AnyQuestion
from fedcore.planning.schedule import Part, Schedule, Share, disjoint, turns_of_place, unweighted


@dataclass(frozen=True)
class Noise:
    """The noise of a phase.

    `target`: the epsilon that it was calibrated for; None: noise was given. `entrusted`: silos send sums without noise,
    and the aggregator that they trust adds it. A share's sigma is that noise in units of the silo's own mean.
    """

    mechanism: Mechanism
    target: float | None
    entrusted: bool = False


@dataclass(frozen=True)
class Subproblem:
    """The terms and the domain of a phase's objective beside the loss.

    `diameter`: of the domain W. `ridge`: the problem's. `lam`: weight of the regulariser around the phase's centre.
    `radius`: of the ball around that centre.
    """

    diameter: float
    ridge: float = 0.0
    lam: float = 0.0
    radius: float = math.inf

    @property
    def mu(self) -> float:
        """Strong convexity of the phase's objective over a convex loss: lam + ridge, loss per squared weight."""
        return self.lam + self.ridge


@dataclass(frozen=True)
class Phase:
    """One phase: rounds with one question to silos, each about its own share of records.

    `parts`: rounds of other kinds (`at`). Question, schedule, shares and noise describe the ordinary rounds, which are
    in no part; only `schedule.rounds` and the epsilons of shares cover every round. `settings`: the method's own public
    numbers (step sizes, stage lengths), none of which bears on privacy. Raises InputError for parts that share a round,
    and for fresh blocks beside parts or samples.
    """

    index: int
    question: AnyQuestion
    schedule: Schedule
    shares: tuple[Share, ...] = field(repr=False)
    noise: Noise
    subproblem: Subproblem
    settings: dict[str, Any]
    parts: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        if not disjoint(self.parts):
            raise InputError(f"phase {self.index}: parts of it share a round")
        if self.schedule.fresh_blocks and (self.parts or any(share.rate < 1 for share in self.shares)):
            raise InputError(f"phase {self.index}: fresh blocks are asked in all of its rounds, and about no samples")

    @property
    def rounds(self) -> int:
        return self.schedule.rounds

    def following(self, round: int) -> tuple[int, int]:
        """Phase and round after this round of the phase."""
        return (self.index + 1, 1) if round == self.rounds else (self.index, round + 1)

    def at(self, round: int) -> Phase:
        """The phase reduced to the rounds of the same kind as this round (from 1)."""
        return self._kinds[self.kind(round)]

    def kind(self, round: int) -> int:
        """Number of the part that this round is in, from 1; 0 for a round in no part."""
        return next((number for number, part in enumerate(self.parts, 1) if part.has(round)), 0)

    @property
    def first_rounds(self) -> dict[int, int]:
        """First round of each kind that occurs, by the number of its `kind`."""
        first = {number: part.first for number, part in enumerate(self.parts, 1)}
        if self._kinds[0].rounds:
            first[0] = next(round for round in range(1, self.rounds + 1) if self.kind(round) == 0)
        return {number: round for number, round in sorted(first.items()) if round <= self.rounds}

    @property
    def kinds(self) -> tuple[Phase, ...]:
        """The phase reduced to each kind of round that occurs, as by `at`."""
        return tuple(kind for kind in self._kinds if kind.rounds)

    @cached_property
    def _kinds(self) -> tuple[Phase, ...]:
        if not self.parts:
            return (self,)
        counts = [part.among(self.rounds) for part in self.parts]
        base = replace(self, parts=(), schedule=replace(self.schedule, rounds=self.rounds - sum(counts)))
        return (base, *(_of_part(base, part, count) for part, count in zip(self.parts, counts, strict=True)))

    @cached_property
    def n(self) -> int:
        """Records of the smallest share."""
        return min(share.n for share in self.shares)

    @cached_property
    def batch(self) -> float:
        """The smallest batch of any silo."""
        return min(share.batch for share in self.shares)

    @cached_property
    def sigma(self) -> float:
        """The largest sigma of any silo."""
        return max(share.sigma for share in self.shares)

    @cached_property
    def rate(self) -> float:
        """The largest rate of any silo's secret samples; 1: there are no samples."""
        return max(share.rate for share in self.shares)

    @cached_property
    def epsilon_accounted(self) -> float:
        """The largest accounted epsilon of any silo."""
        return max(share.epsilon_accounted for share in self.shares)

    @cached_property
    def epsilon_paper(self) -> float:
        """The largest epsilon that a paper's formula claims for any silo."""
        return max(share.epsilon_paper for share in self.shares)

    @cached_property
    def weights(self) -> tuple[float, ...] | None:
        """Weights of the silos, in their order; None: all are 1."""
        found = tuple(share.weight for share in self.shares)
        return None if all(weight == 1.0 for weight in found) else found

    @cached_property
    def unweighted(self) -> Phase:
        """The phase with weights 1, for a method that receives a mean with the silos' weights already in it."""
        parts = tuple(replace(part, shares=unweighted(part.shares)) for part in self.parts)
        return replace(self, shares=unweighted(self.shares), parts=parts)

    @property
    def sigmas(self) -> list[float]:
        """Sigma of each silo, on its own mean."""
        return [share.sigma for share in self.shares]

    @property
    def mean_noise(self) -> float:
        """Variance per coordinate of the noise on the mean over all silos."""
        return mean_noise(self.sigmas, self.weights, self.noise.entrusted)

    @property
    def evaluates(self) -> bool:
        """True if the phase is about held-out records; it then takes all silos and moves no model."""
        return self.question.kind == EVALUATION

    @cached_property
    def by_silo(self) -> dict[str, Share]:
        return {share.silo: share for share in self.shares}

    def event(self, silo: str, round: int) -> GaussianRelease:
        """Privacy event of `silo` in this round (from 1). Raises KeyError for a silo without a share."""
        if self.parts:
            return self.at(round).event(silo, round)
        share, schedule, mechanism = self.by_silo[silo], self.schedule, self.noise.mechanism
        start, stop = share.start, share.start + share.n
        if schedule.fresh_blocks:
            block = int(share.batch)
            start += (round - 1) * block
            stop = start + block
        sampling: Sampling = "full" if share.rate == 1 else schedule.sampling
        # A record outside the sample stays in its place, so a sum has as many terms as there are positions.
        slack = self.question.rounding.slack(stop - start, sampling != "full")
        sensitivity, count = mean_sensitivity(self.question.clip, share.batch, mechanism, slack), schedule.answers
        if self.question.one_sample:
            sensitivity, count = sensitivity * math.sqrt(count), 1
        return GaussianRelease(
            start, stop, sensitivity, share.sigma, count, mechanism, sampling=sampling, rate=share.rate
        )

    def events(self, silo: str) -> list[GaussianRelease]:
        """Events of all rounds of this phase at `silo`, if it answers as often as it may."""
        if self.parts:
            return [event for kind in self.kinds for event in kind.events(silo)]
        if self.schedule.fresh_blocks:
            return [self.event(silo, round) for round in range(1, self.rounds + 1)]
        count = self.most_answers if not self.schedule.in_turn else self.schedule.answers * self.turns_of(silo)
        if self.question.one_sample:
            count //= self.schedule.answers
        return [replace(self.event(silo, 1), count=count)] if count else []

    def charged(self, silo: str) -> list[GaussianRelease]:
        """Events that cost each record as much as `events`, with the fresh blocks as one event.

        A record is in one block, so accounts by position equal those of all blocks to the last bit. The time does not
        depend on the number of blocks.
        """
        if self.parts:
            return [event for kind in self.kinds for event in kind.charged(silo)]
        if self.schedule.fresh_blocks and (first := self.event(silo, 1)).sampling == "full":
            return [replace(first, stop=self.event(silo, self.rounds).stop)]
        return self.events(silo)

    @property
    def most_answers(self) -> int:
        """The largest number of answers that a silo may give in this phase."""
        if self.parts:
            return sum(kind.most_answers for kind in self.kinds)
        answers = self.schedule.answers
        if self.schedule.in_turn:
            return answers * math.ceil(self.rounds / len(self.shares))
        return answers if self.schedule.at_most_once else self.rounds * answers

    def whose_turn(self, turn: int) -> str:
        """Name of the silo that answers in a round in turn: 1 + turn mod N of N.

        `turn`: the round's number (from 1) among the rounds in turn. Source: Murata and Suzuki 2023, Algorithm 4, p_r
        (spec diff2, 3.4).
        """
        return self.shares[turn % len(self.shares)].silo

    def turns_of(self, silo: str) -> int:
        """Number of rounds of a phase in turn in which this silo answers."""
        return turns_of_place([share.silo for share in self.shares].index(silo), len(self.shares), self.rounds)

    def turn(self, round: int) -> int:
        """Number (from 1) of this round of the phase among those of its kind."""
        parts, number = self.parts, self.kind(round)
        return parts[number - 1].among(round) if number else round - sum(part.among(round) for part in parts)

    def turns(self, participants: float) -> float:
        """Expected requests to silos; a second draw in a phase with `at_most_once` is none."""
        if self.parts:
            return sum(kind.turns(participants) for kind in self.kinds)
        if self.schedule.in_turn:
            return self.rounds
        if self.evaluates:
            return self.rounds * len(self.shares)
        if not self.schedule.at_most_once:
            return self.rounds * participants
        silos = len(self.shares)
        return silos * (1.0 - (1.0 - participants / silos) ** self.rounds)

    def gradient_evaluations(self, participants: float) -> float:
        """Expected number of gradients of records that silos compute in this phase."""
        if self.parts:
            return sum(kind.gradient_evaluations(participants) for kind in self.kinds)
        if self.evaluates:
            return 0.0
        schedule = self.schedule
        records = schedule.answers * self.question.gradients * sum(share.batch for share in self.shares)
        if schedule.at_most_once or schedule.in_turn:
            return records * self.turns(participants) / len(self.shares)
        return self.rounds * records * participants / len(self.shares)

    def floats(self, participants: float, dim: int) -> tuple[float, float]:
        """Expected numbers that silos send and receive in this phase, for models of `dim` weights."""
        if self.parts:
            each = [kind.floats(participants, dim) for kind in self.kinds]
            return sum(up for up, _ in each), sum(down for _, down in each)
        turns = self.turns(participants)
        return turns * self.question.sent(dim), turns * self.question.vectors_down * dim


def _of_part(base: Phase, part: Part, rounds: int) -> Phase:
    schedule = replace(base.schedule, rounds=rounds, answers=part.answers, sampling=part.sampling, in_turn=part.in_turn)
    noise = replace(base.noise, entrusted=part.entrusted)
    return replace(base, question=part.question, schedule=schedule, shares=part.shares, noise=noise)
