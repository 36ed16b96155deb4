"""Released eigenvalues of second moments, for the smoothness that determines steps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fedcore.algorithms import LargestEigenvalue
from fedcore.arrays import Vector
from fedcore.data.data_config import DataConfig
from fedcore.experiment.released.statistic import Eigenvalues
from fedcore.models.model_config import ModelConfig
from fedcore.planning.curvature import ReleasedCurvature, pooled_bound
from fedcore.planning.plan import Plan
from fedcore.planning.problem import Problem


@dataclass(frozen=True)
class CurvatureRelease:
    """`algorithm.smoothness: released`: the largest eigenvalue of second moments of the prepared training records."""

    section: ReleasedCurvature
    config: DataConfig
    prepared: ModelConfig

    charged_again: ClassVar[str] = "algorithm.smoothness.epsilon"

    @property
    def prepared_with(self) -> str:
        return "curvature"

    @property
    def use(self) -> str:
        return "its steps follow from eigenvalues of second moments"

    @property
    def identity(self) -> dict[str, Any]:
        made = self.prepared
        return {"curvature": [self.section.epsilon, made.bias, made.feature_bound, made.normalise]}

    @property
    def data(self) -> DataConfig:
        return self.config

    def model(self, model: ModelConfig, bound: float) -> ModelConfig:
        return model

    def features(self, names: int) -> int:
        return names

    def record_bound(self, features: int) -> float:
        return self.prepared.record_bound

    def method(self, features: int) -> LargestEigenvalue:
        return LargestEigenvalue(self.prepared.record_bound)

    def constants(self, plan: Plan, moments: Vector, folder: Path) -> Eigenvalues:
        return Eigenvalues(tuple(moments.tolist()), tuple(share.sigma for share in plan.phases[0].shares))


def known_smoothness(problem: Problem, found: Eigenvalues, record_bound: float, scale: float = 1.0) -> float:
    """beta of the mean loss: h''_max times a bound on the pooled largest eigenvalue, times `scale`; at most the worst
    case.

    At scale 1 it holds with 99 % over the noise (`fedcore.planning.curvature`). `problem` has the worst case,
    h''_max B^2.
    """
    bound = pooled_bound(found.values, found.sigmas, problem.weights, record_bound)
    return problem.objective.smoothness * min(scale * (bound / record_bound**2), 1.0)
