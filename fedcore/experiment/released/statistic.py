"""What one kind of released statistic has to say of itself, and what several say alike."""

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
        """What asks for it: its `key`, in full, and `epsilon`, the target of the release; None without noise."""
        ...

    @property
    def identity(self) -> dict[str, Any]:
        """What its bytes depend on beside the data, seed and privacy."""
        ...

    @property
    def prepared_with(self) -> str:
        """The constants that follow from it, in words."""
        ...

    @property
    def use(self) -> str:
        """What of a run follows from what the silos released, as the beginning of a sentence."""
        ...

    charged_again: ClassVar[str]
    """The keys by which the silos are asked anew, at a charge."""

    @property
    def data(self) -> DataConfig:
        """The same silos with records as the statistic is of: before projection, or columns with a range alone."""
        ...

    def model(self, model: ModelConfig, bound: float) -> ModelConfig:
        """What opens these records: without bias and with norm at most `bound`, unless training's are meant."""
        ...

    def features(self, names: int) -> int:
        """Features of these records, where the files have so many columns in use."""
        ...

    def record_bound(self, features: int) -> float:
        """Norm to which they may be prepared, without changing the statistic."""
        ...

    def method(self, features: int) -> PooledStatistic:
        """The release. Raises InputError for more features than are supported."""
        ...

    def constants(self, plan: Plan, moments: Vector, folder: Path) -> Released | Eigenvalues:
        """The constants of released `moments`, recorded below `folder` unless they are there. Raises InputError."""
        ...


@dataclass(frozen=True)
class Eigenvalues:
    """`values`: largest eigenvalues of second moments as silos released them (N,); `sigmas`:
    deviations of their noise."""

    values: tuple[float, ...]
    sigmas: tuple[float, ...]


class FromMoments:
    """What statistics say alike that are moments of records as files have them, from which training's are prepared."""

    @property
    def prepared_with(self) -> str:
        raise NotImplementedError

    @property
    def use(self) -> str:
        return f"its records were prepared with {self.prepared_with} from moments"

    def model(self, model: ModelConfig, bound: float) -> ModelConfig:
        return model.model_copy(update={"bias": False, "feature_bound": bound})
