"""Silos whose noise has one bug each."""

from __future__ import annotations

import hashlib

import numpy as np

from fedcore.mechanisms.gaussian import KeyedGaussian
from fedcore.mechanisms.grid import Grid, GridGaussian
from fedcore.silo.private_silo import PrivateSilo
from fedcore.silo.round_view import RoundView
from tests.audit.planted import VIEW, Planted


class Noise(KeyedGaussian):
    """Noise that `bent(z, total, number)` changes: z is the right one, `number` the draw's in its run.

    A repeated question gets its earlier number.
    """

    def __init__(self, bent=None, keyed=None):
        super().__init__()
        self.bent, self.keyed, self.numbers, self.last = bent, keyed, {}, {}

    def draw(self, run_key, context, total):
        mine = self.numbers.setdefault(run_key, {})
        digest = hashlib.sha256(context + total.tobytes()).digest()
        number = mine.setdefault(digest, len(mine))
        if self.keyed is not None:
            z = super().draw(*self.keyed(run_key, context, total, number))
        else:
            z = super().draw(run_key, context, total)
        return z if self.bent is None else self.bent(self, z, total, number)


def bent(change):
    """A silo whose noise is changed: `change(z, total, number)`."""
    return lambda: Noise(bent=lambda _, z, total, number: change(z, total, number))


def keyed(by):
    """A silo whose noise is keyed by `by(run_key, context, total, number)`."""
    return lambda: Noise(keyed=by)


def with_noise(noise, guarded=False):
    """An opener of silos with the noise that `noise()` makes."""

    def opened(name, records, keys, ledger):
        silo = PrivateSilo(name, records, keys, ledger, guarded=guarded)
        setattr(silo, "_grid_noise" if guarded else "_noise", noise())
        return silo

    return opened


def after_the_last(change):
    """Every second draw is made of the one before."""

    def made(noise, z, total, number):
        first = noise.last.setdefault(number // 2, z) if number % 2 == 0 else noise.last.get(number // 2, z)
        return z if number % 2 == 0 else change(first, z)

    return lambda: Noise(bent=made)


def chain(noise, z, total, number):
    before = noise.last.get(number - 1)
    noise.last[number] = z if before is None else 0.4 * before + np.sqrt(1 - 0.16) * z
    return noise.last[number]


def one(z, at, factor):
    z[at] *= factor
    return z


def rare(total, number, many):
    return hashlib.sha256(total.tobytes() + number.to_bytes(4, "little")).digest()[0] % many == 0


def mixed(z, weight):
    """All coordinates share a part of their noise, each with variance 1."""
    return np.sqrt(1 - weight) * z + np.sqrt(weight) * np.roll(z, 1).sum() / np.sqrt(len(z))


def students(z, total, number):
    rng = np.random.default_rng(abs(hash(z.tobytes())))
    return rng.standard_t(5, len(z)) / np.sqrt(5 / 3)


def uniform(z, total, number):
    return np.random.default_rng(abs(hash(z.tobytes()))).uniform(-np.sqrt(3), np.sqrt(3), len(z))


def twelve(z, total, number):
    return np.random.default_rng(abs(hash(z.tobytes()))).uniform(-0.5, 0.5, (12, len(z))).sum(axis=0)


class OneCoordinateOfGrid(GridGaussian):
    def noised(self, run_key, context, total, grid):
        done = super().noised(run_key, context, total, grid)
        done[3] = np.rint((total[3] + 0.05 * (done[3] - total[3])) / grid.step) * grid.step
        return done


class WithoutKeyOfGrid(GridGaussian):
    def noised(self, run_key, context, total, grid):
        return super().noised(b"", context, total, grid)


class CoarseGrid(GridGaussian):
    def noised(self, run_key, context, total, grid):
        coarse = Grid(grid.noise, 4 * grid.step, grid.limit, grid.dim)
        return super().noised(run_key, context, total, coarse)


def with_scale(change):
    """Noise on a sum is multiplied by `change(scale)` in place of the length of the step."""
    right = RoundView._released
    return {
        VIEW + "RoundView._released": lambda view, total, context, scale: right(view, total, context, change(scale))
    }


NOT_SCALED = with_scale(lambda scale: 1.0)
SCALED_TWICE = with_scale(lambda scale: scale**2)
LESS_ON_SHORT_STEPS = with_scale(lambda scale: scale * (0.9 if scale < 1.0 else 1.0))


def _(make, kind="full batches"):
    return Planted(kind, with_noise(make))


OLD = {
    "noise times 0.5": _(bent(lambda z, total, number: 0.5 * z)),
    "noise times 0.9": _(bent(lambda z, total, number: 0.9 * z)),
    "no noise": _(bent(lambda z, total, number: 0.0 * z)),
    "one noise vector per run": _(keyed(lambda key, context, total, number: (key, b"", np.zeros_like(total)))),
    "noise keyed by the sum alone": _(keyed(lambda key, context, total, number: (b"", b"", total))),
    "noise keyed by the address alone": _(
        keyed(lambda key, context, total, number: (key, context, np.zeros_like(total)))
    ),
}
NAMED = {
    "a: one coordinate times 0.05": _(bent(lambda z, total, number: one(z, 7, 0.05))),
    "c: one release in 256 without noise": _(
        bent(lambda z, total, number: z * (hashlib.sha256(z.tobytes()).digest()[0] != 0))
    ),
    "d: noise without the run key": _(keyed(lambda key, context, total, number: (b"", context, total))),
    "e: noise keyed by the asker's digest": _(keyed(lambda key, context, total, number: (key, b"asker", total))),
}
OWN = {
    "one coordinate times 0.05, in the last phase": Planted(
        "shards", with_noise(bent(lambda z, total, number: one(z, 4, 0.05) if number >= 32 else z))
    ),
    "one coordinate times 0.6": _(bent(lambda z, total, number: one(z, 11, 0.6))),
    "last coordinate without noise": _(bent(lambda z, total, number: one(z, -1, 0.0))),
    "noise times 0.9 in the last phase": Planted(
        "shards", with_noise(bent(lambda z, total, number: z * (0.9 if number >= 32 else 1.0)))
    ),
    "less noise in later rounds": _(bent(lambda z, total, number: z * (1.1 - 0.2 * number / 119))),
    "less noise on large sums": _(bent(lambda z, total, number: z * (0.9 if np.abs(total).sum() > 1.0 else 1.0))),
    "noise of changing size": _(bent(lambda z, total, number: z * (1.2 if rare(total, number, 2) else 0.748))),
    "one number in 1,000 without noise": _(
        bent(
            lambda z, total, number: z * (np.frombuffer(hashlib.shake_128(z.tobytes()).digest(2 * len(z)), "<u2") >= 66)
        )
    ),
    "one release in 512 times 0.3": _(
        bent(
            lambda z, total, number: z * (0.3 if int.from_bytes(hashlib.sha256(z.tobytes()).digest()[:2]) < 128 else 1)
        )
    ),
    "two coordinates share noise": _(bent(lambda z, total, number: np.r_[z[:5], z[4], z[6:]])),
    "a part shared by all coordinates": _(bent(lambda z, total, number: mixed(z, 0.04))),
    "noise again with the other sign": Planted(opener=with_noise(after_the_last(lambda old, new: -old))),
    "noise again, shifted by one": Planted(opener=with_noise(after_the_last(lambda old, new: np.roll(old, 1)))),
    "noise again, in reverse": Planted(opener=with_noise(after_the_last(lambda old, new: old[::-1].copy()))),
    "noise again, in another order": Planted(
        opener=with_noise(after_the_last(lambda old, new: old[np.random.default_rng(5).permutation(len(old))]))
    ),
    "half of the noise again": Planted(
        opener=with_noise(after_the_last(lambda old, new: np.r_[old[: len(old) // 2], new[len(old) // 2 :]]))
    ),
    "noise that remembers the last round": Planted(opener=with_noise(lambda: Noise(bent=chain))),
    "noise keyed by the round alone": _(
        keyed(lambda key, context, total, number: (b"silo", number.to_bytes(2, "little"), np.zeros_like(total)))
    ),
    "keys of 16 bits": _(
        keyed(
            lambda key, context, total, number: (
                b"",
                hashlib.sha256(key + context + total.tobytes()).digest()[:2],
                np.zeros_like(total),
            )
        )
    ),
    "heavy tails (Student, 5)": _(bent(students)),
    "uniform noise": _(bent(uniform)),
    "sum of 12 uniforms": _(bent(twelve)),
    "noise cut off at 3 sigma": _(bent(lambda z, total, number: np.clip(z, -3.0, 3.0))),
    "noise in float32": _(bent(lambda z, total, number: z.astype(np.float32).astype(np.float64))),
    "noise in steps of 2^-10": _(bent(lambda z, total, number: np.rint(z * 1024) / 1024)),
    "noise times 0.9, local steps": _(bent(lambda z, total, number: 0.9 * z), "local steps"),
    "one coordinate times 0.05, control variates": _(
        bent(lambda z, total, number: one(z, 2, 0.05)), "control variates"
    ),
    "noise without the run key, local steps": _(
        keyed(lambda key, context, total, number: (b"", context, total)), "local steps"
    ),
    "one coordinate times 0.05, softmax": _(bent(lambda z, total, number: one(z, 9, 0.05)), "softmax"),
    "noise times 0.9, network": _(bent(lambda z, total, number: 0.9 * z), "network"),
    "noise times 0.9, moments": _(bent(lambda z, total, number: 0.9 * z), "moments"),
    "noise times 0.9, column moments": _(bent(lambda z, total, number: 0.9 * z), "column moments"),
    "noise times 0.9, largest eigenvalue": _(bent(lambda z, total, number: 0.9 * z), "largest eigenvalue"),
    "noise times 0.9, evaluations": _(bent(lambda z, total, number: 0.9 * z), "evaluations"),
    "noise times 0.9, restarts": _(bent(lambda z, total, number: 0.9 * z), "restarts"),
    "noise times 0.9, differences": _(bent(lambda z, total, number: 0.9 * z), "differences"),
    "noise not scaled by the step": Planted("differences", patches=NOT_SCALED),
    "noise scaled by the step twice": Planted("differences", patches=SCALED_TWICE),
    "noise keyed by the address alone, differences": _(
        keyed(lambda key, context, total, number: (key, context, np.zeros_like(total))), "differences"
    ),
    "one noise vector per run, differences": _(
        keyed(lambda key, context, total, number: (key, b"", np.zeros_like(total))), "differences"
    ),
    "noise times 0.9 on short steps": Planted("differences", patches=LESS_ON_SHORT_STEPS),
    "a grid of four times the step, differences": Planted("guarded differences", with_noise(CoarseGrid, True)),
    "one coordinate times 0.05, guarded": Planted("guarded", with_noise(OneCoordinateOfGrid, True)),
    "noise without the run key, guarded": Planted("guarded", with_noise(WithoutKeyOfGrid, True)),
    "a grid of four times the step, guarded": Planted("guarded", with_noise(CoarseGrid, True)),
}
