"""Bugs of the noise of guarded silos: integers on a grid, their sampler, its table and its stream."""

from __future__ import annotations

from tests.audit.bug import Bug, bug, edit

_NOISED = "fedcore.mechanisms.grid:GridGaussian.noised"
_SAMPLER = "fedcore.mechanisms.discrete_gaussian:DiscreteGaussian"
_ADDED = "discrete_gaussian(grid.noise / grid.step).add(Keystream(key), steps)"

BUGS: tuple[Bug, ...] = (
    bug(
        "tables for powers of two only",
        "to keep few tables s is rounded down to a power of two, up to half of the noise",
        "guarded",
        edit(
            _NOISED,
            (
                _ADDED,
                "discrete_gaussian(2.0 ** (math.frexp(grid.noise / grid.step)[1] - 1)).add(Keystream(key), steps)",
            ),
        ),
    ),
    bug(
        "the last sample of a shard is not drawn",
        "shards of samples end one too early, so the last coordinate has no noise",
        "guarded",
        edit(f"{_SAMPLER}.add", ("steps[at : at + _PIECE]", "steps[at : min(at + _PIECE, steps.size - 1)]")),
    ),
    bug(
        "too few samples are repeated",
        "samples that were rejected are made up for by the first ones again, which cancel in a difference",
        "guarded moments",
        edit(
            f"{_SAMPLER}.draw",
            ("words = stream.words(n + n // 32 + 8)", "words = stream.words(n)"),
            ("np.concatenate((accepted, self.draw(stream, n - accepted.size)))", "np.resize(accepted, n)"),
        ),
    ),
    bug(
        "a sampler kept by length",
        "the sampler of the first sum of a length serves later ones with more noise to add",
        "guarded differences",
        edit(
            _NOISED,
            (
                _ADDED,
                (
                    "self.__dict__.setdefault(grid.dim, discrete_gaussian(grid.noise / grid.step))"
                    ".add(Keystream(key), steps)"
                ),
            ),
        ),
    ),
    bug(
        "noise on what is not zero",
        "a coordinate that is zero for all records stays exactly zero, but for the one that is there",
        "guarded column moments",
        edit(_NOISED, (_ADDED, f"nothing = steps == 0.0\n    {_ADDED}\n    steps[nothing] = 0.0")),
    ),
    bug(
        "sampled sums of guarded silos have floating noise",
        "where records are sampled there is no grid, and noise is NumPy's doubles, whose set of values tells",
        "guarded local steps",
        edit(
            "fedcore.silo.private_silo:PrivateSilo._shard",
            ("if self._guarded else", "if self._guarded and phase.rate == 1 else"),
        ),
    ),
    bug(
        "a run's key from its name",
        "arguments in another order make the run's id the key, so whoever knows the run knows its noise",
        "guarded column moments",
        edit(
            "fedcore.silo.keys:SecretKeys.of_run",
            ("derive(self.secret, silo, run, agreed, ", "derive(run.encode(), silo, agreed, "),
        ),
    ),
)
