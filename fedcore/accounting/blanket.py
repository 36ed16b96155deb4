"""Exact privacy curve of one report in a shuffled batch, hidden among reports that look like its own.

A report comes from P or from Q. Each other report is, with probability `share`, drawn from W = (P + Q) / 2 instead of
from its own distribution. The observer sees the batch in random order and knows which reports were not drawn from W.
What remains is one report of P or Q among a random number of reports of W.

The lean of a report is a = dQ - dP over dQ + dP. Relative to W^m, the two batches of m reports have densities 1 -
mean(a) and 1 + mean(a). Their hockey-stick divergence is

    delta(epsilon) = (1 + e^epsilon) E[(mean(a) - tanh(epsilon / 2))_+],  a ~ W independently.

m is 1 + Binomial(M - 1, share), and (1/m) P(m) = Binomial(M, share)(m) / (M share). Hence delta(epsilon) is

    (1 + e^epsilon) / (M share) E[(sum_i b_i (a_i - tanh(epsilon / 2)))_+],  b_i ~ Bernoulli(share), i = 1..M:

the expected excess of one sum of M independent numbers.

Source: the blanket of Balle, Bell, Gascon and Nissim 2019 (Lemma 5.3, equation 6), with the pair's own mean as blanket.
Su, Cheng and Wang 2025 show that it is the best of all decompositions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft
from scipy.optimize import brentq
from scipy.special import ndtr

from fedcore.accounting.loss_distributions.loss_curves import Curve
from fedcore.arrays import Vector
from fedcore.directed_rounding import in_full

FINENESS = 8
"""Grid points per standard deviation of the leans; the grid adds at most 1/256 to their variance."""
NODES = 96
"""Epsilons at which a curve is computed; chords bound it between them."""
FARTHEST = 12.0
"""Standard deviations of a report's noise beyond which its mass is charged to delta."""
WIDEST = 2.0
"""Largest distance of the two means; beyond it leans come so near 1 that rounding decides."""
UNIT = 1e-16
"""Rounding of one operation on probabilities that add up to 1."""
LOG_WRAPPED = math.log(1e-22)
"""Logarithm of the tilted mass that a transform's window may leave out at either end."""
RATES = np.array([0.5, 2.0, 4.0, 8.0, 14.0])
"""Rates of Chernoff's bounds, in inverse standard deviations of the sum and in inverse largest terms."""
LARGEST = 1 << 22
"""Points of the largest transform."""


Cells = Callable[[Vector], tuple[Vector, Vector]]


@dataclass(frozen=True)
class Lean:
    """Distribution of the lean a = (dQ - dP) / (dQ + dP) of a report from W = (P + Q) / 2.

    It is symmetric around 0.
    `cells`: function of rising edges (k + 1,). It returns W's mass (k,) and the integral of a (k,) in each cell between
    two edges, upper edge included. `reach`: the largest lean that the cells count. `lost`: the mass that they do not
    count, the larger one of P and Q. `spread`: approximate standard deviation of a.
    """

    cells: Cells
    reach: float
    lost: float
    spread: float


def gaussian_lean(mu: float) -> Lean:
    """The lean of reports with noise 1 whose means lie `mu` apart.

    P = N(-mu/2, 1), Q = N(mu/2, 1), a = tanh(mu t / 2). Raises ValueError unless 0 < mu <= WIDEST.
    """
    if not 0 < mu <= WIDEST:
        raise ValueError(
            f"means that lie {in_full(mu)} apart: leans are told apart for distances above 0 up to {WIDEST}"
        )
    far = FARTHEST + mu / 2
    reach = math.tanh(mu * far / 2)

    def cells(edges: Vector) -> tuple[Vector, Vector]:
        with np.errstate(divide="ignore"):
            t = np.clip(2 / mu * np.arctanh(np.clip(edges, -reach, reach)), -far, far)
        t = np.where(np.abs(edges) >= reach, np.copysign(far, edges), t)
        low, high = t[:-1], t[1:]
        above = low + high > 0  # differences of what lies beyond, or small masses would be lost beside 1

        def mass(mean: float) -> Vector:
            return np.where(above, ndtr(mean - low) - ndtr(mean - high), ndtr(high - mean) - ndtr(low - mean))

        p, q = mass(-mu / 2), mass(mu / 2)
        return (p + q) / 2, (q - p) / 2

    return Lean(cells, reach, 2 * float(ndtr(-FARTHEST)), math.tanh(mu / 2))


def blanket_curve(lean: Lean, messages: int, share: float, tail: float) -> Curve:
    """delta(epsilon) of one report in a batch of `messages`.

    Each other report is of W with probability `share`.
    An upper bound for every epsilon, symmetric as `loss_curves` are. The caller adds `messages * lean.lost` to delta.
    The curve falls to at most `tail` and is constant from there on. `messages` = 1: the report alone.
    """
    highest = 8 * lean.spread / math.sqrt(1 + (messages - 1) * share)
    while _delta(lean, messages, share, highest) > tail:
        highest *= 1.3
    nodes = highest * np.linspace(0.0, 1.0, NODES) ** 1.5  # few clones make the tail long
    found = np.array([_delta(lean, messages, share, float(epsilon)) for epsilon in nodes])
    found = np.minimum.accumulate(np.minimum(found, 1.0))
    ends = np.exp(nodes)

    def delta(epsilon: Vector) -> Vector:
        at = np.minimum(np.abs(epsilon), highest)
        above = np.interp(np.exp(at), ends, found)  # convex in e^epsilon, so a chord is an upper bound
        return np.where(epsilon >= 0, above, -np.expm1(-np.abs(epsilon)) + np.exp(-np.abs(epsilon)) * above)

    return delta


def _delta(lean: Lean, messages: int, share: float, epsilon: float) -> float:
    """An upper bound on delta at one epsilon >= 0."""
    middle = math.tanh(epsilon / 2)
    if middle >= lean.reach:
        return 0.0
    step = lean.spread / FINENESS
    first, last = math.floor((-lean.reach - middle) / step), math.ceil((lean.reach - middle) / step)
    places = step * np.arange(first, last + 1, dtype=np.float64)
    mass, integral = lean.cells(middle + places)
    # Each cell's mass moves to its two ends and keeps its mean: a spread, which lowers no convex function's mean.
    right = np.clip((integral - (middle + places[:-1]) * mass) / step, 0.0, mass)
    law = np.append(mass - right, 0.0) + np.append(0.0, right)
    law *= share
    law[-first] += 1.0 - share
    excess = expected_excess(step, first, law, messages)
    return (1.0 + math.exp(epsilon)) / (messages * share) * excess


def expected_excess(step: float, first: int, mass: Vector, count: int) -> float:
    """An upper bound on E[(X_1 + ... + X_count)_+] for independent X, of E[X] <= 0.

    X has `mass` at step * (first, first + 1, ...).
    The sum is computed under the exponential tilt that moves its mean to 0, so that rounding is relative to the result.
    Chernoff's bound on the mass outside the transform's window is added. The bound is infinite where the transform
    would exceed `LARGEST` points.
    """
    x = step * (first + np.arange(len(mass)))
    if not np.any(mass[x > 0] > 0):
        return math.inf  # so little that it was rounded away
    with np.errstate(divide="ignore"):
        log_mass = np.log(mass)

    def weighed(tilt: float) -> tuple[float, Vector]:
        """Cumulant at this tilt, and the tilted distribution."""
        logs = log_mass + tilt * x
        highest = float(logs.max())
        law = np.exp(logs - highest)
        total = float(law.sum())
        return highest + math.log(total), law / total

    def mean(tilt: float) -> float:
        return float(weighed(tilt)[1] @ x)

    tilt = 0.0
    if mean(0.0) < 0:
        high = 1.0 / step
        while mean(high) <= 0:
            high *= 2
        tilt = float(brentq(mean, 0.0, high, xtol=1e-12 / step, rtol=1e-9))
    log_scale, tilted = weighed(tilt)
    deviation = math.sqrt(count * float(tilted @ x**2))
    # A sum of rare terms reaches many of its deviations.
    rates = np.concatenate([RATES / deviation, RATES / float(np.abs(x).max())])
    wrapped = [[count * (weighed(tilt + sign * rate)[0] - log_scale) for rate in rates] for sign in (1, -1)]
    top, bottom = (float(np.min((np.array(each) - LOG_WRAPPED) / rates)) for each in wrapped)
    top = max(top, 1.0 / float(rates.min()))  # so that no rate is below 1 / top
    size = next_fast_len(math.ceil((top + bottom) / step) + 4, real=True)
    if size > LARGEST:
        return math.inf
    folded = np.zeros(size)
    np.add.at(folded, (first + np.arange(len(tilted))) % size, tilted)
    sums = np.maximum(irfft(rfft(folded) ** count, size), 0.0)
    above = step * np.arange(1, math.ceil(top / step) + 1)
    weights = above * np.exp(-tilt * above)
    rounding = UNIT * (40 + 2 * count) * float(np.linalg.norm(weights))
    # Beyond top, x <= top e^(x / top - 1), which bounds the part of E[X e^(-tilt X)] there.
    left_out = top * math.exp(LOG_WRAPPED - tilt * top)
    inside = float(sums[1 : len(above) + 1] @ weights)
    return math.exp(count * log_scale) * (inside + rounding + left_out)
