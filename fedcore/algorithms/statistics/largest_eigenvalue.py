"""The largest eigenvalue of each silo's second moments, released once: behind `algorithm.smoothness: released`.

The method is ours; its one answer is the Gaussian mechanism on a number that one record moves by at most B^2 / n
(`fedcore.planning.curvature`). What the silos' numbers say of all of them depends on their weights in the objective, so
they are kept apart: runs with other weights share them.
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
    """B, the norm to which each record is scaled by itself: that of prepared records, which leaves them as they are."""

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
        """Afterwards `moments` are the silos' numbers (N,), in the problem's order."""
        return MomentsState(state.phase + 1, 1, np.concatenate(list(messages.values())))
