"""Means and squares of columns of all silos' records, released once: behind `data.scaling`.

The method is ours. Its one answer is the Gaussian mechanism on a bounded statistic, as for the moments of
`second_moments`. Products of columns are left out, since centres and scales do not need them.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedcore.algorithms.statistics.pooled import PooledStatistic
from fedcore.hyperparameters import DECLARED, Count
from fedcore.planning.questions.statistics import ColumnMomentsQuestion
from fedcore.planning.sensitivity.column_moments import half_diameter, length, record_bound


@dataclass(frozen=True, config=DECLARED)
class ColumnMoments(PooledStatistic):
    """Every silo's mean of t(u) (`fedcore.planning.sensitivity.column_moments`), pooled."""

    columns: Annotated[Count, Field(ge=1)]
    """p, columns with a range, each mapped to -1 to 1."""

    name: ClassVar[str] = "column-moments"
    title: ClassVar[str] = "noised means and squares of the silos' columns"
    source: ClassVar[str] = "ours: the Gaussian mechanism on means and squares of bounded columns"
    question = ColumnMomentsQuestion
    asks: ClassVar[tuple[str, ...]] = (ColumnMomentsQuestion.kind,)

    @property
    def numbers(self) -> int:
        return length(self.columns)

    @property
    def half_diameter(self) -> float:
        return half_diameter(self.record_bound)

    @property
    def record_bound(self) -> float:
        return record_bound(self.columns)

    @property
    def words(self) -> str:
        return f"means and squares of {self.columns} columns"
