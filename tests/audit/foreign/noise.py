"""Bugs in scale, shape and correlation of the noise of silos with a public seed."""

from __future__ import annotations

import struct
from hashlib import blake2b

import numpy as np

from tests.audit.bug import Bug, as_if

DRAW = "fedcore.mechanisms.gaussian:KeyedGaussian.draw"
RELEASED = "fedcore.silo.round_view:RoundView._released"


def shaped(change):
    """The product with its standard normals changed by `change`."""
    return as_if((DRAW, lambda right: lambda self, key, context, total: change(right(self, key, context, total))))


def keyed(key_of):
    """Standard normals under a key made by key_of(run key, context, bytes of the sum)."""

    def draw(self, run_key, context, total):
        key = int.from_bytes(key_of(run_key, context, total.tobytes()), "little")
        return np.random.Generator(np.random.Philox(key=key)).standard_normal(total.shape)

    return as_if((DRAW, lambda right: draw))


def scaled(factor):
    """Noise of an answer times factor(round, number in the round, rounds of the phase)."""

    def released(right):
        def noised(self, total, context, scale):
            noise = self._shard.noise
            self._shard.noise = noise * factor(self._place[2], self.answered, self._phase.rounds)
            try:
                return right(self, total, context, scale)
            finally:
                self._shard.noise = noise

        return noised

    return as_if((RELEASED, released))


def place(context):
    """Phase and round of a context."""
    return struct.unpack("<QQ", context[32:48])


def _mac(key, *parts):
    return blake2b(b"".join(parts), key=key, digest_size=16).digest()


def _fixed_last(n):
    n[-1] = 0.0
    return n


def _weak_third(n):
    n[n.size // 3] *= 0.5
    return n


def _common(share):
    def change(n):
        return np.sqrt(1.0 - share) * n + np.sqrt(share) * n[0]

    return change


def _neighbours(n):
    return (n + np.roll(n, 1)) / np.sqrt(2.0)


def _uniform(n):
    from scipy.special import ndtr

    return np.sqrt(12.0) * (ndtr(n) - 0.5)


def _laplace(n):
    from scipy.special import ndtr

    u = ndtr(n) - 0.5
    return -np.sign(u) * np.log(np.maximum(1.0 - 2.0 * np.abs(u), 1e-300)) / np.sqrt(2.0)


def _logistic(n):
    from scipy.special import log_ndtr

    return (log_ndtr(n) - log_ndtr(-n)) * np.sqrt(3.0) / np.pi


def _sphere(n):
    return n * np.sqrt(n.size) / np.linalg.norm(n)


def _positive_first(n):
    n[0] = abs(n[0])
    return n


def _two_points(n):
    n[::8] = np.sign(n[::8])
    return n


def _antithetic(key, context, total):
    phase, round = place(context)
    return _mac(key, context[:32], struct.pack("<QQ", phase, (round + 1) // 2))


def _sign_of_round(right):
    def draw(self, run_key, context, total):
        key = int.from_bytes(_antithetic(run_key, context, total), "little")
        normals = np.random.Generator(np.random.Philox(key=key)).standard_normal(total.shape)
        return normals if place(context)[1] % 2 else -normals

    return draw


def _tenth(key, context, total):
    phase, round = place(context)
    return _mac(key, context[:32], struct.pack("<QQ", phase, 10)) if round % 10 == 0 else _mac(key, context, total)


def _turn(key, context, total):
    return _mac(key, context[:48])


BUGS = (
    Bug(
        "half of the noise",
        "noise: half of the standard deviation, twice the charged mu",
        lambda: shaped(lambda n: 0.5 * n),
    ),
    Bug("noise of 85 percent", "noise: 15 % too little, in each answer", lambda: shaped(lambda n: 0.85 * n), "coins"),
    Bug("noise of 97 percent", "noise: 3 % too little, in each answer", lambda: shaped(lambda n: 0.97 * n)),
    Bug(
        "noise for one record less",
        "noise: sigma times n - 1 on a sum that is divided by n, 5 % too little",
        lambda: shaped(lambda n: 0.95 * n),
        "softmax",
    ),
    Bug(
        "odd rounds at 80 percent",
        "noise: 20 % too little in each second round",
        lambda: scaled(lambda round, asked, rounds: 0.8 if round % 2 else 1.0),
    ),
    Bug(
        "first round bare",
        "noise: none in the first round of each phase",
        lambda: scaled(lambda round, asked, rounds: float(round > 1)),
        "shards",
    ),
    Bug(
        "last round bare",
        "noise: none in the last round of a phase",
        lambda: scaled(lambda round, asked, rounds: float(round < rounds)),
    ),
    Bug(
        "later steps bare",
        "noise: only the first local step of a round has any",
        lambda: scaled(lambda round, asked, rounds: float(asked == 1)),
        "local steps",
    ),
    Bug(
        "last step at 70 percent",
        "noise: 30 % too little in the last of the local steps of a round",
        lambda: scaled(lambda round, asked, rounds: 0.7 if asked == 3 else 1.0),
        "control variates",
    ),
    Bug(
        "noise fades with rounds",
        "noise: falls by a third from the first round to the last",
        lambda: scaled(lambda round, asked, rounds: 1.0 - round / rounds / 3.0),
    ),
    Bug(
        "noise a step per ten rounds bare",
        "noise: none in each tenth round",
        lambda: scaled(lambda round, asked, rounds: float(round % 10 != 7)),
    ),
    Bug("last coordinate bare", "noise: none at the last coordinate", lambda: shaped(_fixed_last), "network"),
    Bug(
        "one coordinate at half",
        "noise: half at one coordinate, so at that one mu is twice the charge",
        lambda: shaped(_weak_third),
    ),
    Bug(
        "half-normal coordinate",
        "noise: the first coordinate has noise of one sign only",
        lambda: shaped(_positive_first),
        "local steps",
    ),
    Bug(
        "tails cut at two",
        "noise: none beyond 2 sigma, so answers there tell records apart for sure",
        lambda: shaped(lambda n: np.clip(n, -2.0, 2.0)),
    ),
    Bug(
        "tails cut at three",
        "noise: none beyond 3 sigma, more of it than delta allows over 120 rounds",
        lambda: shaped(lambda n: np.clip(n, -3.0, 3.0)),
    ),
    Bug(
        "normals of half steps",
        "noise: multiples of sigma / 2, so the remainder of the sum is bare",
        lambda: shaped(lambda n: np.rint(2.0 * n) / 2.0),
    ),
    Bug(
        "normals at half precision",
        "noise: numbers of 11 bits, so the low digits of a sum are bare",
        lambda: shaped(lambda n: n.astype(np.float16).astype(np.float64)),
    ),
    Bug(
        "normals at single precision",
        "noise: numbers of 24 bits, so the low digits of a sum are bare",
        lambda: shaped(lambda n: n.astype(np.float32).astype(np.float64)),
        "coins",
    ),
    Bug(
        "uniform noise",
        "noise: uniform of the right variance, whose ends tell records apart for sure",
        lambda: shaped(_uniform),
    ),
    Bug(
        "Laplace noise",
        "noise: Laplace of the right variance, twice the Fisher information: mu sqrt(2) too large",
        lambda: shaped(_laplace),
    ),
    Bug(
        "logistic noise",
        "noise: logistic of the right variance, 1.097 times the Fisher information of normals",
        lambda: shaped(_logistic),
    ),
    Bug(
        "signs at each eighth coordinate",
        "noise: each eighth coordinate has one of two values only",
        lambda: shaped(_two_points),
    ),
    Bug(
        "noise on a sphere",
        "noise: its length is always sqrt(d) sigma, so the length of answer minus guess is exact",
        lambda: shaped(_sphere),
    ),
    Bug(
        "noise centred",
        "noise: its mean over coordinates is taken off, so the sum of all coordinates is bare",
        lambda: shaped(lambda n: n - n.mean()),
    ),
    Bug(
        "noise half common",
        "noise: half of the variance is common to all coordinates, differences have half",
        lambda: shaped(_common(0.5)),
    ),
    Bug(
        "noise a sixth common",
        "noise: 15 % of the variance is common to all coordinates, differences lack it",
        lambda: shaped(_common(0.15)),
        "local steps",
    ),
    Bug(
        "noise of neighbours",
        "noise: coordinates share halves with the next, alternating signs cancel it",
        lambda: shaped(_neighbours),
    ),
    Bug(
        "noise of two rounds alike",
        "noise: rounds 2k and 2k + 1 have the same normals, their difference is bare",
        lambda: keyed(lambda key, context, total: _mac(key, context[:40], bytes([place(context)[1] // 2 % 256]))),
    ),
    Bug(
        "noise of two rounds opposed",
        "noise: rounds 2k - 1 and 2k have opposite normals, their sum is bare",
        lambda: as_if((DRAW, _sign_of_round)),
    ),
    Bug("each tenth round alike", "noise: all rounds that 10 divides have the same normals", lambda: keyed(_tenth)),
    Bug(
        "noise of a turn alike",
        "noise: the local steps of a round have the same normals",
        lambda: keyed(_turn),
        "local steps",
    ),
    Bug(
        "noise of phases alike",
        "noise: round r has the same normals in all phases",
        lambda: keyed(lambda key, context, total: _mac(key, context[:32], context[40:])),
        "shards",
    ),
    Bug(
        "noise from public numbers",
        "noise: its key is run, plan, address and query, which the asker knows",
        lambda: keyed(lambda key, context, total: _mac(b"", context)),
    ),
    Bug(
        "key of sixteen bits",
        "noise: 65,536 keys, which can all be tried",
        lambda: keyed(lambda key, context, total: _mac(key, context, total)[:2]),
    ),
    Bug(
        "key of eight bits",
        "noise: 256 keys, so rounds share their normals",
        lambda: keyed(lambda key, context, total: _mac(key, context, total)[:1]),
        "coins",
    ),
    Bug(
        "noise not keyed by the sum",
        "noise: other records under the same key and address get the same normals",
        lambda: keyed(lambda key, context, total: _mac(key, context)),
    ),
    Bug(
        "noise keyed by a rounded sum",
        "noise: two models so near that sums hardly differ get the same normals",
        lambda: keyed(lambda key, context, total: _mac(key, np.frombuffer(total).round(3).tobytes())),
        "disjoint blocks",
    ),
)
