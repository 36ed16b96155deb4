"""The interface of a released statistic, and the parts that several kinds share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from fedcore.algorithms.statistics.pooled import PooledStatistic
from fedcore.arrays import Vector
from fedcore.data.constants.pca import PcaConfig
from fedcore.data.constants.scaling import ReleasedScaling
from fedcore.data.data_config import DataConfig
from fedcore.data.silo_file import Released
from fedcore.models.model_config import ModelConfig
from fedcore.planning.curvature import ReleasedCurvature
from fedcore.planning.plan import Plan

STATEMENT = "computed from moments that the silos released with noise and a charge"


class Statistic(Protocol):
    """One kind of statistic, for one config."""

    @property
    def section(self) -> PcaConfig | ReleasedScaling | ReleasedCurvature:
        """The section that requests it: `key` is its full key, `epsilon` the target of the release (None: no noise)."""
        ...

    @property
    def identity(self) -> dict[str, Any]:
        """Parameters that change its bytes, beside data, seed and privacy."""
        ...

    @property
    def prepared_with(self) -> str:
        """The constants that follow from it, in words."""
        ...

    @property
    def use(self) -> str:
        """The part of a run that follows from the release, as the beginning of a sentence."""
        ...

    charged_again: ClassVar[str]
    """The keys whose change needs a new release, at a charge."""

    @property
    def data(self) -> DataConfig:
        """The same silos with the records of the statistic: before projection, or only the columns with a range."""
        ...

    def model(self, model: ModelConfig, bound: float) -> ModelConfig:
        """The model config that prepares these records: training's, or one without bias and with norm `bound`."""
        ...

    def features(self, names: int) -> int:
        """Number of features of these records, if the files have `names` columns in use."""
        ...

    def record_bound(self, features: int) -> float:
        """Norm bound of their preparation, large enough not to change the statistic."""
        ...

    def method(self, features: int) -> PooledStatistic:
        """The method of the release. Raises InputError for more features than are supported."""
        ...

    def constants(self, plan: Plan, moments: Vector, folder: Path) -> Released | Eigenvalues:
        """The constants from released `moments`, recorded below `folder` unless they are there. Raises InputError."""
        ...


@dataclass(frozen=True)
class Eigenvalues:
    """Released largest eigenvalues of the N silos' second moments (`values`), and deviations of their noise
    (`sigmas`)."""

    values: tuple[float, ...]
    sigmas: tuple[float, ...]


class FromMoments:
    """Shared parts of moments of the files' records, from which training prepares its records."""

    @property
    def prepared_with(self) -> str:
        raise NotImplementedError

    @property
    def use(self) -> str:
        return f"its records were prepared with {self.prepared_with} from moments"

    def model(self, model: ModelConfig, bound: float) -> ModelConfig:
        return model.model_copy(update={"bias": False, "feature_bound": bound})
