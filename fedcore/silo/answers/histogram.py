"""The answer `histogram`: held-out records, counted by label and bin of the model's score.

Cells and sensitivity: `fedcore.planning.evaluation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcore.arrays import Matrix, Vector
from fedcore.models import Classifier, Model, Objective, OneHiddenLayer, SoftmaxRegression, model_of
from fedcore.planning.evaluation import EVALUATION, HALF_DIAMETER, Evaluation
from fedcore.planning.phase import Phase
from fedcore.planning.problem import Problem
from fedcore.silo.answers.answer import Draw, Shard, Sums, weights_misfit


@dataclass(frozen=True)
class Histogram:
    """Counts of held-out records.

    `known` (n,): records whose label is a class; others are in no cell. `labels` (n,): number of the class, from 0.
    """

    model: Model
    objective: Objective
    evaluation: Evaluation
    known: NDArray[np.bool_]
    labels: NDArray[np.int64]

    name: ClassVar[str] = EVALUATION
    samples: ClassVar[bool] = False
    weighs: ClassVar[bool] = True

    @classmethod
    def misfit(cls, problem: Problem, loss: Objective | None, n: int, features: int) -> str | None:
        if loss is None or problem.evaluation is None:
            return "an evaluation is of a model, and the agreement names no objective, or nothing to evaluate"
        if isinstance(loss, Classifier):
            classes = loss.classes
        elif loss.labels.classes:
            classes = 2
        else:
            return f"a histogram counts classes, and the objective's loss takes {loss.labels.name}"
        if classes != problem.evaluation.classes:
            return f"the evaluation says {problem.evaluation.classes} classes, the objective has {classes}"
        return weights_misfit(problem, loss, features)

    @classmethod
    def scale(cls, problem: Problem, *arrays: Vector) -> float:
        return 1.0

    @classmethod
    def half_diameter(cls, problem: Problem, phase: Phase) -> float:
        return HALF_DIAMETER

    @classmethod
    def largest_norm(cls, problem: Problem, phase: Phase) -> float:
        return 1.0

    @classmethod
    def of(cls, problem: Problem, loss: Objective | None, X: Matrix, y: Vector, record_bound: float) -> Histogram:
        if loss is None or problem.evaluation is None:
            raise ValueError("there is no model to evaluate")
        if isinstance(loss, Classifier):
            # Reading the file set a record whose label is no class to all zeros.
            known = X.any(axis=1) & np.isin(y, np.arange(loss.classes))
            labels = np.where(known, y, 0.0)
        else:
            known = loss.labels.contains(y)
            labels = y > 0
        return cls(model_of(loss), loss, problem.evaluation, known, labels.astype(np.int64))

    @classmethod
    def batched(cls, parts: Sequence[tuple[Histogram, Shard]]) -> Sums | None:
        return None

    def sum(self, phase: Phase, shard: Shard, chosen: np.ndarray | None, draw: Draw, *arrays: Vector) -> Vector:
        (w,) = arrays
        return shard.summed(lambda part, _: self._counts(w, part))

    def _counts(self, w: Vector, shard: Shard) -> Vector:
        known, labels = self.known[shard.at], self.labels[shard.at]
        cells = labels * self.evaluation.columns + self._columns(w, shard.X)
        counted = known.astype(np.float64)
        if shard.weights is not None:
            # A person's rows spread one count over their cells, which lies in the convex hull of single counts.
            counted *= shard.weights
        counts = np.bincount(cells, weights=counted, minlength=self.evaluation.cells)
        return np.asarray(counts, dtype=np.float64)

    def _columns(self, w: Vector, X: Matrix) -> NDArray[np.int64]:
        """Column of each record (n,): the bin of its score, or with more than two classes the predicted class."""
        z = self.model.predictors(w, X)
        if self.evaluation.classes > 2:
            return np.asarray(z.argmax(axis=1))
        return np.asarray(np.searchsorted(self.evaluation.edges, self._scores(w, z), side="right"))

    def _scores(self, w: Vector, z: NDArray[np.float64]) -> Vector:
        """Scores in [-1, 1]: 0 and above where the second class is predicted.

        A linear score is divided by the largest that a record can have; a network's is the difference of probabilities.
        """
        if z.ndim == 1:
            return _part(z, float(np.linalg.norm(w)) * self.evaluation.record_bound)
        # A tie predicts the first class.
        margin = z[:, 1] - z[:, 0]
        if isinstance(self.objective, OneHiddenLayer):
            scores = np.tanh(margin / 2.0)
        elif isinstance(self.objective, SoftmaxRegression):
            first, second = w.reshape(2, -1)
            scores = _part(margin, float(np.linalg.norm(second - first)) * self.evaluation.record_bound)
        else:
            raise ValueError(f"{type(self.objective).__name__} has no score of two classes")
        return np.where(margin > 0, np.maximum(scores, 0.0), np.minimum(scores, -np.finfo(np.float64).tiny))


def _part(z: NDArray[np.float64], largest: float) -> Vector:
    """z / largest; 0 where there are no weights."""
    return np.asarray(z / largest if largest > 0.0 else np.zeros_like(z))
