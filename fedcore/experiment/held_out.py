"""Errors, recall and the area under the ROC curve from histograms of held-out records, with intervals.

They follow from released histograms, so they cost no privacy. A histogram's counts are those of a sample of records
plus Gaussian noise of known variance. Each measure is a smooth function f of the counts. To first order its variance is

    v |grad f|^2 + sum_k c_k (d_k f)^2 - (sum_k c_k d_k f)^2 / n

with v the noise's variance on a count and c_k the counts of n records (multinomial). All counts are first shifted by
the same amount to add up to the public number of records, which halves the noise on an error. The mean of grad f then
drops out of the first term. So a record without a class, which is in no cell, counts as spread over all cells. A person
with several rows counts as one record spread over their cells, and varies no more than one.

Intervals are normal ones of 95 percent, cut to [0, 1]. A count below 1 is set to 1 in the second term, so that none
vanishes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from fedcore.algorithms.statistics.evaluated import histograms_of
from fedcore.arrays import Matrix, Vector
from fedcore.experiment.result import HeldOut, Interval
from fedcore.planning.evaluation import Evaluation
from fedcore.planning.phase import Phase
from fedcore.planning.plan import Plan
from fedcore.state import State

LEVEL = 0.95


@dataclass(frozen=True)
class Counts:
    """Counts (classes, columns) that add up to `records`; `variance`: of the noise on each before the shift."""

    cells: Matrix
    records: int
    variance: float

    @classmethod
    def of(cls, noised: Matrix, records: int, variance: float) -> Counts:
        return cls(noised + (records - noised.sum()) / noised.size, records, variance)

    def interval(self, value: float, gradient: Matrix, least: float = 0.0) -> Interval:
        """Interval of a function of the counts with this value and gradient, and values from `least` to 1."""
        seen = np.maximum(self.cells, 1.0)
        of_sample = float((seen * gradient**2).sum() - (seen * gradient).sum() ** 2 / seen.sum())
        variance = self.variance * float(((gradient - gradient.mean()) ** 2).sum()) + max(of_sample, 0.0)
        off = float(ndtri((1.0 + LEVEL) / 2.0)) * math.sqrt(variance)
        value = min(max(value, least), 1.0)  # before the ends: else both could be cut to one
        return Interval(value=value, low=max(value - off, least), high=min(value + off, 1.0))


def evaluations(plan: Plan, state: State, classes: Sequence[str | int] | None) -> list[HeldOut]:
    """Every evaluation on held-out records up to `state`, in order; [] for a plan without evaluations."""
    evaluation = plan.problem.evaluation
    if evaluation is None or classes is None:
        return []
    phases = [phase for phase in plan.phases if phase.evaluates]
    released = zip(phases, histograms_of(state), strict=False)
    return [held_out(phase, evaluation, histograms, classes) for phase, histograms in released]


def held_out(
    phase: Phase, evaluation: Evaluation, histograms: Sequence[Vector], classes: Sequence[str | int]
) -> HeldOut:
    """Measures of the model from one evaluation's `histograms` (cells,), in the order of the phase's shares."""
    shape = evaluation.classes, evaluation.columns
    each = [
        Counts.of(share.n * answer.reshape(shape), share.n, (share.n * share.sigma) ** 2)
        for share, answer in zip(phase.shares, histograms, strict=True)
    ]
    pooled = Counts(
        np.add.reduce([counts.cells for counts in each]),
        sum(counts.records for counts in each),
        math.fsum(counts.variance for counts in each),
    )
    recalls = {str(classes[label]): _recall(pooled, label) for label in range(evaluation.classes)}
    return HeldOut(
        phase=phase.index,
        records=pooled.records,
        error=error(pooled),
        majority_error=majority_error(pooled),
        gain=gain(pooled),
        recall={label: found for label, found in recalls.items() if found is not None},
        auc=area(pooled) if evaluation.classes == 2 else None,
        silos={share.silo: error(counts) for share, counts in zip(phase.shares, each, strict=True)},
    )


def expected_width(phase: Phase, evaluation: Evaluation, wrong: float = 0.2) -> float:
    """Expected half-width of the pooled error's interval at an error of `wrong`, from public numbers alone."""
    records = sum(share.n for share in phase.shares)
    right = _right((evaluation.classes, evaluation.columns))
    cells = records * np.where(right, (1.0 - wrong) / right.sum(), wrong / (~right).sum())
    variance = math.fsum((share.n * share.sigma) ** 2 for share in phase.shares)
    found = error(Counts(cells, records, variance))
    return max(found.high - found.value, found.value - found.low)


def error(counts: Counts) -> Interval:
    """Fraction of the records whose class is predicted wrongly."""
    wrong = ~_right(counts.cells.shape)
    return counts.interval(float(counts.cells[wrong].sum()) / counts.records, wrong / counts.records)


def majority_error(counts: Counts) -> Interval:
    """Error of always answering the class with the largest noised count."""
    others = _of_others(counts)
    return counts.interval(float((others * counts.cells).sum()) / counts.records, others / counts.records)


def gain(counts: Counts) -> Interval:
    """Majority error minus the model's error, from -1 to 1."""
    gradient = (_of_others(counts) - ~_right(counts.cells.shape)) / counts.records
    return counts.interval(float((gradient * counts.cells).sum()), gradient, -1.0)


def area(counts: Counts) -> Interval | None:
    """Area under the ROC curve of two classes' bins, records of one bin counting half; None where noise hides a class.

    Mann and Whitney's statistic. The products in it are of counts of different classes, whose noise is independent, so
    numerator and denominator are unbiased.
    """
    negative, positive = counts.cells
    many, few = float(negative.sum()), float(positive.sum())
    if min(many, few) <= 0.0:
        return None
    below = np.cumsum(negative) - negative / 2.0  # records of the first class below a record of the second
    above = np.cumsum(positive[::-1])[::-1] - positive / 2.0
    value = float(positive @ below) / (many * few)
    gradient = np.stack([(above / few - value) / many, (below / many - value) / few])
    return counts.interval(value, gradient)


def _recall(counts: Counts, label: int) -> Interval | None:
    """Fraction of a class's records predicted as it; None where noise hides the class."""
    right = _right(counts.cells.shape)[label]
    total = float(counts.cells[label].sum())
    if total <= 0.0:
        return None
    value = float(counts.cells[label][right].sum()) / total
    gradient = np.zeros(counts.cells.shape)
    gradient[label] = (right - value) / total
    return counts.interval(value, gradient)


def _of_others(counts: Counts) -> Matrix:
    """1 in cells of all labels except the one with the largest noised count, where it is 0."""
    others = np.ones(counts.cells.shape)
    others[int(counts.cells.sum(axis=1).argmax())] = 0.0
    return others


def _right(shape: tuple[int, ...]) -> np.ndarray:
    """Mask of the cells of correctly predicted records: for two classes, the bins on the class's side."""
    classes, columns = shape
    if classes > 2:
        return np.eye(classes, dtype=bool)
    half = columns // 2
    return np.array([[column < half for column in range(columns)], [column >= half for column in range(columns)]])
