"""A method's view of a silo in one round: noised answers of the planned kind only."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from fedcore.accounting.events import GaussianRelease
from fedcore.arrays import Vector
from fedcore.errors import SiloError
from fedcore.mechanisms.gaussian import Noise, numbered
from fedcore.mechanisms.grid import Grid, GridGaussian
from fedcore.mechanisms.secret_sample import WordStream, fixed_size_sample, poisson_sample
from fedcore.planning.phase import Phase
from fedcore.silo.answers import Shard
from fedcore.silo.approval import grid_of
from fedcore.silo.approved_run import ApprovedRun
from fedcore.silo.question import RoundQuestion


class PlannedRound:
    """Answers of one round: those of the plan, and no others. `answered`: their number so far.

    `silo`: the one that SiloErrors name.
    """

    __slots__ = ("_over", "_phase", "_silo", "answered")

    def __init__(self, silo: str, phase: Phase) -> None:
        self._silo, self._phase = silo, phase
        self.answered = 0
        self._over = False

    @property
    def phase(self) -> Phase:
        return self._phase

    def end(self) -> None:
        """Ends the round. Raises SiloError unless it had as many answers as are planned, and charged."""
        self._over = True
        if self.answered != self._phase.schedule.answers:
            planned = self._phase.schedule.answers
            sentence = f"the method asked {self.answered} times in a round planned for {planned}"
            raise SiloError(self._silo, "plan", sentence)

    def _admit(self, kind: str) -> None:
        """Raises SiloError for an answer of another kind than planned, and for any after the round."""
        if self._over:
            # A method that held the view of an earlier round would get an answer without a charge.
            raise SiloError(self._silo, "plan", "the method asked after its round")
        if kind != self._phase.question.kind:
            raise SiloError(
                self._silo, "plan", f"the method asked for {kind} where {self._phase.question.kind} is planned"
            )


class RoundView(PlannedRound):
    """Implements `fedcore.algorithms.method.Silo` for one silo."""

    __slots__ = ("_address", "_drawn", "_grid_noise", "_noise", "_place", "_query", "_run", "_samples", "_shard")

    def __init__(
        self,
        silo: str,
        run: ApprovedRun,
        question: RoundQuestion,
        phase: Phase,
        shard: Shard,
        noise: Noise,
        grid_noise: GridGaussian,
    ) -> None:
        super().__init__(silo, phase)
        self._run, self._shard = run, shard
        self._noise, self._grid_noise = noise, grid_noise
        self._address, self._query = run.keys.address(run.named, question.phase, question.round, question.digest)
        self._place = silo, question.phase, question.round
        self._samples: WordStream | None = None
        self._drawn: np.ndarray | None = None

    @property
    def event(self) -> GaussianRelease:
        return self._shard.event

    @property
    def ridge(self) -> float:
        return self._run.plan.problem.objective.ridge

    @property
    def address(self) -> tuple[str, int, int]:
        return self._place

    def ask(self, kind: str, *arrays: Vector) -> Vector:
        """(sum + noise) / public count, with sensitivity and sigma of the planned event.

        If the event is sampled, the sum is over a secret sample, drawn here for this question. The count is then the
        expected size of the sample: dividing by the true size would reveal it. An empty sample answers pure noise.
        """
        self._admit(kind)
        context, answer = self._next_context(), self._run.answers[kind]
        scale = answer.scale(self._run.plan.problem, *arrays)
        if scale == 0.0:  # no record can move this sum, so it has no noise; public, and charged like any other
            return np.zeros(self._phase.question.length(self._run.plan.problem.objective.dim))
        run = self._run
        draw = partial(run.keys.draws, run.key, context)
        total = answer.sum(self._phase, self._shard, self._sample(context), draw, *arrays)
        return self._released(total, context, scale)

    def _next_context(self) -> bytes:
        """Context in the keys of the next answer's draws: its address and number, by the silo's `keys`."""
        self.answered += 1
        return numbered(self._address, self.answered) + self._query

    def _sample(self, context: bytes) -> np.ndarray | None:
        """Positions of the next answer's sample in the shard; None: all. One sample per round if the question has
        `one_sample`."""
        if self._phase.question.one_sample and self._drawn is not None:
            return self._drawn
        self._drawn = self._drawn_sample(context)
        return self._drawn

    def _drawn_sample(self, context: bytes) -> np.ndarray | None:
        event, count, records = self.event, self._shard.count, self._shard.n
        if event.sampling == "full":
            return None
        if self._samples is None:
            self._samples = self._run.keys.sample_stream(self._run.key, context)
        if event.sampling == "poisson":
            return poisson_sample(self._samples, event.rate, records)
        if event.sampling == "without-replacement" and event.rate == count / records:
            # Otherwise a sample of `count` records would not have the rate that is charged.
            return fixed_size_sample(self._samples, int(count), records)
        raise SiloError(self._silo, "plan", f"it draws no samples of the kind {event.sampling}")

    def _released(self, total: Vector, context: bytes, scale: float) -> Vector:
        """(total + noise of the planned event) / public count; `scale`: factor of sensitivity and noise."""
        shard, key = self._shard, self._run.key
        if shard.grid is not None:
            grid = shard.grid if scale == 1.0 else self._scaled_grid(scale)
            total = self._grid_noise.noised(key, context, total, grid)
        elif shard.noise > 0:
            noise = self._noise.draw(key, context, total)
            noise *= shard.noise * scale
            total += noise
        total /= shard.count
        return total

    def _scaled_grid(self, scale: float) -> Grid:
        """The grid for sums in this unit. Raises SiloError if there is none, which depends on the question alone."""
        problem, event, phase = self._run.plan.problem, self._shard.event, self._phase
        with np.errstate(all="ignore"):
            scaled = replace(event, sigma=event.sigma * scale, sensitivity=event.sensitivity * scale)
        return grid_of(self._silo, problem, phase, scaled, scale)
