"""Bugs of the noise of guarded silos: grids, discrete samplers and their keys."""

from __future__ import annotations

import hmac
from contextlib import contextmanager

import numpy as np

from fedcore.mechanisms.discrete_gaussian import Keystream, discrete_gaussian
from tests.audit.bug import Bug, as_if

DRAW = "fedcore.mechanisms.discrete_gaussian:DiscreteGaussian.draw"
NOISED = "fedcore.mechanisms.grid:GridGaussian.noised"
SAMPLER = "fedcore.mechanisms.discrete_gaussian:discrete_gaussian"


@contextmanager
def anew(*changes):
    """`as_if` without samplers from before the block, and without leaving any."""
    discrete_gaussian.cache_clear()
    with as_if(*changes):
        yield
    discrete_gaussian.cache_clear()


def drawn(change):
    """Samples of the discrete Gaussian with parameter s, changed by change(samples, s)."""
    return anew((DRAW, lambda right: lambda self, stream, n: change(right(self, stream, n), self.s)))


def keyed(key_of):
    """Noise under HMAC-SHA-256(run key, key_of(context, bytes of the sum))."""

    def noised(right):
        def on_grid(self, run_key, context, total, grid):
            steps = np.rint(total / grid.step)
            key = hmac.digest(run_key, key_of(context, total.tobytes()), "sha256")
            discrete_gaussian(grid.noise / grid.step).add(Keystream(key), steps)
            return steps * grid.step

        return on_grid

    return anew((NOISED, noised))


def _unrounded(right):
    def on_grid(self, run_key, context, total, grid):
        rounded = np.rint(total / grid.step) * grid.step
        return right(self, run_key, context, total, grid) + (total - rounded)

    return on_grid


def _one_sided(samples, s):
    samples[:1] = abs(samples[:1])
    return samples


def _cut(samples, s):
    return np.clip(samples, -int(2.5 * s), int(2.5 * s))


def _last_bare(right):
    def on_grid(self, run_key, context, total, grid):
        found = right(self, run_key, context, total, grid)
        found[-1] = np.rint(total[-1] / grid.step) * grid.step
        return found

    return on_grid


def _weak(right):
    def on_grid(self, run_key, context, total, grid):
        steps = np.rint(total / grid.step)
        seed = hmac.digest(run_key, context + total.tobytes(), "sha256")[:1]
        discrete_gaussian(grid.noise / grid.step).add(Keystream(seed + bytes(31)), steps)
        return steps * grid.step

    return on_grid


BUGS = (
    Bug(
        "grid noise at half",
        "noise: discrete noise has half of the charged parameter",
        lambda: anew((SAMPLER, lambda right: lambda s: right(0.5 * s))),
    ),
    Bug(
        "grid noise at nine tenths",
        "noise: discrete noise has 10 % too little",
        lambda: anew((SAMPLER, lambda right: lambda s: right(0.9 * s))),
        "guarded differences",
    ),
    Bug(
        "grid noise in steps of 65536",
        "noise: multiples of 65,536 steps, so a sum's lower digits are bare",
        lambda: drawn(lambda samples, s: samples & ~np.int64(0xFFFF)),
    ),
    Bug(
        "grid noise in even steps",
        "noise: even numbers of steps, so the last bit of a rounded sum is bare",
        lambda: drawn(lambda samples, s: samples & ~np.int64(1)),
    ),
    Bug("grid tails cut", "noise: none beyond 2.5 s, where records are told apart for sure", lambda: drawn(_cut)),
    Bug(
        "grid noise of one sign",
        "noise: the first coordinate of each answer has noise of one sign",
        lambda: drawn(_one_sided),
    ),
    Bug(
        "sum not on the grid",
        "grid: what rounding takes off is put back, so digits below a step are bare",
        lambda: anew((NOISED, _unrounded)),
    ),
    Bug(
        "grid of a sixtyfourth",
        "grid: steps are noise / 64 and rounding to them is not charged, as large as a record",
        lambda: anew(
            ("fedcore.mechanisms.grid:FINENESS", lambda right: 2.0**-6),
            ("fedcore.mechanisms.grid:grid_sensitivity", lambda right: lambda moved, step, dim: moved),
        ),
    ),
    Bug(
        "guarded last coordinate bare",
        "noise: guarded silos add none at the last coordinate",
        lambda: anew((NOISED, _last_bare)),
        "guarded local steps",
    ),
    Bug(
        "guarded noise of all rounds",
        "noise: its key is the run's alone, so all rounds have the same",
        lambda: keyed(lambda context, total: context[:32]),
    ),
    Bug(
        "guarded noise of two rounds",
        "noise: rounds 2k and 2k + 1 have the same, whatever the sums",
        lambda: keyed(lambda context, total: context[:40] + bytes([context[40] // 2])),
    ),
    Bug("guarded key of eight bits", "noise: the key has 256 values", lambda: anew((NOISED, _weak))),
)


BUGS = tuple(Bug(bug.name, bug.breaks, bug.plant, "guarded") if bug.kind == "full batches" else bug for bug in BUGS)
