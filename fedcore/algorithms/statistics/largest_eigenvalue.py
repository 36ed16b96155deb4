"""Largest eigenvalue of each silo's second moments, for `algorithm.smoothness: released`.

The method is ours. Its one answer is the Gaussian mechanism on a number that one record moves by at most B^2 / n
(`fedcore.planning.curvature`). The numbers are not pooled: pooling depends on the silos' weights in the objective, and
runs with other weights share the numbers.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from fedcore.algorithms.statistics.pooled import MomentsState, PooledStatistic
from fedcore.hyperparameters import DECLARED, Real
from fedcore.optim.averaging import Messages
from fedcore.planning.curvature import half_diameter
from fedcore.planning.phase import Phase
from fedcore.planning.questions.statistics import EigenvalueQuestion


@dataclass(frozen=True, config=DECLARED)
class LargestEigenvalue(PooledStatistic):
    """lambda_max of (1/n) sum x x^T over all records of each silo."""

    bound: Annotated[Real, Field(gt=0)]
    """B, the norm to which each record is scaled: that of prepared records, so scaling leaves them unchanged."""

    name: ClassVar[str] = "largest-eigenvalue"
    title: ClassVar[str] = "noised largest eigenvalues of the silos' second moments"
    source: ClassVar[str] = "ours: the Gaussian mechanism on an eigenvalue, by Weyl's inequality"
    question = EigenvalueQuestion
    asks: ClassVar[tuple[str, ...]] = (EigenvalueQuestion.kind,)

    @property
    def numbers(self) -> int:
        return 1

    @property
    def half_diameter(self) -> float:
        return half_diameter(self.bound)

    @property
    def record_bound(self) -> float:
        return self.bound

    @property
    def words(self) -> str:
        return f"largest eigenvalues of records of norm {self.bound:g}"

    def server_update(self, state: MomentsState, messages: Messages, phase: Phase) -> MomentsState:
        """The state whose `moments` are the silos' numbers (N,), in the problem's order."""
        return MomentsState(state.phase + 1, 1, np.concatenate(list(messages.values())))
