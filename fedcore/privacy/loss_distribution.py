"""Adaptive composition of privacy curves through their privacy loss distributions.

A curve is discretised pessimistically on a grid (connect the dots: Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022,
Algorithm 1), so that every number below is an upper bound whatever the grid. The composition is a power of one Fourier
transform, taken of the *exponentially tilted* distribution: a plain one has rounding errors of 1e-16 of the total
mass, which at delta = 1e-12 came out 0.4 % too low in dp-accounting's. The tilt moves the mass to where delta is
decided, and rounding becomes relative to delta. What lies outside the window is bounded by Chernoff and added to delta.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft
from scipy.optimize import brentq, minimize_scalar
from scipy.special import logsumexp

from fedcore.arrays import Vector
from fedcore.privacy.loss_curves import Curve

SHARE = 1e-4
"""Part of delta that each truncation may take; all are added to delta, none is dropped."""
ROUNDING = 1e-6
"""Relative allowance on delta for the rounding of the transform; 1e5 answers lose about 1e-11."""
LARGEST = 1 << 23
"""Points of the largest grid."""


@dataclass(frozen=True)
class Discrete:
    """Probabilities (log) at losses step * (first, first + 1, ...) and at infinity, of one answer; `count` answers."""

    step: float
    first: int
    log_mass: Vector
    infinite: float
    count: int

    @property
    def losses(self) -> Vector:
        return np.asarray(self.step * (self.first + np.arange(len(self.log_mass))), dtype=np.float64)

    def cumulant(self, tilt: float) -> float:
        """log E[exp(tilt * loss); loss finite] of one answer."""
        return float(logsumexp(self.log_mass + tilt * self.losses))

    @classmethod
    def of(cls, curve: Curve, step: float, reach: float, count: int) -> Discrete:
        """Connect the dots of `curve` on [-reach, reach] in multiples of `step`."""
        last = math.ceil(reach / step)
        delta = np.clip(curve(np.arange(-last, last + 1, dtype=np.float64) * step), 0.0, 1.0)
        delta = np.minimum.accumulate(delta)
        fall = -np.diff(delta)
        up = np.append(1.0 - delta[0], fall / -np.expm1(-step))
        down = np.append(fall / np.expm1(step), 0.0)
        with np.errstate(divide="ignore"):
            return cls(step, -last, np.log(np.maximum(up - down, 0.0)), float(delta[-1]), count)


@dataclass(frozen=True)
class Composed:
    """Delta of a composition near the epsilon it was made for."""

    step: float
    start: float
    tilt: float
    log_scale: float
    tilted: Vector
    extra: float

    def delta(self, epsilon: float) -> float:
        """An upper bound on delta at `epsilon`."""
        ahead = self.start - epsilon + self.step * np.arange(len(self.tilted))
        ahead, mass = ahead[ahead > 0], self.tilted[ahead > 0]
        total = float(np.sum(mass * np.exp(-self.tilt * ahead) * -np.expm1(-ahead)))
        log_total = self.log_scale - self.tilt * epsilon + math.log(total) if total > 0 else -math.inf
        return math.exp(min(log_total, 0.0)) * (1 + ROUNDING) + self.extra


def epsilon_of_curves(curves: Sequence[tuple[Curve, int]], delta: float, tolerance: float = 2e-3) -> float:
    """An upper bound on the epsilon at `delta` of all answers together, each curve being answered `count` times.

    The grid is halved until epsilon changes by less than `tolerance`, relative; infinite if a curve has no finite
    epsilon at this delta (a record seen in clear with probability above delta). Raises ValueError unless 0 < delta < 1.
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta = {delta} must lie strictly between 0 and 1")
    answers = sum(count for _, count in curves)
    if answers == 0:
        return 0.0
    reaches = [_reach(curve, SHARE * delta / answers) for curve, _ in curves]
    if math.inf in reaches:
        return math.inf
    step = max(reaches) / 256
    before, best = math.inf, math.inf
    while True:
        made = [Discrete.of(curve, step, reach, count) for (curve, count), reach in zip(curves, reaches, strict=True)]
        best = min(best, _epsilon(made, delta))
        if before - best <= tolerance * best or 4 * max(reaches) / step > LARGEST:
            return best
        before, step = best, step / 2


def _reach(curve: Curve, tail: float) -> float:
    """The loss above which a curve's delta is at most `tail`; infinite if there is none."""
    high = 1.0
    while float(curve(np.array([high]))[0]) > tail:
        high *= 2
        if high > 2e4:
            return math.inf
    low = 0.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if float(curve(np.array([middle]))[0]) > tail else (low, middle)
    return high


def _epsilon(parts: Sequence[Discrete], delta: float) -> float:
    def cumulant(tilt: float) -> float:
        return math.fsum(part.count * part.cumulant(tilt) for part in parts)

    bound, tilt = _chernoff(cumulant, math.log(delta))
    bound = max(bound, 0.0)
    composed = _compose(parts, cumulant, tilt, delta)
    if composed.delta(0.0) <= delta:
        return 0.0
    while composed.delta(bound) > delta:  # only the truncations can lift it above Chernoff's bound
        if composed.extra >= delta:
            return math.inf
        bound *= 1.01
    return float(brentq(lambda epsilon: composed.delta(epsilon) - delta, 0.0, bound, rtol=1e-12)) * (1 + 1e-11)


def _chernoff(cumulant: Callable[[float], float], log_delta: float) -> tuple[float, float]:
    """The smallest (cumulant(t) - log_delta) / t over t > 0, and its t: epsilon by Chernoff's bound."""
    found = minimize_scalar(
        lambda log_tilt: (cumulant(math.exp(log_tilt)) - log_delta) / math.exp(log_tilt),
        bounds=(-7.0, 12.0), method="bounded", options={"xatol": 1e-3},
    )  # fmt: skip
    return float(found.fun), math.exp(float(found.x))


def _compose(
    parts: Sequence[Discrete], cumulant: Callable[[float], float], tilt: float, delta: float
) -> Composed:
    step, log_scale = parts[0].step, cumulant(tilt)
    top, _ = _chernoff(cumulant, math.log(SHARE * delta))
    # What lies above the window is lost there, at most SHARE of delta, and wrapped to its bottom, where it adds; the
    # tilted mass that is wrapped must be small too, or heavy tails make epsilon a loose bound.
    top = max(top, _chernoff(lambda t: cumulant(tilt + t) - log_scale, 2 * math.log(SHARE))[0])
    # What lies below the window is wrapped to its top, where it only adds; kept below SHARE^2 of the tilted mass.
    below, _ = _chernoff(lambda t: cumulant(tilt - t) - log_scale, 2 * math.log(SHARE))
    start = max(sum(part.first * part.count for part in parts), math.floor(-below / step))
    size = next_fast_len(max(16, math.ceil(top / step) - start + 2), real=True)
    spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
    shift = -start
    for part in parts:
        tilted = np.exp(part.log_mass + tilt * part.losses - part.cumulant(tilt))
        folded = np.zeros(size)
        np.add.at(folded, (part.first + np.arange(len(tilted))) % size, tilted)
        spectrum *= rfft(folded) ** part.count
    mass = np.roll(irfft(spectrum, size), shift % size)
    infinite = -math.expm1(sum(part.count * math.log1p(-part.infinite) for part in parts))
    return Composed(step, start * step, tilt, log_scale, np.maximum(mass, 0.0), infinite + SHARE * delta)
