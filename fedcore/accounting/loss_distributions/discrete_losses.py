"""Privacy loss of one answer on a grid, and of all answers of its kind as a Fourier transform.

A curve is discretised pessimistically: the result dominates the answer, whatever the grid. Source: connect the dots
(Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022, Algorithm 1).

A visible coin may decide about a round (`Answers.participation`). The round's hockey-stick divergence is then the mean
over the coin, (1-p) max(0, 1 - e^epsilon) + p delta(epsilon). Mix a pair that dominates the answers with no answer, by
the same coin: the mixture dominates the round. Rounds compose as answers do (Zhu, Dong and Wang 2022). In the Fourier
domain: ((1-p) + p f^K)^T.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.fft import rfft

from fedcore.accounting.loss_distributions.loss_curves import Curve
from fedcore.arrays import Vector

Spectrum = NDArray[np.complex128]


@dataclass(frozen=True)
class Answers:
    """`count` answers of one curve in each of `rounds` rounds.

    `participation` < 1: in each round a visible coin gives all of its answers with this probability, and none
    otherwise. The coin looks at no record and is independent of all that happened before.
    """

    curve: Curve
    count: int
    participation: float = 1.0
    rounds: int = 1

    @property
    def most(self) -> int:
        """The largest number of answers."""
        return self.count * self.rounds


@dataclass(frozen=True)
class Discrete:
    """Log probabilities of one answer's losses step * (first, first + 1, ...), and that of infinity."""

    step: float
    first: int
    log_mass: Vector
    infinite: float
    answers: Answers

    @cached_property
    def losses(self) -> Vector:
        return np.asarray(self.step * (self.first + np.arange(len(self.log_mass))), dtype=np.float64)

    def cumulant(self, tilt: float) -> float:
        """log E[exp(tilt * loss); loss finite] of one answer."""
        logs = self.log_mass + tilt * self.losses
        highest = float(logs.max())
        return highest + math.log(float(np.exp(logs - highest).sum()))

    def total(self, tilt: float) -> float:
        """log E[exp(tilt * loss); loss finite] of all answers in all rounds."""
        return self.answers.rounds * self._log_mean(self.answers.count * self.cumulant(tilt))

    def spectrum(self, tilt: float, size: int) -> Spectrum:
        """Transform of the tilted loss of all rounds, on `size` points from 0 up in circles; total mass 1."""
        cumulant = self.cumulant(tilt)
        tilted = np.exp(self.log_mass + tilt * self.losses - cumulant)
        folded = np.zeros(size)
        np.add.at(folded, (self.first + np.arange(len(tilted))) % size, tilted)
        found: Spectrum = rfft(folded) ** self.answers.count
        share = self.answers.participation
        if share < 1:
            # The coin's two sides are tilted like losses: a round without answers (loss 0) keeps its weight, one with
            # answers is multiplied by their moment.
            moment = self.answers.count * cumulant
            mean = self._log_mean(moment)
            found *= math.exp(math.log(share) + moment - mean)
            found += math.exp(math.log1p(-share) - mean)
        return found**self.answers.rounds if self.answers.rounds > 1 else found

    def log_finite(self) -> float:
        """The logarithm of the probability that no answer has an infinite loss."""
        each = self.answers.count * math.log1p(-self.infinite)
        if self.answers.participation < 1:
            each = math.log1p(self.answers.participation * math.expm1(each))
        return self.answers.rounds * each

    def _log_mean(self, log_moment: float) -> float:
        """A round's log moment, given that of its answers."""
        share = self.answers.participation
        if share == 1:
            return log_moment
        return float(np.logaddexp(math.log1p(-share), math.log(share) + log_moment))

    @classmethod
    def of(cls, answers: Answers, step: float, reach: float) -> Discrete:
        """Connects the dots of the curve on [-reach, reach] in multiples of `step`."""
        last = math.ceil(reach / step)
        delta = np.clip(answers.curve(np.arange(-last, last + 1, dtype=np.float64) * step), 0.0, 1.0)
        delta = np.minimum.accumulate(delta)
        fall = -np.diff(delta)
        up = np.append(1.0 - delta[0], fall / -np.expm1(-step))
        down = np.append(fall / np.expm1(step), 0.0)
        with np.errstate(divide="ignore"):
            return cls(step, -last, np.log(np.maximum(up - down, 0.0)), float(delta[-1]), answers)
