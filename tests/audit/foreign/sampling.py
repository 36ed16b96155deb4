"""Bugs of sampling: rates, independence, secrecy, reuse, and what the size of a sample reveals."""

from __future__ import annotations

import struct

import numpy as np

from fedcore.mechanisms.discrete_gaussian import Keystream
from fedcore.randomness import derive
from tests.audit.bug import Bug, as_if

POISSON = "fedcore.mechanisms.secret_sample:poisson_sample"
FIXED = "fedcore.mechanisms.secret_sample:fixed_size_sample"
STREAM = "fedcore.mechanisms.secret_sample:sample_stream"
SUM = "fedcore.silo.answers.gradient:Gradient.sum"


def rated(factor):
    return as_if((POISSON, lambda right: lambda stream, rate, n: right(stream, min(rate * factor, 0.999999), n)))


def streamed(key_of):
    """Samples drawn from a stream under key_of(run key, context)."""
    return as_if((STREAM, lambda right: lambda key, context: Keystream(key_of(key, context))))


def chosen_by(change):
    """Samples changed by change(chosen, shard), before they are summed."""

    def summed(right):
        def sum(self, phase, shard, chosen, draw, *arrays):
            chosen = chosen if chosen is None else np.unique(change(chosen, shard))
            return right(self, phase, shard, chosen, draw, *arrays)

        return sum

    return as_if((SUM, summed))


def _first_double(right):
    def sample(stream, rate, n):
        words = stream.words(n) / 2.0**64
        rates = np.full(n, rate)
        rates[: max(1, n // 4)] *= 2.0
        return np.flatnonzero(words < rates)

    return sample


def _pairs(right):
    return lambda stream, rate, n: np.flatnonzero(np.repeat(stream.words((n + 1) // 2) / 2.0**64, 2)[:n] < rate)


def _all_or_none(right):
    return lambda stream, rate, n: np.arange(n) if stream.words(1)[0] / 2.0**64 < rate else np.arange(0)


def _bytes(right):
    """A byte makes a coin, and the rate is rounded up to one."""
    return lambda stream, rate, n: np.flatnonzero(stream.words(n).astype(np.uint8) < np.ceil(rate * 256.0) + 2)


def _strata(right):
    """One record of each stretch of 1 / rate: always exactly the expected number."""

    def sample(stream, rate, n):
        size = round(1.0 / rate)
        starts = np.arange(0, n, size)
        return np.minimum(starts + (stream.words(len(starts)) % np.uint64(size)).astype(np.intp), n - 1)

    return sample


def _window(right):
    return lambda stream, size, n: np.sort((int(stream.words(1)[0] % np.uint64(n)) + np.arange(size)) % n)


def _repeats(right):
    return lambda stream, size, n: np.sort((stream.words(size) % np.uint64(n)).astype(np.intp))


def _late_first(right):
    """The first place stays in, in the place of another."""

    def sample(stream, size, n):
        chosen = right(stream, size, n)
        chosen[0] = 0
        return chosen

    return sample


def _epochs(right):
    """Samples of an epoch are cut from one permutation, so that each record comes once in 1 / rate rounds."""

    def drawn(self, context):
        event, n = self.event, self._shard.n
        if event.sampling != "poisson":
            return right(self, context)
        parts = round(1.0 / event.rate)
        epoch, part = divmod(self._place[2] - 1, parts)
        stream = Keystream(derive(self._run.key, "epoch", self._place[1], epoch))
        order = np.argsort(stream.words(n), kind="stable")
        return np.sort(order[part::parts])

    return drawn


def _by_size(right):
    """The sum is divided by the sample's own size."""

    def summed(self, phase, shard, chosen, draw, *arrays):
        total = right(self, phase, shard, chosen, draw, *arrays)
        return total if chosen is None or not len(chosen) else total * (shard.count / len(chosen))

    return summed


def _empty_bare(right):
    def released(self, total, context, scale):
        return total if not total.any() else right(self, total, context, scale)

    return released


def _kept(right):
    """The sample of a round's first answer serves the others too, except for one record."""

    def drawn(self, context):
        fresh = right(self, context)
        if self.answered == 1 or fresh is None:
            self._drawn = fresh
            return fresh
        return np.concatenate([self._drawn[:-1], fresh[-1:]])

    return drawn


def _address(context, take):
    phase, round = struct.unpack("<QQ", context[32:48])
    return context[:32] + struct.pack("<QQ", phase, take(round))


def _long(chosen, shard):
    return np.concatenate([chosen, np.flatnonzero(np.linalg.norm(shard.X, axis=1) > 2.0)])


def _positive(chosen, shard):
    """Class +1 is rare: a record after a chosen one joins if it is of that class."""
    after = (chosen + 1) % len(shard.y)
    return np.concatenate([chosen, after[shard.y[after] > 0]])


def _neighbour(chosen, shard):
    return np.concatenate([chosen, (chosen[:1] + 1) % len(shard.y)]) if len(chosen) else chosen


BUGS = (
    Bug(
        "rate half as large again",
        "sampling: coins show heads 1.5 times as often as is charged",
        lambda: rated(1.5),
        "coins",
    ),
    Bug(
        "rate a tenth larger",
        "sampling: coins show heads 1.1 times as often as is charged",
        lambda: rated(1.1),
        "coins",
    ),
    Bug(
        "everybody in the sample",
        "sampling: all records are in each answer that is charged as a sample",
        lambda: as_if((POISSON, lambda right: lambda stream, rate, n: np.arange(n))),
        "coins",
    ),
    Bug(
        "first quarter at twice the rate",
        "sampling: a quarter of the places is chosen twice as often as is charged",
        lambda: as_if((POISSON, _first_double)),
        "coins",
    ),
    Bug(
        "one coin for two",
        "sampling: two records are in or out together, so one reveals the other",
        lambda: as_if((POISSON, _pairs)),
        "coins",
    ),
    Bug(
        "one coin for all",
        "sampling: all are in or none, so whoever sees an answer knows who was in it",
        lambda: as_if((POISSON, _all_or_none)),
        "coins",
    ),
    Bug(
        "coins of a byte",
        "sampling: rates are rounded up to a 256th and one more, 3 % too large at a quarter",
        lambda: as_if((POISSON, _bytes)),
        "coins",
    ),
    Bug(
        "one of each stratum",
        "sampling: samples have a fixed size, and a record's place is taken by a known other",
        lambda: as_if((POISSON, _strata)),
        "coins",
    ),
    Bug(
        "epochs for coins",
        "sampling: each record is in exactly one of 1 / rate rounds, charged as independent coins",
        lambda: as_if(("fedcore.silo.round_view:RoundView._drawn_sample", _epochs)),
        "coins",
    ),
    Bug(
        "one sample for all rounds",
        "sampling: the sample of the first round is that of all",
        lambda: streamed(lambda key, context: derive(key, context[:40], "sample")),
        "coins",
    ),
    Bug(
        "one sample for two rounds",
        "sampling: rounds 2k and 2k + 1 have one sample",
        lambda: streamed(lambda key, context: derive(key, _address(context, lambda r: r // 2), "sample")),
        "coins",
    ),
    Bug(
        "one sample for ten rounds of turns",
        "sampling: ten rounds in turn have the same samples, step by step",
        lambda: streamed(lambda key, context: derive(key, _address(context, lambda r: r // 10), "sample")),
        "local steps",
    ),
    Bug(
        "samples of eight bits",
        "sampling: 256 keys for samples, which come again",
        lambda: streamed(lambda key, context: derive(derive(key, context, "sample")[:1])),
        "coins",
    ),
    Bug(
        "samples of run and address",
        "sampling: samples follow from run, plan and address, all public",
        lambda: streamed(lambda key, context: derive(b"", context[:48])),
        "local steps",
    ),
    Bug(
        "size of the sample for a divisor",
        "sampling: means are over the true size, which tells who was in",
        lambda: as_if((SUM, _by_size)),
        "coins",
    ),
    Bug(
        "no noise on an empty sum",
        "noise: a sum that is zero is released as it is, so empty samples show",
        lambda: as_if(("fedcore.silo.round_view:RoundView._released", _empty_bare)),
        "coins",
    ),
    Bug(
        "long records always in",
        "sampling: records longer than 2 are in every sample",
        lambda: chosen_by(_long),
        "coins",
    ),
    Bug(
        "class of a record draws it in",
        "sampling: records of class +1 are in twice as many samples as is charged",
        lambda: chosen_by(_positive),
        "coins",
    ),
    Bug(
        "one more in a fixed sample",
        "sampling: samples of 6 are of 7, a sixth more than is charged",
        lambda: as_if((FIXED, lambda right: lambda stream, size, n: right(stream, min(size + 1, n), n))),
        "local steps",
    ),
    Bug(
        "neighbour of the first joins",
        "sampling: whoever stands after the first of a sample is in it too",
        lambda: chosen_by(_neighbour),
        "control variates",
    ),
    Bug(
        "window for a sample",
        "sampling: samples are stretches of the file, whose others tell whether one is in",
        lambda: as_if((FIXED, _window)),
        "local steps",
    ),
    Bug(
        "sample with replacement",
        "sampling: a record may be in a sample several times, charged as once",
        lambda: as_if((FIXED, _repeats)),
        "local steps",
    ),
    Bug(
        "first place always in",
        "sampling: the record at the first place is in each sample of a fixed size",
        lambda: as_if((FIXED, _late_first)),
        "local steps",
    ),
    Bug(
        "sample of the first step kept",
        "sampling: local steps share the sample of the first but for one record",
        lambda: as_if(("fedcore.silo.round_view:RoundView._drawn_sample", _kept)),
        "control variates",
    ),
    Bug(
        "guarded sample half as large again",
        "sampling: samples of guarded silos are of 9 where 6 are charged",
        lambda: as_if((FIXED, lambda right: lambda stream, size, n: right(stream, min(size * 3 // 2, n), n))),
        "guarded local steps",
    ),
    Bug(
        "guarded samples of rounds alike",
        "sampling: guarded silos take the same samples in all rounds",
        lambda: streamed(lambda key, context: derive(key, context[:32], "sample")),
        "guarded local steps",
    ),
)
