"""Released moments for principal components."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fedcore.algorithms import SecondMoments
from fedcore.arrays import Vector
from fedcore.data.constants.pca import PcaConfig, Projection
from fedcore.data.data_config import DataConfig
from fedcore.data.layout import write_projection
from fedcore.data.silo_file import Constants, Released
from fedcore.errors import InputError
from fedcore.experiment.released.noise import features_of
from fedcore.experiment.released.statistic import STATEMENT, FromMoments
from fedcore.planning.plan import Plan
from fedcore.planning.sensitivity.moments import length, unpacked

MOST_FEATURES = 2000
"""Bound on a raw record's features: 2,003,000 moments, 16 MB per silo, with more noise than signal."""


@dataclass(frozen=True)
class ComponentMoments(FromMoments):
    """`data.pca.constants: released`: first and second moments."""

    section: PcaConfig
    config: DataConfig

    charged_again: ClassVar[str] = "data.pca.epsilon or data.pca.bound"

    @property
    def prepared_with(self) -> str:
        return "principal components"

    @property
    def identity(self) -> dict[str, Any]:
        return {"pca": [self.section.epsilon, self.section.bound]}

    @property
    def data(self) -> DataConfig:
        return self.config.model_copy(update={"pca": None})

    def features(self, names: int) -> int:
        return names

    def record_bound(self, features: int) -> float:
        return self.method(features).record_bound

    def method(self, features: int) -> SecondMoments:
        if features > MOST_FEATURES:
            raise InputError(
                f"data.pca.constants = released: records of {features} features have moments of {length(features)} "
                f"numbers; at most {MOST_FEATURES} features are supported. Choose public constants"
            )
        bound = self.section.bound
        return SecondMoments(features, bound if bound is not None else math.sqrt(features) / 2)

    def constants(self, plan: Plan, moments: Vector, folder: Path) -> Released:
        dimension, method = self.section.dimension, self.method(features_of(plan))
        mean, second = unpacked(moments, method.features, method.bound)
        path, projection = write_projection(
            folder, "released", dimension, STATEMENT, lambda: Projection.of_moments(mean, second, dimension)
        )
        return Constants(str(path), projection.digest, "released", dimension), projection
