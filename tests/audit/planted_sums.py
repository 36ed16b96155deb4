"""Silos with one bug each in their sums."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedcore.silo.answers import Gradient, GradientDifference, Histogram
from fedcore.silo.answers.column_moments import column_moment_sum
from fedcore.silo.answers.largest_eigenvalue import largest_eigenvalue
from fedcore.silo.answers.moments import moment_sum, shortened
from fedcore.silo.private_silo import PrivateSilo
from tests.audit.planted import Planted


def with_bounds(change):
    """A silo that clips by `change(bounds, X, y)` in place of the bounds of its records' residuals."""

    class Silo(PrivateSilo):
        def approve(self, run, *terms):
            super().approve(run, *terms)
            opened, answers = self._runs[run], self._runs[run].answers
            bounds = change(answers["gradient"].bounds.copy(), opened.X, opened.y)
            answers["gradient"] = replace(answers["gradient"], bounds=bounds)

    return Silo


def with_rows(change):
    """A silo that has other rows than it should: `change(X, y)` in the run's order."""

    class Silo(PrivateSilo):
        def approve(self, run, *terms):
            super().approve(run, *terms)
            opened = self._runs[run]
            X, y = change(opened.X.copy(), opened.y.copy())
            answer = opened.answers["gradient"]
            answer = replace(answer, bounds=answer.model.bounds(X, y, opened.plan.problem.objective.clip))
            self._runs[run] = replace(opened, X=X, y=y, answers={"gradient": answer})

    return Silo


class Summing(Gradient):
    def clipped_sum(self, w, shard, chosen=None, shifts=None):
        total = super().clipped_sum(w, shard, chosen, shifts)
        total[-1] *= 1.5
        return total


class BiasOfHalfAgain(PrivateSilo):
    """The last coordinate, a bias, is added after clipping."""

    def approve(self, run, *terms):
        super().approve(run, *terms)
        object.__setattr__(self._runs[run].answers["gradient"], "__class__", Summing)


class Heavier(Histogram):
    def sum(self, phase, shard, chosen, draw, *arrays):
        return 1.5 * super().sum(phase, shard, chosen, draw, *arrays)


class HalfAgainInHistograms(PrivateSilo):
    """Each held-out record counts one and a half times."""

    def approve(self, run, *terms):
        super().approve(run, *terms)
        object.__setattr__(self._runs[run].answers["histogram"], "__class__", Heavier)


class TrueSize(Gradient):
    """Divides by the size of the sample that it drew, not by the expected size."""

    def clipped_sum(self, w, shard, chosen=None, shifts=None):
        total = super().clipped_sum(w, shard, chosen, shifts)
        return total if chosen is None else total * (shard.count / max(len(chosen), 1))


class OfTrueSize(PrivateSilo):
    def approve(self, run, *terms):
        super().approve(run, *terms)
        object.__setattr__(self._runs[run].answers["gradient"], "__class__", TrueSize)


class Near(Gradient):
    """Clips at a bound that grows with the model."""

    def clipped_sum(self, w, shard, chosen=None, shifts=None):
        return super().clipped_sum(w, shard, chosen, shifts) * (1.0 + 0.5 * (np.linalg.norm(w) > 4.0))


class OfLargeModels(PrivateSilo):
    def approve(self, run, *terms):
        super().approve(run, *terms)
        object.__setattr__(self._runs[run].answers["gradient"], "__class__", Near)


class BoundsOfTheFirstRun(PrivateSilo):
    """Uses the bounds of its first run, whose order of records is another, in all later ones."""

    def approve(self, run, *terms):
        super().approve(run, *terms)
        answers = self._runs[run].answers
        self.first_bounds = getattr(self, "first_bounds", answers["gradient"].bounds)
        answers["gradient"] = replace(answers["gradient"], bounds=self.first_bounds)


def of_differences(change):
    """A silo whose sums of differences are `change(answer, phase, shard, w, before)`."""

    class Differences(GradientDifference):
        def sum(self, phase, shard, chosen, draw, *arrays):
            return change(self, phase, shard, *arrays)

    class Silo(PrivateSilo):
        def approve(self, run, *terms):
            super().approve(run, *terms)
            object.__setattr__(self._runs[run].answers["gradient-difference"], "__class__", Differences)

    return Silo


def summed(factor):
    """Differences are clipped at `factor(step)` times C_2."""

    def change(answer, phase, shard, w, before):
        bound = factor(np.linalg.norm(w - before)) * phase.question.clip
        return answer.model.clipped_difference_sum(w, before, shard.X, shard.y, bound)

    return of_differences(change)


def before_subtraction(answer, phase, shard, w, before):
    """Clips both gradients of a record at C_2, not their difference, which does not shrink with the step."""
    bounds = answer.model.bounds(shard.X, shard.y, phase.question.clip)
    return answer.model.clipped_gradient_sum(w, shard.X, shard.y, bounds) - answer.model.clipped_gradient_sum(
        before, shard.X, shard.y, bounds
    )


def from_last_model(answer, phase, shard, w, before):
    """The silo takes the model of its last question as the previous one."""
    last = getattr(answer, "last", before)
    object.__setattr__(answer, "last", w)
    bound = phase.question.clip * np.linalg.norm(w - last)
    return answer.model.clipped_difference_sum(w, last, shard.X, shard.y, bound)


def at(where, value):
    def change(bounds, X, y):
        bounds[where(bounds, X, y)] = value
        return bounds

    return change


def farther(X, y):
    """Shards begin and end one record too late."""
    return np.roll(X, -1, axis=0), np.roll(y, -1)


def twice(X, y):
    X[0], y[0] = X[-1], y[-1]
    return X, y


def moments_too_long(X, bound, weights):
    return moment_sum(X, 1.2 * bound, weights)


def columns_too_long(X, bound, weights):
    return column_moment_sum(X, 1.2 * bound, weights)


def not_cut_to_ranges(X, bound, weights):
    """Only the norm of records is bounded."""
    rows = shortened(X, bound)
    return np.concatenate([rows.sum(axis=0), (rows**2).sum(axis=0)])


def eigenvalue_too_long(X, bound, weights, places):
    return largest_eigenvalue(X, 1.2 * bound, weights, places)


def trace(X, bound, weights, places):
    """The sum of all eigenvalues: n records of norm B move it no farther, but it is not the agreed number."""
    return np.array([np.square(shortened(X, bound)).sum()])


EIGENVALUE = "fedcore.silo.answers.largest_eigenvalue.largest_eigenvalue"
COLUMNS = "fedcore.silo.answers.column_moments."
OLD = {
    "no clipping": Planted(opener=with_bounds(at(lambda bounds, X, y: slice(None), np.inf))),
    "clipping at twice the bound": Planted(opener=with_bounds(lambda bounds, X, y: 2 * bounds)),
}
OWN = {
    "first record of a run not clipped": Planted(opener=with_bounds(at(lambda b, X, y: 0, np.inf))),
    "last record of a shard not clipped": Planted("shards", with_bounds(at(lambda b, X, y: 13, np.inf))),
    "a record of the last shard not clipped": Planted("shards", with_bounds(at(lambda b, X, y: 23, np.inf))),
    "last record not clipped, local steps": Planted("local steps", with_bounds(at(lambda b, X, y: -1, np.inf))),
    "one class not clipped": Planted(opener=with_bounds(at(lambda b, X, y: y > 0, np.inf))),
    "records of huge norm not clipped": Planted(
        opener=with_bounds(at(lambda b, X, y: np.linalg.norm(X, axis=1) > 1e5, np.inf))
    ),
    "the longest record clipped at twice the bound": Planted(
        opener=with_bounds(lambda b, X, y: b * np.where(b == b.min(), 2.0, 1.0))
    ),
    "clipping at twice the bound, softmax": Planted("softmax", with_bounds(lambda bounds, X, y: 2 * bounds)),
    "no clipping, network": Planted("network", with_bounds(at(lambda bounds, X, y: slice(None), 1e300))),
    "differences not clipped": Planted("differences", summed(lambda step: 1e9)),
    "differences clipped at twice the bound": Planted("differences", summed(lambda step: 2.0 * step)),
    "differences clipped without the step": Planted("differences", summed(lambda step: 1.0)),
    "gradients clipped before subtraction": Planted("differences", of_differences(before_subtraction)),
    "differences from a model that the silo kept": Planted("differences", of_differences(from_last_model)),
    "no clipping, restarts": Planted("restarts", with_bounds(at(lambda bounds, X, y: slice(None), np.inf))),
    "moments of records that are too long": Planted(
        "moments", patches={"fedcore.silo.answers.moments.moment_sum": moments_too_long}
    ),
    "columns of records that are too long": Planted(
        "column moments", patches={COLUMNS + "column_moment_sum": columns_too_long}
    ),
    "columns beyond their ranges": Planted(
        "column moments", patches={COLUMNS + "column_moment_sum": not_cut_to_ranges}
    ),
    "eigenvalues of records that are too long": Planted(
        "largest eigenvalue", patches={EIGENVALUE: eigenvalue_too_long}
    ),
    "the trace for the largest eigenvalue": Planted("largest eigenvalue", patches={EIGENVALUE: trace}),
    "held-out records counted one and a half times": Planted("evaluations", HalfAgainInHistograms),
    "evaluations of records that are trained on": Planted(
        "evaluations", patches={"fedcore.silo.keys.secret.order_of_run": lambda rng, n, held, apart: rng.permutation(n)}
    ),
    "divided by the true size of a sample": Planted("coins", OfTrueSize),
    "more weight where models are large": Planted(opener=OfLargeModels),
    "last coordinate added after clipping": Planted(opener=BiasOfHalfAgain),
    "shards one record too late": Planted("shards", with_rows(farther)),
    "blocks one record too late": Planted("disjoint blocks", with_rows(farther)),
    "a record counted twice": Planted(opener=with_rows(twice)),
    "bounds kept for all runs": Planted(opener=BoundsOfTheFirstRun),
}
