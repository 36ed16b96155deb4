"""Bugs of histograms of held-out records and of statistics before a run."""

from __future__ import annotations

import math

import numpy as np

from fedcore.silo.answers.moments import shortened
from tests.audit.bug import Bug, as_if

COUNTS = "fedcore.silo.answers.histogram:Histogram._counts"
SCORES = "fedcore.silo.answers.histogram:_part"
SHORT = "fedcore.silo.answers.moments:shortened"
MOMENTS = "fedcore.silo.answers.moments:moment_sum"
COLUMNS = "fedcore.silo.answers.column_moments:column_moment_sum"
LARGEST = "fedcore.silo.answers.largest_eigenvalue:largest_eigenvalue"


def counted(change):
    """Counts (classes, columns) changed by `change`."""

    def counts(right):
        def of(self, w, shard):
            found = right(self, w, shard)
            return np.asarray(change(found.reshape(self.evaluation.classes, -1)), dtype=np.float64).ravel()

        return of

    return as_if((COUNTS, counts))


def _shares(found):
    return found * (found.sum() / len(found)) / np.maximum(found.sum(axis=1, keepdims=True), 1.0)


def _by_longest(right):
    return lambda z, largest: right(z, float(np.abs(z).max(initial=0.0)))


def _around_median(right):
    return lambda z, largest: right(z - np.median(z), largest)


def _held_too(right):
    """An answer about held-out records is also about training's: the shard begins at the first record."""

    def of(self, w, shard):
        before = np.bincount(self.labels[: shard.at.start] * self.evaluation.columns, minlength=self.evaluation.cells)
        return right(self, w, shard) + before

    return of


def _diagonal_twice(right):
    def total(X, bound, weights=None):
        found = right(X, bound, weights)
        p = X.shape[1]
        rows, columns = np.triu_indices(p)
        found[p:][rows == columns] *= math.sqrt(2.0)
        return found

    return total


def _first_part_twice(right):
    def total(X, bound, weights=None):
        found = right(X, bound, weights)
        found[: X.shape[1]] *= 1.5
        return found

    return total


def _centred(right):
    return lambda X, bound, weights=None: right(X - X.mean(axis=0), bound, weights)


def _uncut(right):
    def total(X, bound, weights=None):
        rows = shortened(X, bound)
        return np.concatenate([rows.sum(axis=0), np.einsum("ij,ij->j", rows, rows)])

    return total


def _unshortened(right):
    return lambda X, bound, weights=None: right(X, 1e300, weights)


def _entries(right):
    return lambda X, bound: np.clip(X, -bound, bound)


FACTORS = ("fedcore.planning.evaluation", "fedcore.planning.phases.evaluation_phase", "fedcore.silo.answers.histogram")

BUGS = (
    Bug(
        "cumulative counts",
        "histogram: a record counts in its bin and all above it, up to 4 cells",
        lambda: counted(lambda found: found.cumsum(axis=1)),
        "evaluations",
    ),
    Bug(
        "small cells suppressed",
        "histogram: counts below 3 become 0, so one record takes 3 from a cell",
        lambda: counted(lambda found: np.where(found < 3, 0.0, found)),
        "evaluations",
    ),
    Bug(
        "shares of a label",
        "histogram: counts are divided by those of the label, which records decide",
        lambda: counted(_shares),
        "evaluations",
    ),
    Bug(
        "records and rows twice",
        "histogram: a record counts at its label and at the class that is predicted",
        lambda: counted(lambda found: found + found.T),
        "evaluations of classes",
    ),
    Bug(
        "counts a fifth larger",
        "histogram: each record counts 1.2",
        lambda: counted(lambda found: 1.2 * found),
        "evaluations of classes",
    ),
    Bug(
        "scores by the largest",
        "histogram: bins are measured in the largest score of the records at hand",
        lambda: as_if((SCORES, _by_longest)),
        "evaluations",
    ),
    Bug(
        "scores around the median",
        "histogram: bins are centred at the median score of the records at hand",
        lambda: as_if((SCORES, _around_median)),
        "evaluations",
    ),
    Bug(
        "training records evaluated",
        "held out: an evaluation counts records of training, which paid already",
        lambda: as_if((COUNTS, _held_too)),
        "evaluations",
    ),
    Bug(
        "histogram moves by one",
        "sensitivity: a replaced record leaves one cell and enters another, charged as one",
        lambda: as_if(*((f"{name}:HALF_DIAMETER", lambda right: 0.5) for name in FACTORS)),
        "evaluations",
    ),
    Bug(
        "entries for a norm in moments",
        "clipping: entries are cut to the bound, not rows, sqrt(7) too long",
        lambda: as_if((SHORT, _entries)),
        "moments",
    ),
    Bug(
        "moments of rows a tenth longer",
        "clipping: rows are shortened to 1.1 of the bound, second moments to 1.21",
        lambda: as_if((SHORT, lambda right: lambda X, bound: right(X, 1.1 * bound))),
        "moments",
    ),
    Bug(
        "diagonal without its factor",
        "sensitivity: squares of columns weigh sqrt(2) more than is charged",
        lambda: as_if((MOMENTS, _diagonal_twice)),
        "moments",
    ),
    Bug(
        "values weigh half more",
        "sensitivity: first moments weigh 1.5 times what is charged",
        lambda: as_if((MOMENTS, _first_part_twice)),
        "moments",
    ),
    Bug(
        "moments around the mean",
        "sums: records are centred at their own mean, without noise, so one moves all",
        lambda: as_if((MOMENTS, _centred)),
        "moments",
    ),
    Bug(
        "columns uncut",
        "clipping: entries above 1 are not cut before they are squared",
        lambda: as_if((COLUMNS, _uncut)),
        "column moments",
    ),
    Bug(
        "columns unshortened",
        "clipping: rows of columns are not shortened to the bound",
        lambda: as_if((COLUMNS, _unshortened)),
        "column moments",
    ),
    Bug(
        "rows of an eigenvalue a quarter longer",
        "clipping: rows are shortened to 1.25 of the bound, squares to 1.56",
        lambda: as_if((SHORT, lambda right: lambda X, bound: right(X, 1.25 * bound))),
        "largest eigenvalue",
    ),
    Bug(
        "eigenvalue of twice the sum",
        "sensitivity: the eigenvalue is of 2 x x^T, twice what is charged",
        lambda: as_if(
            (LARGEST, lambda right: lambda X, bound, weights=None, places=1: 2.0 * right(X, bound, weights, places))
        ),
        "largest eigenvalue",
    ),
)
