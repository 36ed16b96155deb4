"""Bugs of the noise of simulated silos: too little, not independent, or known to others."""

from __future__ import annotations

from tests.audit.bug import Bug, bug, edit, new_at

_DRAW = "fedcore.mechanisms.gaussian:KeyedGaussian.draw"
_RELEASED = "fedcore.silo.round_view:RoundView._released"


def _antithetic(self, run_key, context, total):
    half = -(-total.size // 2)
    drawn = _plain(self, run_key, context, total)[:half]
    both = drawn.repeat(2)[: total.size]
    both[1::2] *= -1.0
    return both


def _keeping(old):
    global _plain
    _plain = old
    return _antithetic


_plain = None

BUGS: tuple[Bug, ...] = (
    bug(
        "mirrored pairs of noise",
        "each draw serves two coordinates with opposite signs, so their sum has no noise at all",
        "full batches",
        new_at(_DRAW, _keeping),
    ),
    bug(
        "outliers of noise are cut",
        "noise is held within 1.5 standard deviations 'for convergence', so it is too small and ends somewhere",
        "restarts",
        edit(_RELEASED, ("noise *= shard.noise * scale", "noise = noise.clip(-1.5, 1.5) * (shard.noise * scale)")),
    ),
    bug(
        "sparse sums stay sparse",
        "a coordinate where all gradients are zero gets no noise, which reveals the only record that is there",
        "full batches",
        edit(_RELEASED, ("total += noise", "total += noise * (total != 0.0)")),
    ),
    bug(
        "a shard's noise keeps the unit of a question",
        "the unit of each question is multiplied into what the shard keeps, so noise shrinks with each",
        "differences",
        edit(_RELEASED, ("noise *= shard.noise * scale", "shard.noise *= scale\n        noise *= shard.noise")),
    ),
    bug(
        "noise in thousandths of a step",
        "a step's length is rounded to three digits for the noise only, so answers about short steps have none",
        "differences of softmax",
        edit(_RELEASED, ("noise *= shard.noise * scale", "noise *= shard.noise * round(scale, 3)")),
    ),
    bug(
        "noise drawn once for a shard",
        "rounds about one shard share one noise vector, so their differences are exact",
        "shards",
        edit(
            _RELEASED,
            (
                "noise = self._noise.draw(key, context, total)",
                "noise = shard.__dict__.setdefault('drawn', self._noise.draw(key, context, total)).copy()",
            ),
        ),
    ),
    bug(
        "sums that were made together count as released",
        "in a site of several silos the sums of a round are divided and sent without noise",
        "restarts",
        edit(
            "fedcore.silo.site:Site._answers",
            (
                "releases.append(",
                "one = self._silos[name]\n                "
                "one._shard(question, one._runs[query.run], phase).noise *= len(names) < 2\n"
                "                releases.append(",
            ),
        ),
    ),
)
