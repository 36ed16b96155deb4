"""A second accountant, without code of the one under test, that brackets epsilon from both sides.

R answers about one dataset or its neighbour draw from P^R or Q^R. L = ln dP/dQ is the loss of one answer, S the sum of
R independent losses under P. Then `delta(eps) = E[(1 - e^(eps - S))_+]` (Sommer, Meiser, Mohammadi 2019). All pairs
below have a continuous and increasing loss of one coordinate x. The bracket, for any step h > 0:

* Rounding. A loss `l = kh + f` goes up to (k+1)h with probability `(1 - e^-f) / (1 - e^-h)`, else down to kh. That
  preserves the mass under Q too, so undoing it is post-processing. So the delta of the rounded sum T is never below the
  true one (Doroshenko et al. 2022, "connect the dots").
* The other side. The R rounding errors are independent given the losses. Each is in an interval of length h, and its
  mean is between 0 and `h^3 / (8 (1 - e^-h))`. By Hoeffding T <= S + eta except with probability gamma, where
  `eta = h sqrt(R ln(1/gamma) / 2) + R h^3 / (8 (1 - e^-h))`. Hence `delta(eps) >= delta_T(eps + eta) - gamma`, as in
  Gopi, Lee, Wutschitz 2021. gamma = delta / 1000; eta decides h.
* Tails. x outside [-reach, reach] is left out; reach makes R times its probability at most delta / 10,000, which the
  upper side adds to delta. The lower side needs no correction: to leave out mass only lowers it.
* Masses. Gauss-Legendre with n nodes on cells in which f is smooth, of half-width w at most s/20 (s: deviation of the
  noise). All terms are positive, so nothing cancels. Consider the Bernstein ellipse of parameter rho = s/(2w). On it
  the integrand is at most `1000 (1 + rho)` times its real size (|x| <= 13 s, s >= 1/2). So the relative error is below
  `5000 rho^(1-2n)` (Trefethen 2008, Theorem 4.5); n makes that 1e-10. ENTRY, 20 times as much, is charged R times.
* FFT. T is composed under the tilted law `p_k e^(theta kh) / M(theta)`, with theta near the saddle point of delta. So a
  delta of 1e-12 rests on ordinary masses. Then `delta_T(eps) = M^R e^(-theta eps) sum_T tilted(T) w(T - eps)` with
  `w(t) = e^(-theta t) (1 - e^-t)_+`. Mass that wraps around adds at most max w times the mass outside the window, which
  Chernoff's bound gives.
* Rounding errors of the FFT. A transform is off by at most `a = 20 u log2(N)` relative in Euclidean norm (Higham 2002,
  Theorem 24.2, has 7 for radix 2). The R-th power by repeated squaring adds `3 u R`. So the output is off by
  `1.1 ((R + 1) a + 3 u R) ||p||_2`, and delta by that times `||w||_2` (Cauchy-Schwarz). Here
  `||w||_2^2 <= max w (max w + 1 / (h theta (1 + theta)))`.

Units: the sensitivity is 1, the largest move of the answer when one record is replaced; z is sigma over that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import mpmath
import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.optimize import brentq, minimize_scalar
from scipy.special import log_ndtr, logsumexp, ndtri

Array = NDArray[np.float64]
UNIT = 2.0**-53
ENTRY = 2e-9
OUTSIDE = 1e-9
Span = tuple[float, float]
ANYWHERE: Span = (0.0, math.inf)


class Bracket(NamedTuple):
    """The smallest epsilon that holds at delta is in [lower, upper]."""

    lower: float
    upper: float

    @property
    def width(self) -> float:
        return (self.upper - self.lower) / self.upper if self.upper > 0 else 0.0


@dataclass(frozen=True)
class Pair:
    """P by its density, ln(dP/dQ) and its inverse, which is -inf or inf outside of the loss's range."""

    scale: float
    density: Callable[[Array], Array]
    loss: Callable[[Array], Array]
    place: Callable[[Array], Array]


# The three schemes


def full_batch(z: float, rounds: int, delta: float) -> Bracket:
    """Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), mu = sqrt(R)/z (Balle and Wang 2018, Theorem 8).

    Solved in double precision; that delta lies between its values at both ends is then checked with 60 digits.
    """
    mu = math.sqrt(rounds) / z

    def excess(eps: float) -> float:
        small, large = log_ndtr(-mu / 2 - eps / mu) + eps, log_ndtr(mu / 2 - eps / mu)
        return float(large + np.log(max(-np.expm1(small - large), 1e-300))) - math.log(delta)

    if _gaussian_delta(mu, 0.0) <= delta:
        return Bracket(0.0, 0.0)
    found = brentq(excess, 0.0, mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta)) + 1e-9, xtol=1e-14, rtol=1e-14)
    for slack in (1e-12, 1e-10, 1e-8, 1e-6):
        bracket = Bracket(found * (1 - slack), found * (1 + slack))
        if _gaussian_delta(mu, bracket.upper) <= delta <= _gaussian_delta(mu, bracket.lower):
            return bracket
    raise ArithmeticError(f"no bracket at mu={mu}, delta={delta}")


def _gaussian_delta(mu: float, eps: float) -> mpmath.mpf:
    with mpmath.workdps(60):
        m, e = mpmath.mpf(mu), mpmath.mpf(eps)
        return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


def poisson(q: float, z: float, rounds: int, delta: float, width: float = 0.002, span: Span = ANYWHERE) -> Bracket:
    """Each record is in the batch with probability q: P = (1-q) N(0, s^2) + q N(1, s^2), Q has N(-1, s^2), s = 2z.

    The replaced record adds +C before and -C after, so its presence moves the sum by half the sensitivity. The pair
    is its own mirror image, so there is one order only.
    """
    s, away = 2 * z, (1 - q) / q * math.exp(1 / (8 * z * z))

    def density(x: Array) -> Array:
        return _normal(x, s) * (1 + q * np.expm1((x - 0.5) / s**2))

    def loss(x: Array) -> Array:
        return np.log1p(q * np.expm1((x - 0.5) / s**2)) - np.log1p(q * np.expm1((-x - 0.5) / s**2))

    def place(losses: Array) -> Array:
        return s**2 * (losses / 2 + np.arcsinh(away * np.sinh(losses / 2)))

    return _epsilon(Pair(s, density, loss, place), rounds, delta, width, span)


def fixed_size_attack(
    q: float, z: float, rounds: int, delta: float, width: float = 0.002, span: Span = ANYWHERE
) -> Bracket:
    """A batch of b of n without replacement, q = b/n, against one attack: no accountant may go below `lower`.

    All records clip to +C e, the replaced one to -C e. Before, every batch sums to b C e; after, with probability q it
    is less by the whole sensitivity: N(0, z^2) against (1-q) N(0, z^2) + q N(1, z^2). Either may be the real one, so
    the larger epsilon of both orders counts. `upper` bounds this attack only, not the scheme.
    """

    def mixture(x: Array) -> Array:
        return np.log1p(q * np.expm1((x - 0.5) / z**2))

    def at(losses: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.nan_to_num(0.5 + z**2 * np.log1p(np.expm1(losses) / q), nan=-np.inf, neginf=-np.inf)

    mixed = Pair(z, lambda x: _normal(x, z) * (1 + q * np.expm1((x - 0.5) / z**2)), mixture, at)
    plain = Pair(z, lambda x: _normal(x, z), lambda x: -mixture(-x), lambda losses: -at(-losses))
    orders = [_epsilon(pair, rounds, delta, width, span) for pair in (mixed, plain)]
    return Bracket(max(b.lower for b in orders), max(b.upper for b in orders))


def _normal(x: Array, s: float) -> Array:
    return np.exp(-0.5 * (x / s) ** 2) / (s * math.sqrt(2 * math.pi))


# The bracket


def _epsilon(pair: Pair, rounds: int, delta: float, width: float, span: Span) -> Bracket:
    """A coarse bracket, and if epsilon can be in `span` finer ones until their relative width is at most `width`."""
    reach = 1 - pair.scale * float(ndtri(delta / (4e4 * rounds)))
    ends = pair.loss(np.array([-reach, reach]))
    sketch = Rounded.of(pair, float(ends[1] - ends[0]) / 20_000, reach)
    theta, guess = sketch.saddle(rounds, delta)
    deviations = math.sqrt(rounds * math.log(1000 / delta) / 2)
    share = 0.05
    for _ in range(8):
        fine = Rounded.of(pair, share * guess / deviations, reach)
        bracket = fine.bracket(rounds, delta, theta, sketch.window(rounds, theta))
        if bracket.width <= width or bracket.upper < span[0] or bracket.lower > span[1]:
            return bracket
        guess, share = bracket.upper, min(share / 2, 0.75 * width)
    raise ArithmeticError(f"no bracket of width {width}: {bracket}")


@dataclass(frozen=True)
class Rounded:
    """The loss of one answer on the grid step * (first, first + 1, ...), as logarithms of its masses under P."""

    step: float
    first: int
    log_mass: Array

    @classmethod
    def of(cls, pair: Pair, step: float, reach: float) -> Rounded:
        left, right = pair.loss(np.array([-reach, reach]))
        first, last = math.floor(left / step), math.ceil(right / step)
        cells = np.linspace(-reach, reach, math.ceil(2 * reach / (pair.scale / 10)) + 1)
        grid = np.clip(pair.place(step * np.arange(first, last + 1)), -reach, reach)
        edges = np.sort(np.concatenate([cells, grid]), kind="stable")
        half, middle = np.diff(edges) / 2, (edges[1:] + edges[:-1]) / 2
        nodes = math.ceil((math.log(5e13) / math.log(pair.scale / (2 * half.max())) + 1) / 2)
        mass = np.zeros(last - first + 2)
        for node, weight in zip(*np.polynomial.legendre.leggauss(nodes), strict=True):
            x = middle + node * half
            loss = pair.loss(x)
            below = np.clip(np.floor(loss / step), first, last)
            part = weight * half * pair.density(x)
            up = part * np.expm1(below * step - loss) / math.expm1(-step)
            index = below.astype(np.int64) - first
            mass += np.bincount(index, part - up, len(mass)) + np.bincount(index + 1, up, len(mass))
        with np.errstate(divide="ignore"):
            return cls(step, first, np.log(np.maximum(mass, 0.0)))

    @property
    def losses(self) -> Array:
        return self.step * (self.first + np.arange(len(self.log_mass)))

    def log_moment(self, theta: float) -> float:
        return float(logsumexp(self.log_mass + theta * self.losses))

    def saddle(self, rounds: int, delta: float) -> tuple[float, float]:
        """The theta of the least Chernoff bound on epsilon, and that bound. A choice only: no bracket rests on it."""

        def chernoff(log_theta: float) -> float:
            theta = math.exp(log_theta)
            return (rounds * self.log_moment(theta) + math.log(_largest(theta) / delta)) / theta

        best = minimize_scalar(chernoff, bounds=(math.log(1e-6), math.log(1e6)), method="bounded")
        return math.exp(best.x), max(float(best.fun), 1e-3)

    def window(self, rounds: int, theta: float) -> tuple[float, float]:
        """The tilts down and up for narrow Chernoff bounds on the tilted sum. A choice only: no bracket rests on it."""
        tilted = np.exp(self.log_mass + theta * self.losses - self.log_moment(theta))
        deviation = math.sqrt(rounds * float(tilted @ (self.losses - tilted @ self.losses) ** 2))
        tries = np.geomspace(0.5, 50, 20) / deviation
        ends = {sign: [self._end(rounds, theta, sign * tilt) for tilt in tries] for sign in (-1, 1)}
        return -float(tries[np.argmax(ends[-1])]), float(tries[np.argmin(ends[1])])

    def _end(self, rounds: int, theta: float, tilt: float) -> float:
        """The tilted sum is beyond this with probability at most OUTSIDE / 2: below for tilt < 0, above for > 0."""
        return (rounds * (self.log_moment(theta + tilt) - self.log_moment(theta)) + math.log(2 / OUTSIDE)) / tilt

    def bracket(self, rounds: int, delta: float, theta: float, tilts: tuple[float, float]) -> Bracket:
        """Epsilon by one transform, with all its errors charged (see the module)."""
        h, log_moment = self.step, self.log_moment(theta)
        start = math.floor(self._end(rounds, theta, tilts[0]) / h)
        size = next_fast_len(math.ceil(self._end(rounds, theta, tilts[1]) / h) - start + 2, real=True)
        tilted = np.exp(self.log_mass + theta * self.losses - log_moment)
        wrapped = np.bincount((self.first + np.arange(len(tilted))) % size, tilted, size)
        composed = np.roll(irfft(_power(rfft(wrapped), rounds), size), -(start % size))
        sums = h * (start + np.arange(size))

        largest = _largest(theta)
        norm = math.sqrt(largest * (largest + 1 / (h * theta * (1 + theta))))
        transform = 20 * UNIT * math.log2(size)
        rounding = 1.1 * ((rounds + 1) * transform + 3 * UNIT * rounds) * float(np.linalg.norm(wrapped))
        error = OUTSIDE * largest + rounding * norm

        def log_delta(eps: float, sign: int) -> float:
            beyond = slice(int(np.searchsorted(sums, eps, side="right")), None)
            above = sums[beyond] - eps
            mean = -float(composed[beyond] @ (np.exp(-theta * above) * np.expm1(-above)))
            return rounds * (log_moment + sign * ENTRY) - theta * eps + math.log(max(mean + sign * error, 1e-300))

        gamma = delta / 1000
        eta = h * math.sqrt(rounds * math.log(1 / gamma) / 2) + rounds * h**3 / (-8 * math.expm1(-h))
        upper = _root(lambda eps: log_delta(eps, 1) - math.log(delta * (1 - 1e-4)), 0.0, float(sums[-1]))
        lower = _root(lambda eps: log_delta(eps, -1) - math.log(delta + gamma), max(0.0, upper - 1 / theta), upper)
        slack = 1e-13 * rounds + 1e-9 * upper  # floating-point losses, and the root itself
        return Bracket(max(0.0, lower - eta - slack), upper + slack)


def _largest(theta: float) -> float:
    """max over t > 0 of e^(-theta t) (1 - e^-t)."""
    return math.exp(-theta * math.log1p(1 / theta)) / (1 + theta)


def _power(base: NDArray[np.complex128], exponent: int) -> NDArray[np.complex128]:
    result = np.ones_like(base)
    while exponent:
        if exponent & 1:
            result = result * base
        base, exponent = base * base, exponent >> 1
    return result


def _root(falling: Callable[[float], float], low: float, high: float) -> float:
    """The root of `falling`; 0 if it is not above 0 at `low`."""
    return 0.0 if falling(low) <= 0 else float(brentq(falling, low, high, rtol=1e-11))
