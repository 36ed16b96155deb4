"""Adaptive composition of privacy curves through their privacy loss distributions.

Curves are discretised pessimistically (`discrete_losses`), so that every number below is an upper bound whatever the
grid. The composition is a power of one Fourier transform, taken of the *exponentially tilted* distribution: a plain one
has rounding errors of 1e-16 of the total mass, which at delta = 1e-12 came out 0.4 % too low in dp-accounting's. The
tilt moves the mass to where delta is decided, and rounding becomes relative to delta. What lies outside the window is
bounded by Chernoff and added to delta.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.fft import irfft, next_fast_len
from scipy.optimize import brentq, minimize_scalar
from scipy.signal import lfilter

from fedcore.accounting.discrete_losses import Answers, Discrete
from fedcore.accounting.effort import take_effort
from fedcore.accounting.loss_curves import Curve
from fedcore.arrays import Vector
from fedcore.limits import A_COMPOSITION

SHARE = 1e-4
"""Part of delta that each truncation may take; all are added to delta, none is dropped."""
ROUNDING = 1e-6
"""Relative allowance on delta for the rounding of the transform; 1e5 answers lose about 1e-11."""
LARGEST = 1 << 23
"""Points of the largest grid of one answer."""
WINDOW = 1 << 21
"""Points of the largest composition. Many answers with hardly any noise would have one of gigabytes, and whoever asks
for a plan chooses their number."""
UNIT = 1e-16
"""Rounding of one operation on probabilities that add up to 1."""


@dataclass(frozen=True)
class Composed:
    """Delta of a composition near the epsilon it was made for."""

    step: float
    start: float
    tilt: float
    log_scale: float
    tilted: Vector
    extra: float
    noise: float

    def delta(self, epsilon: float) -> float:
        """An upper bound on delta at `epsilon`."""
        total = self._sum(epsilon)
        log_total = self.log_scale - self.tilt * epsilon + math.log(total) if total > 0 else -math.inf
        return math.exp(min(log_total, 0.0)) * (1 + ROUNDING) + self.extra

    def reliable(self, epsilon: float) -> bool:
        """Whether `ROUNDING` covers the transform's rounding at this epsilon: not far from where the tilt has its mass.
        """
        return self._rounding() <= ROUNDING * self._sum(epsilon)

    def _rounding(self) -> float:
        """The largest error of a sum in `delta`, by the transform's rounding.

        It has weights w(x) = exp(-tilt x) (1 - exp(-x)); its error is at most `noise` ||w|| by Cauchy and Schwarz, and
        ||w||^2 on the grid at most max w (max w + integral of w / step).
        """
        highest = math.exp(_log_highest(self.tilt))
        return self.noise * math.sqrt(highest * (highest + 1 / (self.step * self.tilt * (1 + self.tilt))))

    def curve(self) -> tuple[Vector, Vector]:
        """Upper bounds on delta (1 where they are not reliable) at the multiples of the step in the window.

        Between two of them delta is linear in exp(epsilon). Sums as in `_sum`, from the top down: with w(j) = exp(-tilt
        j h) (1 - exp(-j h)), w(j + 1) = exp(-tilt h) (exp(-h) w(j) + exp(-tilt j h) (1 - exp(-h))), all positive.
        """
        decay, fall = math.exp(-self.tilt * self.step), -math.expm1(-self.step)
        ahead = lfilter([0.0, decay], [1.0, -decay], self.tilted[::-1])
        sums = lfilter([fall], [1.0, -decay * (1.0 - fall)], ahead)[::-1]
        epsilons = self.start + self.step * np.arange(len(sums))
        with np.errstate(divide="ignore"):
            logs = np.minimum(self.log_scale - self.tilt * epsilons + np.log(sums), 0.0)
        reliable = self._rounding() <= ROUNDING * sums
        return epsilons, np.where(reliable, np.exp(logs) * (1 + ROUNDING) + self.extra, 1.0)

    def _sum(self, epsilon: float) -> float:
        ahead = self.start - epsilon + self.step * np.arange(len(self.tilted))
        ahead, mass = ahead[ahead > 0], self.tilted[ahead > 0]
        return float(np.sum(mass * np.exp(-self.tilt * ahead) * -np.expm1(-ahead)))


def epsilon_of_curves(curves: Sequence[Answers], delta: float, tolerance: float = 2e-3) -> float:
    """An upper bound on the epsilon at `delta` of all these answers together.

    The grid is halved until epsilon changes by less than `tolerance`, relative; infinite if a curve has no finite
    epsilon at this delta (a record seen in clear with probability above delta). Raises ValueError unless 0 < delta < 1.
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta = {delta} must lie strictly between 0 and 1")
    take_effort(A_COMPOSITION)
    most = sum(answers.most for answers in curves)
    if most == 0:
        return 0.0
    reaches = [_reach(answers.curve, SHARE * delta / most) for answers in curves]
    if math.inf in reaches:
        return math.inf
    step = max(reaches) / 256
    before, best = math.inf, math.inf
    while True:
        for reach in reaches:
            take_effort(2 * math.ceil(reach / step) + 1)
        take_effort(A_COMPOSITION)
        made = [Discrete.of(answers, step, reach) for answers, reach in zip(curves, reaches, strict=True)]
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
        return math.fsum(part.total(tilt) for part in parts)

    bound, tilt = _chernoff(cumulant, math.log(delta))
    found = _near(parts, cumulant, bound, tilt, delta)
    if found is not None:
        return found
    # Where losses are so small that delta is far below the probability of a loss above epsilon (a few answers, each
    # with much noise or from a rare sample), Chernoff's bound on that probability tilts far beyond what decides delta,
    # which is left to rounding. A bound on delta itself has a tilt that fits.
    left = delta - _infinite(parts)
    if left <= 0:
        return math.inf
    bound, tilt = _chernoff(lambda t: cumulant(t) + _log_highest(t), math.log(left))
    found = _near(parts, cumulant, bound, tilt, delta)
    return found if found is not None else max(bound, 0.0) * (1 + 1e-9)


def _near(
    parts: Sequence[Discrete], cumulant: Callable[[float], float], bound: float, tilt: float, delta: float
) -> float | None:
    """Epsilon by a composition with this tilt; None if that is too large, or its rounding decided."""
    composed = _compose(parts, cumulant, tilt, delta)
    if composed is None:
        return None
    found = _solve(composed, bound, delta)
    return found if composed.reliable(found) else None


def _solve(composed: Composed, bound: float, delta: float) -> float:
    """Where the composition's delta is `delta`, from above; `bound` is about where it ends."""
    bound = max(bound, 0.0)
    if composed.delta(0.0) <= delta:
        return 0.0
    while composed.delta(bound) > delta:  # only the truncations can lift it above Chernoff's bound
        if composed.extra >= delta:
            return math.inf
        bound = 1.01 * bound if bound > 0 else composed.step
    return float(brentq(lambda epsilon: composed.delta(epsilon) - delta, 0.0, bound, rtol=1e-12)) * (1 + 1e-11)


def _log_highest(tilt: float) -> float:
    """The logarithm of the largest exp(-tilt x) (1 - exp(-x)) over x > 0: what delta is of exp(tilt (loss - epsilon)).

    With it Chernoff's bound is on delta, not on the probability of a loss above epsilon (Canonne, Kamath, Steinke 2020,
    Proposition 12).
    """
    return -tilt * math.log1p(1 / tilt) - math.log1p(tilt)


def _infinite(parts: Sequence[Discrete]) -> float:
    return -math.expm1(sum(part.log_finite() for part in parts))


def _chernoff(cumulant: Callable[[float], float], log_delta: float) -> tuple[float, float]:
    """The smallest (cumulant(t) - log_delta) / t over t > 0, and its t: epsilon by Chernoff's bound."""
    found = minimize_scalar(
        lambda log_tilt: (cumulant(math.exp(log_tilt)) - log_delta) / math.exp(log_tilt),
        bounds=(-7.0, 12.0), method="bounded", options={"xatol": 1e-3},
    )  # fmt: skip
    return float(found.fun), math.exp(float(found.x))


def _compose(
    parts: Sequence[Discrete], cumulant: Callable[[float], float], tilt: float, delta: float
) -> Composed | None:
    """The composition near where this tilt has its mass; None if it needs more than `WINDOW` points."""
    step, log_scale = parts[0].step, cumulant(tilt)
    top, _ = _chernoff(cumulant, math.log(SHARE * delta))
    # What lies above the window is lost there, at most SHARE of delta, and wrapped to its bottom, where it adds; the
    # tilted mass that is wrapped must be small too, or heavy tails make epsilon a loose bound.
    top = max(top, _chernoff(lambda t: cumulant(tilt + t) - log_scale, 2 * math.log(SHARE))[0])
    # What lies below the window is wrapped to its top, where it only adds; kept below SHARE^2 of the tilted mass.
    below, _ = _chernoff(lambda t: cumulant(tilt - t) - log_scale, 2 * math.log(SHARE))
    start = max(sum(part.first * part.answers.most for part in parts), math.floor(-below / step))
    size = next_fast_len(max(16, math.ceil(top / step) - start + 2), real=True)
    if size > WINDOW:
        return None
    take_effort(size)  # of transforms, and of delta at each step of the search for epsilon
    spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
    shift = -start
    for part in parts:
        spectrum *= part.spectrum(tilt, size)
    # Transforms lose some log2(size) units, powers one per factor; twice that.
    noise = UNIT * (40 + 2 * sum(part.answers.most for part in parts))
    mass = np.roll(irfft(spectrum, size), shift % size)
    return Composed(step, start * step, tilt, log_scale, np.maximum(mass, 0.0), _infinite(parts) + SHARE * delta, noise)
