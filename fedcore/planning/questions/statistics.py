"""Questions about records themselves: moments, eigenvalues, and histograms of held-out records."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fedcore.planning.evaluation import EVALUATION
from fedcore.planning.questions.question import Question


@dataclass(frozen=True, kw_only=True)
class StatisticQuestion(Question):
    """The mean of a statistic of single records. `record_bound`: norm to which each record is scaled."""

    record_bound: float


@dataclass(frozen=True, kw_only=True)
class MomentsQuestion(StatisticQuestion):
    """First and second moments of the records."""

    kind: Literal["moments"] = "moments"


@dataclass(frozen=True, kw_only=True)
class ColumnMomentsQuestion(StatisticQuestion):
    """Means and squares of columns."""

    kind: Literal["column-moments"] = "column-moments"


@dataclass(frozen=True, kw_only=True)
class EigenvalueQuestion(StatisticQuestion):
    """The largest eigenvalue of the second moments."""

    kind: Literal["largest-eigenvalue"] = "largest-eigenvalue"


def record_bound_of(question: Question) -> float:
    """Norm to which the question scales records; infinite for questions that scale none."""
    return question.record_bound if isinstance(question, StatisticQuestion) else math.inf


@dataclass(frozen=True, kw_only=True)
class HistogramQuestion(Question):
    """Counts of held-out records by label and bin of a model's score. `cells`: number of these pairs."""

    kind: Literal["histogram"] = EVALUATION
    cells: int

    def length(self, dim: int) -> int:
        return self.cells
