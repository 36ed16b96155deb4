"""Silos with one bug each in their samples, in the number of their answers, or in their rows."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from fedcore.arrays import pack
from fedcore.ledger.memory import MemoryLedger
from fedcore.ledger.rows import Rows
from fedcore.mechanisms.secret_sample import fixed_size_sample, poisson_sample, sample_stream
from fedcore.silo.private_silo import PrivateSilo
from tests.audit.planted import VIEW, Planted
from tests.audit.planted_noise import bent, with_noise

STREAM = "fedcore.silo.keys.secret.sample_stream"


class Forgetful(MemoryLedger):
    """A ledger without some of its rows: the silo answers those addresses as if for the first time."""

    part = 1

    def _lost(self, run, phase, round):
        return hashlib.sha256(f"{run} {phase} {round}".encode()).digest()[0] % self.part == 0

    def find(self, run, phase, round):
        return None if self._lost(run, phase, round) else super().find(run, phase, round)

    def commit(self, run, row, lease=0):
        if self._lost(run, row.phase, row.round):
            self._runs[run][2].put(row)
            self._newest = (run, row)
        else:
            super().commit(run, row, lease)


class ForgetfulAtTimes(Forgetful):
    part = 64


class ForgetfulSilo(PrivateSilo):
    """A silo that forgets one address in 250, whatever its ledger."""

    def answer(self, question, *rest):
        lost = hashlib.sha256(repr((question.run, question.phase, question.round)).encode()).digest()[0] == 0
        known = getattr(self.ledger, "_runs", {}).get(question.run)
        if lost and known is not None:
            others = Rows()
            for row in known[2]:
                if (row.phase, row.round) != (question.phase, question.round):
                    others.put(row)
            self.ledger._runs[question.run] = (*known[:2], others)
            self.ledger._newest = None
        return super().answer(question, *rest)


class OfOneAnswer(PrivateSilo):
    """A silo that computes the first answer of a run, and sends it in every round."""

    def answer(self, question, *rest):
        first = self.__dict__.setdefault("first", {})
        if question.run not in first or question.round == 1:
            first[question.run] = super().answer(question, *rest)
            return first[question.run]
        return first[question.run]._replace(phase=question.phase, round=question.round)


def with_commit(change):
    """A silo that commits another row than it should, or none: `change(row)`."""

    class Silo(PrivateSilo):
        def __init__(self, name, records, key, ledger, *rest, **more):
            super().__init__(name, records, key, ledger, *rest, **more)
            commit = ledger.commit
            ledger.commit = lambda run, row, lease=0: commit(run, change(row), lease)

    return Silo


_streams = {"run": b"", "empty": False}


class AsksWithDigest(PrivateSilo):
    """Coins keyed by the question's digest and the run key, not by the address, as by a forged digest."""

    def answer(self, question, *rest):
        _streams["run"] = pack(question.arrays)
        return super().answer(question, *rest)


def epochs(stream, size, records):
    """Samples that go round: records of the last sample are not in the next."""
    _streams["turn"] = (_streams.get("turn", -1) + 1) % 3
    order = np.random.default_rng(9).permutation(records)
    start = _streams["turn"] * size
    return np.sort(np.take(order, range(start, start + size), mode="wrap"))


def coins(change):
    return {VIEW + "poisson_sample": lambda stream, rate, records: change(stream, rate, records)}


def sized(change):
    return {VIEW + "fixed_size_sample": lambda stream, size, records: change(stream, size, records)}


def noted(chosen):
    _streams["empty"] = not len(chosen)
    return chosen


def without(places, records, chosen):
    return np.setdiff1d(chosen, np.arange(records)[places])


def one_stream(key, context):
    return sample_stream(key, b"")


class _Held:
    """A stream that repeats the same words for ever."""

    def __init__(self, key, context):
        self.key, self.context = key, context

    def words(self, count):
        return sample_stream(self.key, self.context).words(count)


ROUND = {STREAM: one_stream}
OLD = {
    "a ledger that answers twice": Planted(ledger=Forgetful),
    "a doubled sampling rate": Planted("coins", patches=coins(lambda s, rate, n: poisson_sample(s, 2 * rate, n))),
}
NAMED = {
    "b: coins shared by all rounds": Planted("coins", patches=ROUND),
    "b: samples of local steps shared by all rounds": Planted("local steps", patches=ROUND),
    "b: one sample for all asks of a round": Planted("local steps", patches={STREAM: _Held}),
    "e: coins keyed by the asker's digest": Planted(
        "coins",
        AsksWithDigest,
        {STREAM: lambda key, context: sample_stream(key, _streams["run"])},
    ),
}
OWN = {
    "coins shared by silos": Planted("coins", patches={STREAM: lambda key, c: sample_stream(b"", c)}),
    "no noise on an empty sample": Planted(
        "coins",
        with_noise(bent(lambda z, total, number: z * (not _streams["empty"]))),
        coins(lambda s, rate, n: noted(poisson_sample(s, rate, n))),
    ),
    "the first place is never drawn": Planted(
        "coins", patches=coins(lambda s, rate, n: without([0], n, poisson_sample(s, rate, n)))
    ),
    "the last place is always drawn": Planted(
        "coins", patches=coins(lambda s, rate, n: np.union1d(poisson_sample(s, rate, n), [n - 1]))
    ),
    "a fixed number instead of coins": Planted(
        "coins", patches=coins(lambda s, rate, n: fixed_size_sample(s, round(rate * n), n))
    ),
    "a sample of one too many": Planted("local steps", patches=sized(lambda s, k, n: fixed_size_sample(s, k + 1, n))),
    "samples that go round": Planted("local steps", patches=sized(epochs)),
    "one address in 64 answered twice": Planted(ledger=ForgetfulAtTimes),
    "one address in 256 forgotten by the silo": Planted(opener=ForgetfulSilo),
    "one answer for all rounds of a run": Planted(opener=OfOneAnswer),
    "charged for fewer answers": Planted(
        "local steps", with_commit(lambda row: row._replace(event=replace(row.event, count=row.event.count - 1)))
    ),
    "charged for more noise": Planted(
        opener=with_commit(lambda row: row._replace(event=replace(row.event, sigma=2 * row.event.sigma)))
    ),
}
