"""Bugs of noise: too little, of another shape, not at all coordinates, known, or used twice."""

from __future__ import annotations

from tests.audit.bug import Bug, bug, edit

DRAW = "fedcore.mechanisms.gaussian:KeyedGaussian.draw"
NORMALS = "normals(self._philox.words(total.size).reshape(total.shape))"
_NP = "__import__('numpy')"
_DRAWN = f"{_NP}.random.Generator({_NP}.random.Philox(key=int(self._philox.words(1)[0])))"
KEY = "blake2b(context + total.tobytes(), key=run_key, digest_size=16)"
NOISED = "fedcore.mechanisms.grid:GridGaussian.noised"
RELEASED = "fedcore.silo.round_view:RoundView._released"
SCALED = "noise *= shard.noise * scale"

BUGS: tuple[Bug, ...] = (
    bug(
        "noise without its tails",
        "noise: what lies beyond three deviations is cut, so an answer can rule out a data set",
        "full batches",
        edit(DRAW, (NORMALS, f"{NORMALS}.clip(-3.0, 3.0)")),
    ),
    bug(
        "four uniforms for a normal",
        "noise: a sum of four uniform numbers has the variance of the noise and none of its tails",
        "shards",
        edit(DRAW, (NORMALS, f"({_DRAWN}.random((4, *total.shape)).sum(axis=0) - 2.0) * 3.0**0.5")),
    ),
    bug(
        "Laplace noise of the same variance",
        "noise: over many coordinates it protects as Gaussian noise of half the variance does",
        "moments",
        edit(DRAW, (NORMALS, f"{_DRAWN}.laplace(0.0, 0.5**0.5, total.shape)")),
    ),
    bug(
        "noise in single precision",
        "noise: of 24 bits each, so the low bits of an answer are those of the exact sum",
        "disjoint blocks",
        edit(DRAW, (NORMALS, f"{NORMALS}.astype('f4').astype('f8')")),
    ),
    bug(
        "sixteen numbers of noise",
        "noise: coordinates sixteen apart have the same noise, which their difference does not have",
        "softmax",
        edit(DRAW, (NORMALS, f"{_NP}.resize(normals(self._philox.words(16)), total.shape)")),
    ),
    bug(
        "antithetic noise",
        "noise: the second half of the coordinates has the first half's noise with the other sign",
        "network",
        edit(
            DRAW,
            (
                f"return {NORMALS}",
                "half = normals(self._philox.words((len(total) + 1) // 2))\n"
                f"    return {_NP}.concatenate([half, -half])[: len(total)]",
            ),
        ),
    ),
    bug(
        "normals in pairs",
        "noise: of an odd number of coordinates the last one has none",
        "network of numbers",
        edit(
            DRAW,
            (
                f"return {NORMALS}",
                f"noise = {_NP}.zeros(total.shape)\n    pairs = len(total) // 2\n"
                "    noise[: 2 * pairs] = normals(self._philox.words(2 * pairs))\n    return noise",
            ),
        ),
    ),
    bug(
        "noise by the sum alone",
        "noise: two answers with equal sums have equal noise, which shows that the sums are equal",
        "restarts",
        edit(DRAW, (KEY, "blake2b(total.tobytes(), key=run_key, digest_size=16)")),
    ),
    bug(
        "noise by the run alone",
        "noise: one vector masks all answers of a run, and is not in the difference of two",
        "differences",
        edit(DRAW, (KEY, "blake2b(context[:32], key=run_key, digest_size=16)")),
    ),
    bug(
        "noise by a sum's first numbers",
        "noise: sums that are equal in the first four numbers have equal noise, which is not in their difference",
        "differences of softmax",
        edit(DRAW, (KEY, "blake2b(total[:4].tobytes(), key=run_key, digest_size=16)")),
    ),
    bug(
        "a generator that is never keyed",
        "noise: it is that of a fixed public seed, which anybody can take away",
        "column moments",
        edit(DRAW, ("self._philox.start(", "str(")),
    ),
    bug(
        "sixteen bits of a key",
        "noise: there are 65,536 noise vectors, few enough to try them all",
        "guarded",
        edit(NOISED, ("add(Keystream(key), steps)", "add(Keystream(key[:2] * 16), steps)")),
    ),
    bug(
        "a sum that is not rounded",
        "noise: integers are added to a sum that is none, whose fractions of a step are sent in clear",
        "guarded moments",
        edit(NOISED, ("np.rint(steps, out=steps)\n", "\n")),
    ),
    bug(
        "few tables for all noise",
        "noise: its deviation is rounded down to a quarter of an octave",
        "guarded column moments",
        edit(
            NOISED,
            (
                "discrete_gaussian(grid.noise / grid.step)",
                "discrete_gaussian(2.0 ** (np.floor(4.0 * np.log2(grid.noise / grid.step)) / 4.0))",
            ),
        ),
    ),
    bug(
        "noise of a mean, not of a sum",
        "noise: it is multiplied by the root of the count, where the sum is divided by the count",
        "guarded evaluations",
        edit(
            "fedcore.mechanisms.grid:charged_grid",
            ("Grid.of(event.sigma * count,", "Grid.of(event.sigma * math.sqrt(count),"),
        ),
    ),
    bug(
        "sparse sums, sparse noise",
        "noise: a coordinate that no record touches has none, so its being touched is seen",
        "coins",
        edit(RELEASED, (SCALED, f"{SCALED}\n        noise[total == 0.0] = 0.0")),
    ),
    bug(
        "noise for the records that came",
        "noise: it grows with the sample, and falls below what is charged where that is small",
        "coins",
        edit(
            RELEASED,
            (SCALED, f"{SCALED}\n        noise *= 1.0 if self._drawn is None else len(self._drawn) / shard.count"),
        ),
    ),
    bug(
        "noise for the mean of a round",
        "noise: each of a round's answers has that of their mean",
        "local steps",
        edit(
            "fedcore.silo.private_silo:PrivateSilo._shard",
            ("else event.sigma * count", "else event.sigma * count / phase.schedule.answers**0.5"),
        ),
    ),
    bug(
        "noise once a round",
        "noise: only the last of a round's answers has any, and their mean a K-th of it",
        "control variates",
        edit(
            RELEASED,
            ("elif shard.noise > 0:", "elif shard.noise > 0 and self.answered == self._phase.schedule.answers:"),
        ),
    ),
    bug(
        "a variance in units of the step",
        "noise: its deviation grows with the root of the step's length, and is too small for steps beyond 1",
        "differences of a network",
        edit(RELEASED, (SCALED, "noise *= shard.noise * scale**0.5")),
    ),
    bug(
        "the grid of the first difference",
        "noise: later differences have that of the first one after a restart, whatever their step's length",
        "guarded differences",
        edit(
            RELEASED,
            ("else self._scaled_grid(scale)", "else shard.__dict__.setdefault('scaled', self._scaled_grid(scale))"),
        ),
    ),
    bug(
        "answers of a round alike",
        "noise: equal sums in a round are masked by the same noise, which their mean then has in full",
        "guarded local steps",
        edit(
            "fedcore.silo.round_view:RoundView._next_context",
            (
                "return numbered(self._address, self.answered) + self._query",
                "return self._address + self._query",
            ),
        ),
    ),
)
