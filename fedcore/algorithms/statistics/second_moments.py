"""First and second moments of all silos' records, released once: `data.pca.constants: released`.

With one silo that is "Analyze Gauss" (Dwork, Talwar, Thakurta, Zhang 2014, Algorithm 1), which perturbs the second
moment alone. Here the mean is released along with it, since components are those of the covariance (deviation).
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedcore.algorithms.statistics.pooled import PooledStatistic
from fedcore.hyperparameters import DECLARED, Count, Real
from fedcore.planning.questions.statistics import MomentsQuestion
from fedcore.planning.sensitivity.moments import half_diameter, length


@dataclass(frozen=True, config=DECLARED)
class SecondMoments(PooledStatistic):
    """Every silo's mean of t(x) (`fedcore.planning.sensitivity.moments`), pooled."""

    features: Annotated[Count, Field(ge=1)]
    """p of a raw record."""
    bound: Annotated[Real, Field(gt=0)]
    """B, the norm to which each record is scaled."""

    name: ClassVar[str] = "second-moments"
    title: ClassVar[str] = "noised moments of the silos' records"
    source: ClassVar[str] = "Dwork, Talwar, Thakurta, Zhang 2014, Algorithm 1 (with the mean, over silos)"
    question = MomentsQuestion
    asks: ClassVar[tuple[str, ...]] = (MomentsQuestion.kind,)

    @property
    def numbers(self) -> int:
        return length(self.features)

    @property
    def half_diameter(self) -> float:
        return half_diameter(self.bound)

    @property
    def record_bound(self) -> float:
        return self.bound

    @property
    def words(self) -> str:
        return f"moments of {self.features} features of norm {self.bound:g}"
