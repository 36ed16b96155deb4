"""Bugs of an answer's records, their preparation when a silo opens, and the answer's address."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedcore.data.records import Records
from fedcore.ledger.ledger import payload_digest
from fedcore.messages import Release
from tests.audit.bug import Bug, as_if

SHARD = "fedcore.silo.private_silo:PrivateSilo._shard"
ANSWER = "fedcore.silo.private_silo:PrivateSilo.answer"
SCALE = "fedcore.silo.answers.gradient_difference:GradientDifference.scale"


def cut(places_of):
    """Shards at places_of(start, stop, round, number of records) instead of [start, stop)."""

    def piece_of(right):
        def shard(self, question, run, phase):
            self._shards.pop(question.run, None)
            found = right(self, question, run, phase)
            start, stop = places_of(found.at.start, found.at.stop, question.round, len(run.y))
            at = slice(start, stop)
            self._shards.pop(question.run, None)
            return replace(found, at=at, X=run.X[at], y=run.y[at])

        return shard

    return as_if((SHARD, piece_of))


def opened(change):
    """Silos whose features and labels are `change(X, y)`."""

    def init(right):
        def opening(self, name, records, *args, **kwargs):
            X, y = change(np.array(records.X), np.array(records.y))
            right(self, name, Records(X, y, records.bound), *args, **kwargs)

        return opening

    return as_if(("fedcore.silo.private_silo:PrivateSilo.__init__", init))


def _sorted(X, y):
    order = np.argsort(np.nan_to_num(X[:, 0]), kind="stable")
    return X[order], y[order]


def _centred(X, y):
    return X - np.where(np.isfinite(X), X, 0.0).mean(axis=0), y


def _standardised(X, y):
    finite = np.where(np.isfinite(X), X, 0.0)
    return X / np.maximum(finite.std(axis=0), 1e-3), y


def _by_median(X, y):
    return X / max(1.0, float(np.median(np.linalg.norm(np.nan_to_num(X), axis=1)))), y


def _largest_label(X, y):
    return X, y / max(1.0, float(np.abs(np.nan_to_num(y)).max(initial=0.0)))


def _balanced(X, y):
    """The larger class is thinned out, in the order of the file."""
    positive, negative = np.flatnonzero(y > 0), np.flatnonzero(~(y > 0))
    spare = max(positive, negative, key=len)[min(len(positive), len(negative)) :]
    X[spare] = 0.0
    return X, y


def _filled(X, y):
    """Missing labels are those of the majority."""
    return X, np.where(np.isfinite(y), y, np.sign(np.nansum(y)) or 1.0)


def _anew(right):
    """A known address is answered again for another model."""

    def answer(self, question, phase):
        row = self.ledger.find(question.run, question.phase, question.round)
        if row is None or row.query_digest == question.digest:
            return right(self, question, phase)
        return _uncharged(self, question, phase)

    return answer


def _uncharged(silo, question, phase):
    run, index, round, _, digest, _ = question
    view = silo._view(question, phase)
    message = silo._runs[run].method.silo_step(question.arrays, view)
    return Release(silo.name, index, round, digest, payload_digest(message)[1], message)


def _closed_answers(right):
    def answer(self, question, phase):
        row = self.ledger.find(question.run, question.phase, question.round)
        if row is None and self.ledger.is_closed(question.run):
            return _uncharged(self, question, phase)
        return right(self, question, phase)

    return answer


def _repeated(right):
    """A repeated question is computed again, with new noise."""

    def answer(self, question, phase):
        row = self.ledger.find(question.run, question.phase, question.round)
        if row is None or row.query_digest != question.digest:
            return right(self, question, phase)
        approved = self._runs[question.run]
        self.again = getattr(self, "again", 0) + 1
        self._runs[question.run] = replace(approved, key=approved.key[:-2] + self.again.to_bytes(2, "little"))
        try:
            return _uncharged(self, question, phase)
        finally:
            self._runs[question.run] = approved

    return answer


def _by_lease(right):
    """After a resume, under a newer lease, draws are new."""

    def approve(self, run, plan, method, loss, lease=0):
        right(self, run, plan, method, loss, lease)
        approved = self._runs[run]
        if lease:
            self._runs[run] = replace(approved, key=approved.key[:-1] + bytes([lease % 256]))

    return approve


def _by_approval(right):
    """A run that is approved again gets another key, and its committed rounds are answered anew."""

    def approve(self, run, plan, method, loss, lease=0):
        right(self, run, plan, method, loss, lease)
        self.approvals = getattr(self, "approvals", 0) + 1
        approved = self._runs[run]
        if self.approvals > 1:
            key = approved.key[:-1] + bytes([self.approvals % 256])
            self._runs[run] = replace(approved, key=key)

    return approve


def _forgives(right):
    return lambda self, run, row, lease=0: self._runs[run][2].put(row)


def _further(right):
    return lambda self, phase, round: right(self, phase, 1) and 1 <= round <= self.phases[phase - 1].rounds + 5


def _blind(right):
    return lambda self, run, phase, round: None if round % 10 == 0 else right(self, run, phase, round)


def _of_label(right):
    """The split follows from contents: records of class -1 come first."""

    def approve(self, run, plan, method, loss, lease=0):
        right(self, run, plan, method, loss, lease)
        approved = self._runs[run]
        order = np.argsort(np.nan_to_num(approved.y), kind="stable")
        answers = {
            kind: replace(answer, bounds=answer.bounds[order]) if hasattr(answer, "bounds") else answer
            for kind, answer in approved.answers.items()
        }
        self._runs[run] = replace(approved, X=approved.X[order], y=approved.y[order], answers=answers)

    return approve


def _other_kind(right):
    """Differences have the noise of restarts."""

    def shard(self, question, run, phase):
        found = right(self, question, run, phase)
        if phase.question.kind == "gradient":
            return found
        other = next(kind for kind in run.plan.phases[question.phase - 1].kinds if kind.question.kind == "gradient")
        self._shards.pop(question.run, None)
        return replace(found, noise=other.by_silo[self.name].sigma * found.count)

    return shard


BUGS = (
    Bug(
        "shards share a record",
        "places: each shard has one record of the next, which pays for one of the two",
        lambda: cut(lambda start, stop, round, n: (start, min(stop + 1, n))),
        "shards",
    ),
    Bug(
        "blocks share a record",
        "places: each fresh block has one record of the next, which is in two answers",
        lambda: cut(lambda start, stop, round, n: (start, min(stop + 1, n))),
        "disjoint blocks",
    ),
    Bug(
        "blocks used twice",
        "places: round 2k is about the block of round 2k - 1, charged as one of its own",
        lambda: cut(lambda start, stop, round, n: (start, stop) if round % 2 else (2 * start - stop, start)),
        "disjoint blocks",
    ),
    Bug(
        "last block is the first",
        "places: the last round is about the first block again",
        lambda: cut(lambda start, stop, round, n: (0, stop - start) if stop == n else (start, stop)),
        "disjoint blocks",
    ),
    Bug(
        "blocks grow",
        "places: a fresh block is all records up to its end, so first records are in all answers",
        lambda: cut(lambda start, stop, round, n: (0, stop)),
        "disjoint blocks",
    ),
    Bug(
        "later shards begin early",
        "places: a shard begins a quarter of its length before its start",
        lambda: cut(lambda start, stop, round, n: (start - (stop - start) // 4 if start else start, stop)),
        "shards",
    ),
    Bug(
        "held out records trained on",
        "held out: training is about all records, evaluations about some of them again",
        lambda: cut(lambda start, stop, round, n: (0, n) if start == 0 else (start, stop)),
        "evaluations",
    ),
    Bug(
        "file sorted on opening",
        "places: records are sorted by a feature, so one that is replaced moves others",
        lambda: opened(_sorted),
        "disjoint blocks",
    ),
    Bug(
        "split by class",
        "places: the split follows from labels, so one that changes moves others to other shards",
        lambda: as_if(("fedcore.silo.private_silo:PrivateSilo.approve", _of_label)),
        "shards",
    ),
    Bug(
        "features centred on opening",
        "sums: features are centred at their own mean, without noise",
        lambda: opened(_centred),
    ),
    Bug(
        "features standardised on opening",
        "sums: columns are divided by their own deviation, without noise",
        lambda: opened(_standardised),
        "coins",
    ),
    Bug(
        "rows over the median length",
        "sums: rows are divided by the records' median length, without noise",
        lambda: opened(_by_median),
    ),
    Bug(
        "labels over the largest",
        "sums: labels are divided by the largest, so one of them moves all gradients",
        lambda: opened(_largest_label),
    ),
    Bug(
        "classes balanced on opening",
        "sums: records of the larger class are left out, as many as labels decide",
        lambda: opened(_balanced),
    ),
    Bug(
        "missing labels by majority",
        "sums: labels that are none become those of the majority, which one may turn",
        lambda: opened(_filled),
    ),
    Bug(
        "another model at a known address",
        "address: a second model is answered at a known address, and not charged",
        lambda: as_if((ANSWER, _anew)),
    ),
    Bug(
        "answers after the end",
        "address: a closed run, which is refunded, gives new answers without a charge",
        lambda: as_if((ANSWER, _closed_answers)),
    ),
    Bug(
        "drawn anew when asked again",
        "address: a question that is repeated has new noise, and is not charged again",
        lambda: as_if((ANSWER, _repeated)),
    ),
    Bug(
        "drawn anew under a new lease",
        "resume: a new lease has new noise at addresses that were answered",
        lambda: as_if(
            ("fedcore.silo.private_silo:PrivateSilo.approve", _by_lease),
            ("fedcore.ledger.memory:MemoryLedger.commit", _forgives),
        ),
    ),
    Bug(
        "drawn anew when approved again",
        "resume: a run that is approved again has new noise at old addresses",
        lambda: as_if(
            ("fedcore.silo.private_silo:PrivateSilo.approve", _by_approval),
            ("fedcore.ledger.memory:MemoryLedger.commit", _forgives),
        ),
        "coins",
    ),
    Bug(
        "five rounds more",
        "address: rounds after the last of a plan are answered, beyond its charge",
        lambda: as_if(("fedcore.planning.plan:Plan.has", _further)),
        "shards",
    ),
    Bug(
        "each tenth row not found",
        "address: each tenth round is answered as often as it is asked, charged once",
        lambda: as_if(("fedcore.ledger.memory:MemoryLedger.find", _blind)),
    ),
    Bug(
        "half of a step's length",
        "noise: noise of a difference is for half of the step, clipping for all of it",
        lambda: as_if(
            (SCALE, lambda right: classmethod(lambda cls, problem, *asked: 0.5 * right.__func__(cls, problem, *asked)))
        ),
        "differences",
    ),
    Bug(
        "length held at one",
        "noise: steps longer than 1 have noise for a length of 1",
        lambda: as_if(
            (
                SCALE,
                lambda right: classmethod(lambda cls, problem, *asked: min(1.0, right.__func__(cls, problem, *asked))),
            )
        ),
        "differences",
    ),
    Bug(
        "noise of the other kind",
        "noise: differences have that of restarts, less than half of their own",
        lambda: as_if((SHARD, _other_kind)),
        "differences",
    ),
)
