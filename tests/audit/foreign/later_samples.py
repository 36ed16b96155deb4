"""Bugs of samples: not secret, not anew, not of the charged rate, or drawn with a look at records."""

from __future__ import annotations

from tests.audit.bug import Bug, bug, edit

DRAWN = "fedcore.silo.round_view:RoundView._drawn_sample"
STREAM = "sample_stream(self._run.key, context)"
COINS = "return poisson_sample(self._samples, event.rate, records)"
FIXED = "return fixed_size_sample(self._samples, int(count), records)"
POISSON = "fedcore.mechanisms.secret_sample:poisson_sample"
ONCE = "return np.flatnonzero(stream.words(records) < np.uint64(math.floor(math.ldexp(rate, 64))))"
SIZED = "fedcore.mechanisms.secret_sample:fixed_size_sample"

BUGS: tuple[Bug, ...] = (
    bug(
        "one sample for a run",
        "sampling: all rounds are about the same records, so nothing is gained by it",
        "coins",
        edit(DRAWN, (STREAM, "sample_stream(self._run.key, self._run.named)")),
    ),
    bug(
        "a sample that everybody knows",
        "sampling: it follows from the run's id, its plan and the question, which the server knows",
        "guarded local steps",
        edit(DRAWN, (STREAM, "sample_stream(self._run.named, context)")),
    ),
    bug(
        "one sample for a round",
        "sampling: all local steps of a round are about the same records, where each is charged for its own sample",
        "local steps",
        edit(
            "fedcore.silo.round_view:RoundView._sample",
            ("if self._phase.question.one_sample and self._drawn is not None:", "if self._drawn is not None:"),
        ),
    ),
    bug(
        "as many of each class",
        "sampling: the rate of a record is decided by how many others have its label",
        "coins",
        edit(
            DRAWN,
            (
                COINS,
                "first = self._shard.y > 0\n"
                "        shares = np.where(first, first.mean(), 1.0 - first.mean())\n"
                "        rates = np.minimum(event.rate / (2.0 * shares), 0.99)\n"
                "        return np.flatnonzero(self._samples.words(records) < rates * 2.0**64)",
            ),
        ),
    ),
    bug(
        "a stretch for a sample",
        "sampling: records are in it with their neighbours, whose gradients tell which stretch it is",
        "local steps",
        edit(
            SIZED,
            (
                "while True:",
                "start = int(stream.words(1)[0] % records)\n"
                "    return np.sort((start + np.arange(size)) % records)\n    while True:",
            ),
        ),
    ),
    bug(
        "a coin for two",
        "sampling: records at places 2 i and 2 i + 1 are in a sample together, and one reveals the other",
        "coins",
        edit(POISSON, ("stream.words(records) <", "np.repeat(stream.words((records + 1) // 2), 2)[:records] <")),
    ),
    bug(
        "a rate among the others",
        "sampling: a coin's rate is the expected size over one record less, 5 % above what is charged",
        "coins",
        edit(POISSON, ("math.ldexp(rate, 64)", "math.ldexp(min(rate * records / (records - 1), 0.999), 64)")),
    ),
    bug(
        "samples filled up",
        "sampling: one that is smaller than expected takes further records, so records are in it more often",
        "coins",
        edit(
            POISSON,
            (
                ONCE,
                "words = stream.words(records)\n"
                "    chosen = np.flatnonzero(words < np.uint64(math.floor(math.ldexp(rate, 64))))\n"
                "    least = round(rate * records)\n"
                "    return chosen if len(chosen) >= least else np.sort(np.argsort(words)[:least])",
            ),
        ),
    ),
    bug(
        "one record more",
        "sampling: a sample has one record more than its sum is charged for",
        "control variates",
        edit(
            SIZED,
            ("np.partition(words, size - 1)[size - 1]", "np.partition(words, size)[size]"),
            ("if len(chosen) == size:", "if len(chosen) == size + 1:"),
        ),
    ),
    bug(
        "words used again",
        "sampling: the next draw of a stream begins with the words of the last, so a round's samples are one",
        "guarded local steps",
        edit(
            "fedcore.mechanisms.discrete_gaussian:Keystream.words",
            ("self._at = start + n\n", "\n"),
            ("return self._ahead[start : self._at]", "return self._ahead[start : start + n]"),
        ),
    ),
    bug(
        "samples of records that are not zero",
        "sampling: how often a record is in a sample depends on how many others are zero",
        "local steps",
        edit(
            DRAWN,
            (
                FIXED,
                "some = np.flatnonzero(self._shard.X.any(axis=1))\n"
                "        some = some if len(some) >= count else np.arange(records)\n"
                "        return some[fixed_size_sample(self._samples, int(count), len(some))]",
            ),
        ),
    ),
)
