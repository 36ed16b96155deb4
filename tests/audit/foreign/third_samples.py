"""Bugs of secret samples: repeated, known to others, chosen by records, or charged as another kind."""

from __future__ import annotations

from tests.audit.bug import Bug, bug, edit

_VIEW = "fedcore.silo.round_view:RoundView"
_STREAM = "sample_stream(self._run.key, context)"
_ROWS = "of_chosen[rows] = bounds[rows]"
_SUM = "fedcore.silo.answers.gradient:Gradient.clipped_sum"

BUGS: tuple[Bug, ...] = (
    bug(
        "one sample for a phase",
        "the stream of samples begins anew in each round, so who is in the sample is in all of them",
        "coins",
        edit(f"{_VIEW}._drawn_sample", (_STREAM, "sample_stream(self._run.key, self._run.named)")),
    ),
    bug(
        "secrets for noise alone",
        "only noise has the run's key, and split and samples have public ones, which the server has too",
        "guarded local steps",
        edit(f"{_VIEW}._drawn_sample", (_STREAM, "sample_stream(self._run.named, context)")),
        edit(
            "fedcore.silo.private_silo:PrivateSilo.approve",
            ("_in_order_of(key,", "_in_order_of(digest(run.encode(), plan.digest.encode()),"),
        ),
    ),
    bug(
        "samples of a fixed size for coins",
        "another record leaves a sample of fixed size, which moves a sum by twice what coins are charged for",
        "coins",
        edit(
            f"{_VIEW}._drawn_sample",
            (
                "return poisson_sample(self._samples, event.rate, records)",
                "return fixed_size_sample(self._samples, round(event.rate * records), records)",
            ),
        ),
    ),
    bug(
        "scratch rows of the last sample",
        "the row of bounds is kept between rounds and never emptied, so samples grow until all are in each",
        "coins",
        edit(
            _SUM,
            (
                "of_chosen = np.zeros_like(bounds)",
                "of_chosen = shard.__dict__.setdefault('scratch', np.zeros_like(bounds))",
            ),
        ),
    ),
    bug(
        "sums brought to their expected size",
        "the sum over a small sample is scaled up to what is expected before noise, and each part with it",
        "coins",
        edit(
            _SUM,
            (_ROWS, f"{_ROWS}\n            shard = replace(shard, X=shard.X * (shard.count / max(len(chosen), 1)))"),
        ),
    ),
    bug(
        "coins for records that count",
        "only records that can contribute are given a coin, so one that cannot moves the coins of all others",
        "coins",
        edit(
            _SUM,
            (
                _ROWS,
                "alive = np.flatnonzero(shard.X.any(axis=1))\n"
                "            rows = alive[rows[rows < len(alive)]]\n            of_chosen[rows] = bounds[rows]",
            ),
        ),
    ),
    bug(
        "both classes in a sample",
        "a sample is drawn again until it has both classes, so the only record of its class is in all of them",
        "coins",
        edit(
            f"{_VIEW}._drawn_sample",
            (
                "return poisson_sample(self._samples, event.rate, records)",
                "for _ in range(200):\n            chosen = poisson_sample(self._samples, event.rate, records)\n"
                "            if len(np.unique(self._shard.y[chosen])) > 1:\n"
                "                break\n        return chosen",
            ),
        ),
    ),
    bug(
        "the rarer class has two coins",
        "records of the class with fewer records are drawn twice, so their rate is above the charged one",
        "coins",
        edit(
            f"{_VIEW}._drawn_sample",
            (
                "return poisson_sample(self._samples, event.rate, records)",
                "first, second = (poisson_sample(self._samples, event.rate, records) for _ in range(2))\n"
                "        rare = 1.0 if (self._shard.y > 0).mean() < 0.5 else -1.0\n"
                "        return np.union1d(first, second[self._shard.y[second] == rare])",
            ),
        ),
    ),
    bug(
        "a stream of samples for a shard",
        "samples come one after the other from a stream that an approval begins anew, with the same ones again",
        "coins",
        edit(
            f"{_VIEW}._drawn_sample",
            (_STREAM, "self._shard.__dict__.setdefault('stream', sample_stream(self._run.key, self._run.named))"),
        ),
    ),
    bug(
        "no sample is empty",
        "the first place is in each sample, so that none is empty, and whoever is there is in all of them",
        "coins",
        edit(
            "fedcore.mechanisms.secret_sample:poisson_sample",
            ("return np.flatnonzero(stream", "return np.union1d([0], np.flatnonzero(stream"),
            ("math.floor(math.ldexp(rate, 64))))", "math.floor(math.ldexp(rate, 64)))))"),
        ),
    ),
    bug(
        "long records are sampled first",
        "half of a sample are the longest records, so one that is long is in all of them and moves others out",
        "local steps",
        edit(
            _SUM,
            (
                "rows = shard.rows(chosen)",
                "longest = np.argsort(-np.linalg.norm(shard.X, axis=1))[: len(chosen) // 2]\n"
                "        rows = shard.rows(np.union1d(longest, chosen[: len(chosen) - len(longest)]))",
            ),
        ),
    ),
)
