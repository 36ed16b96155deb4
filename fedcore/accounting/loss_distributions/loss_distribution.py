"""Adaptive composition of privacy curves through their privacy loss distributions.

Curves are discretised pessimistically (`discrete_losses`), so that every number below is an upper bound whatever the
grid. The composition is a power of one Fourier transform of the *exponentially tilted* distribution. A plain transform
has rounding errors of 1e-16 of the total mass; at delta = 1e-12 dp-accounting's result was 0.4 % too low. The tilt
moves the mass to the losses that decide delta, and rounding becomes relative to delta. Chernoff's bound on the mass
outside the window is added to delta.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.fft import irfft, next_fast_len
from scipy.optimize import brentq, minimize_scalar

from fedcore.accounting.effort import take_effort
from fedcore.accounting.loss_distributions.composed import Composed, log_highest
from fedcore.accounting.loss_distributions.discrete_losses import Answers, Discrete
from fedcore.accounting.loss_distributions.loss_curves import Curve, symmetric
from fedcore.arrays import Vector
from fedcore.limits import A_COMPOSITION

TOLERANCE = 2e-3
"""Relative change of epsilon below which a grid is made no finer."""
SHARE = 1e-4
"""Part of delta that each truncation may take; all are added to delta, none is dropped."""
LARGEST = 1 << 23
"""Points of the largest grid of one answer."""
CURVED = 1 << 10
"""Steps to the largest loss of one answer where a whole curve is composed."""
WINDOW = 1 << 21
"""Points of the largest composition: an asker could otherwise choose a plan that takes gigabytes."""
UNIT = 1e-16
"""Rounding of one operation on probabilities that add up to 1."""


def epsilon_of_curves(curves: Sequence[Answers], delta: float, tolerance: float = TOLERANCE) -> float:
    """An upper bound on the epsilon at `delta` of all these answers.

    The grid is halved until epsilon changes by less than `tolerance`, relative. Infinite if a curve has no finite
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


def composed_curve(curves: Sequence[Answers], least: float) -> Curve:
    """A curve nowhere below that of all these answers, and close to it where delta is above `least`.

    The smallest of several compositions, each tilted to a delta of its own; 1 everywhere if a curve has no finite loss.
    """
    most = sum(answers.most for answers in curves)
    reaches = [_reach(answers.curve, SHARE * least / most) for answers in curves]
    if math.inf in reaches:
        return np.ones_like
    step = max(reaches) / CURVED
    made = [Discrete.of(answers, step, reach) for answers, reach in zip(curves, reaches, strict=True)]

    def cumulant(tilt: float) -> float:
        return math.fsum(part.total(tilt) for part in made)

    targets = np.geomspace(0.3, least, min(24, 2 + math.ceil(-math.log10(least) / 2)))
    tilts = [(_chernoff(cumulant, math.log(target))[1], float(target)) for target in targets]
    composed = [_compose(made, cumulant, tilt, target) for tilt, target in tilts]
    known = [one.curve() for one in composed if one is not None]

    def above(epsilon: Vector) -> Vector:
        found = np.ones_like(epsilon)
        for at, delta in known:
            lower = np.minimum.accumulate(delta)
            index = np.clip(np.floor((epsilon - at[0]) / step).astype(np.int64), 0, len(at) - 2)
            share = np.clip(np.expm1(epsilon - at[index]) / math.expm1(step), 0.0, 1.0)
            here = (1 - share) * lower[index] + share * lower[index + 1]
            found = np.minimum(found, np.where(epsilon >= at[0], here, 1.0))
        return found

    return symmetric(above)


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
    # A few answers of much noise or from a rare sample have small losses. Delta is then far below the probability of a
    # loss above epsilon. Chernoff's bound on that probability tilts far beyond the losses that decide delta, and
    # rounding decides. The tilt of a bound on delta itself fits.
    left = delta - _infinite(parts)
    if left <= 0:
        return math.inf
    bound, tilt = _chernoff(lambda t: cumulant(t) + log_highest(t), math.log(left))
    found = _near(parts, cumulant, bound, tilt, delta)
    return found if found is not None else max(bound, 0.0) * (1 + 1e-9)


def _near(
    parts: Sequence[Discrete], cumulant: Callable[[float], float], bound: float, tilt: float, delta: float
) -> float | None:
    """Epsilon by a composition with this tilt; None if it is too large, or its rounding decided."""
    composed = _compose(parts, cumulant, tilt, delta)
    if composed is None:
        return None
    found = _solve(composed, bound, delta)
    return found if composed.reliable(found) else None


def _solve(composed: Composed, bound: float, delta: float) -> float:
    """Smallest epsilon, from above, whose composed delta is at most `delta`; `bound` is near the result."""
    bound = max(bound, 0.0)
    if composed.delta(0.0) <= delta:
        return 0.0
    while composed.delta(bound) > delta:  # only the truncations can lift it above Chernoff's bound
        if composed.extra >= delta:
            return math.inf
        bound = 1.01 * bound if bound > 0 else composed.step
    return float(brentq(lambda epsilon: composed.delta(epsilon) - delta, 0.0, bound, rtol=1e-12)) * (1 + 1e-11)


def _infinite(parts: Sequence[Discrete]) -> float:
    return -math.expm1(sum(part.log_finite() for part in parts))


def _chernoff(cumulant: Callable[[float], float], log_delta: float) -> tuple[float, float]:
    """The smallest (cumulant(t) - log_delta) / t over t > 0, and its t: epsilon by Chernoff's bound."""
    found = minimize_scalar(
        lambda log_tilt: (cumulant(math.exp(log_tilt)) - log_delta) / math.exp(log_tilt),
        bounds=(-7.0, 12.0),
        method="bounded",
        options={"xatol": 1e-3},
    )
    return float(found.fun), math.exp(float(found.x))


def _compose(
    parts: Sequence[Discrete], cumulant: Callable[[float], float], tilt: float, delta: float
) -> Composed | None:
    """The composition near where this tilt has its mass; None if it needs more than `WINDOW` points."""
    step, log_scale = parts[0].step, cumulant(tilt)
    top, _ = _chernoff(cumulant, math.log(SHARE * delta))
    # Losses above the window are lost, at most SHARE of delta, or wrapped to its bottom, where they add. The tilted
    # mass that is wrapped must be small too, or heavy tails make epsilon a loose bound.
    top = max(top, _chernoff(lambda t: cumulant(tilt + t) - log_scale, 2 * math.log(SHARE))[0])
    # Losses below the window are wrapped to its top, where they only add; at most SHARE^2 of the tilted mass.
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
