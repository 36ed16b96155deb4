"""Bugs that make outcomes depend on records: failures, codes, divisors, counts, logs, low digits."""

from __future__ import annotations

import logging
import time

import numpy as np

from fedcore.errors import SiloError
from fedcore.models.linear import row_norms
from tests.audit.bug import Bug, as_if

SUM = "fedcore.silo.answers.gradient:Gradient.sum"
ANSWER = "fedcore.silo.private_silo:PrivateSilo.answer"
RELEASED = "fedcore.silo.round_view:RoundView._released"


def summed(act):
    """Calls `act(answer, shard, total, w)` after each sum; its result is the sum."""

    def of(right):
        def sum(self, phase, shard, chosen, draw, *arrays):
            return act(self, shard, right(self, phase, shard, chosen, draw, *arrays), arrays[0])

        return sum

    return as_if((SUM, of))


def answered(act):
    """Calls `act(silo, question, release)` after each answer; its result is released."""

    def of(right):
        def answer(self, question, phase):
            return act(self, question, right(self, question, phase))

        return answer

    return as_if((ANSWER, of))


def _refuse_long(answer, shard, total, w):
    if np.abs(shard.X).max(initial=0.0) > 1e3:
        raise ValueError("a record is out of range")
    return total


def _code(answer, shard, total, w):
    if not np.isfinite(shard.y).all():
        raise SiloError("silo", "labels", "a label of this shard is no number")
    return total


def _valid(answer, shard, total, w):
    known = int(shard.X.any(axis=1).sum())
    return total * (shard.n / known) if 0 < known < shard.n else total


def _late(answer, shard, total, w):
    time.sleep(0.002 * int((row_norms(shard.X) > 10.0).sum()))
    return total


def _logged(answer, shard, total, w):
    clipped = int((row_norms(shard.X) > answer.clip).sum())
    logging.getLogger("fedcore.silo").warning("%d of %d gradients may be clipped", clipped, shard.n)
    return total


def _warned(answer, shard, total, w):
    if not np.isfinite(shard.y).all():
        import warnings

        warnings.warn("a label of this shard is no number", RuntimeWarning, stacklevel=2)
    return total


def _counted(silo, question, release):
    silo.computed += int((row_norms(silo._runs[question.run].X) > 2.0).sum())
    return release


def _mark(right):
    """The last bit of the first number is the first record's class."""

    def released(self, total, context, scale):
        found = right(self, total, context, scale)
        bits = found.view(np.uint64)
        bits[0] = (bits[0] & ~np.uint64(1)) | np.uint64(self._shard.y[0] > 0)
        return found

    return released


def _few(silo, question, release):
    """Refuses to answer about records that add little."""
    run = silo._runs[question.run]
    if len(np.unique(run.X, axis=0)) < len(run.X):
        raise SiloError(silo.name, "failed", "it could not answer; see the log at the silo")
    return release


def _exact_where_flat(right):
    """A converged silo adds no noise: sums below a thousandth of the largest are sent as they are."""

    def released(self, total, context, scale):
        if float(np.linalg.norm(total)) < 1e-3 * self._shard.count:
            return np.zeros_like(total)
        return right(self, total, context, scale)

    return released


def _clamped(right):
    """An answer is clamped to 2.5 sigma around its exact sum, as outliers slow training down."""

    def released(self, total, context, scale):
        exact, width = total / self._shard.count, 2.5 * self._shard.noise * scale / self._shard.count
        return np.clip(right(self, total, context, scale), exact - width, exact + width)

    return released


def _by_length(right):
    """Noise in proportion to the sum, where the sum is short."""

    def released(self, total, context, scale):
        part = min(1.0, 0.5 + float(np.linalg.norm(total)) / self._shard.count)
        noise = self._shard.noise
        self._shard.noise = noise * part
        try:
            return right(self, total, context, scale)
        finally:
            self._shard.noise = noise

    return released


def _checked(right):
    def compare(self, problem, method, loss):
        right(self, problem, method, loss)
        if not np.isfinite(self._records.X).all():
            raise SiloError(self.name, "records", "a record of its file is not finite")

    return compare


def _raw(right):
    return property(lambda self: np.ascontiguousarray(self._records.X))


def _grid_mark(right):
    """The parity of the first coordinate shows whether the first record is of class +1."""

    def released(self, total, context, scale):
        found = right(self, total, context, scale)
        step = self._shard.grid.step
        odd = np.rint(found[0] * self._shard.count / step) % 2
        found[0] += (float(self._shard.y[0] > 0) - odd) * step / self._shard.count
        return found

    return released


def _weights_of(answer, shard, total, w):
    """Answers of shards whose gradients agree are sent whole, those of others at a tenth."""
    agree = float(np.linalg.norm(total)) / shard.n
    return total if agree > 0.1 else 0.1 * total


BUGS = (
    Bug(
        "fails at a long record",
        "outcomes: a silo fails if an entry of a record is above 1000",
        lambda: summed(_refuse_long),
    ),
    Bug(
        "code for a label",
        "outcomes: a refusal's code and sentence say that a label is no number",
        lambda: summed(_code),
    ),
    Bug(
        "divided by valid records",
        "outcomes: the divisor is the number of records that are not zero",
        lambda: summed(_valid),
    ),
    Bug(
        "slow at long records",
        "outcomes: an answer takes 2 ms more for each record longer than 10",
        lambda: summed(_late),
    ),
    Bug(
        "logs how many are clipped",
        "outcomes: the log, which is collected, has how many records are clipped",
        lambda: summed(_logged),
    ),
    Bug("warns of a label", "outcomes: a warning says that a label is no number", lambda: summed(_warned)),
    Bug(
        "computed counts long records",
        "outcomes: the count of computed answers, which is told, counts long records",
        lambda: answered(_counted),
    ),
    Bug(
        "class in the last bit",
        "outcomes: the last bit of a release is the class of the first record",
        lambda: as_if((RELEASED, _mark)),
    ),
    Bug(
        "class in the last step",
        "outcomes: the last step of a guarded release is the class of a record",
        lambda: as_if((RELEASED, _grid_mark)),
        "guarded",
    ),
    Bug("no answer about doubles", "outcomes: a silo with two equal records gives no answer", lambda: answered(_few)),
    Bug(
        "zero where converged",
        "outcomes: short sums are answered by zeros without noise",
        lambda: as_if((RELEASED, _exact_where_flat)),
    ),
    Bug(
        "held near the truth",
        "outcomes: an answer is never more than 2.5 sigma from its exact value",
        lambda: as_if((RELEASED, _clamped)),
        "softmax",
    ),
    Bug(
        "noise by the length of a sum",
        "noise: its size follows from the sum, down to half of what is charged",
        lambda: as_if((RELEASED, _by_length)),
    ),
    Bug(
        "approval by finite records",
        "outcomes: a silo approves no run if a record is not finite",
        lambda: as_if(("fedcore.silo.private_silo:PrivateSilo.compare", _checked)),
    ),
    Bug(
        "infinite rows kept",
        "outcomes: a row that is not finite spoils each sum, so answers are no numbers",
        lambda: as_if(("fedcore.silo.private_silo:PrivateSilo._finite", _raw)),
    ),
    Bug(
        "disagreement damped",
        "sums: a sum is a tenth where it is short, so one record decides about all others",
        lambda: summed(_weights_of),
    ),
)
