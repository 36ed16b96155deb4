"""What silos can be asked to release before a run: statistics behind principal components, `data.scaling`, curvature.

To add a kind: a section of the config with `key` and `epsilon`, told by `ExperimentConfig.released`, and a class here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from fedcore.algorithms import ColumnMoments, LargestEigenvalue, SecondMoments
from fedcore.algorithms.statistics.pooled import PooledStatistic, pooled_noise
from fedcore.arrays import Matrix, Vector
from fedcore.data.config import DataConfig
from fedcore.data.constants.pca import PcaConfig, Projection
from fedcore.data.constants.scaling import ReleasedScaling, Scales, measured, with_range
from fedcore.data.constants.shrinkage import USUAL_SCALE, centres_and_scales
from fedcore.data.constants.whitening import standards
from fedcore.data.layout import write_projection, write_scales
from fedcore.data.silo_file import Constants, Released
from fedcore.data.tabular import FilesData
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.models.config import ModelConfig
from fedcore.planning.column_moments import parted, record_bound
from fedcore.planning.curvature import ReleasedCurvature, pooled_bound
from fedcore.planning.moments import length, unpacked
from fedcore.planning.plan import Plan
from fedcore.planning.problem import Problem
from fedcore.silo.answers.moments import bound_of

MOST_FEATURES = 2000
"""Of a raw record: its moments are 2,003,000 numbers then, 16 MB per silo, and the noise on them swamps the signal."""

_SHORTER = 0.8
"""Records of columns are cut to so much of the norm that means and squares alone ask for, before their second moments
are taken, where noise falls with its square (ARCHITECTURE.md, "Statistics before a run")."""

_STATEMENT = "computed from moments that the silos released with noise and a charge"


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
    """`values`: largest eigenvalues of second moments as silos released them (N,); `sigmas`: deviations of their noise.
    """

    values: tuple[float, ...]
    sigmas: tuple[float, ...]


def _raw(model: ModelConfig, bound: float) -> ModelConfig:
    return model.model_copy(update={"bias": False, "feature_bound": bound})


@dataclass(frozen=True)
class ComponentMoments:
    """`data.pca.constants: released`: first and second moments."""

    section: PcaConfig
    config: DataConfig

    charged_again: ClassVar[str] = "data.pca.epsilon or data.pca.bound"

    @property
    def prepared_with(self) -> str:
        return "principal components"

    @property
    def use(self) -> str:
        return f"its records were prepared with {self.prepared_with} from moments"

    def model(self, model: ModelConfig, bound: float) -> ModelConfig:
        return _raw(model, bound)

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
        dimension, method = self.section.dimension, self.method(_features(plan))
        mean, second = unpacked(moments, method.features, method.bound)
        path, projection = write_projection(
            folder, "released", dimension, _STATEMENT, lambda: Projection.of_moments(mean, second, dimension)
        )
        return Constants(str(path), projection.digest, "released", dimension), projection


@dataclass(frozen=True)
class ScaleMoments:
    """`data.scaling.constants: released`: of the columns with a range means and squares, or with whitening all second
    moments."""

    section: ReleasedScaling
    config: FilesData

    charged_again: ClassVar[str] = "data.scaling.epsilon or data.scaling.whiten"

    @property
    def prepared_with(self) -> str:
        return f"centres{', scales and whitening' if self.section.whiten else ' and scales'} of columns"

    @property
    def use(self) -> str:
        return f"its records were prepared with {self.prepared_with} from moments"

    def model(self, model: ModelConfig, bound: float) -> ModelConfig:
        return _raw(model, bound)

    @property
    def identity(self) -> dict[str, Any]:
        return {"scaling": [self.section.epsilon, *(["whiten"] if self.section.whiten else [])]}

    @property
    def data(self) -> DataConfig:
        update = {"features": measured(self.config.described or ()), "scaling": None, "test": None}
        return self.config.model_copy(update=update)

    def features(self, names: int) -> int:
        return len(with_range(self.config.described or ()))

    def record_bound(self, features: int) -> float:
        return math.sqrt(features)

    def method(self, features: int) -> ColumnMoments | SecondMoments:
        if self.section.whiten:
            return SecondMoments(features, _SHORTER * record_bound(features))
        return ColumnMoments(features)

    def constants(self, plan: Plan, moments: Vector, folder: Path) -> Released:
        ranged = with_range(self.config.described or ())

        def fit() -> Scales:
            return Scales.of_features(ranged, *standards_of(plan, len(ranged), moments))

        path, scales = write_scales(folder, len(ranged), _STATEMENT, fit)
        return Constants(str(path), scales.digest, "released", len(ranged)), scales


@dataclass(frozen=True)
class CurvatureRelease:
    """`algorithm.smoothness: released`: the largest eigenvalue of second moments, of records as training has them."""

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
    """beta of the mean loss from what silos released: h''_max times a bound on the pooled largest eigenvalue, times
    `scale`, at most the worst case.

    With 1 it holds with 99 % over the noise (`fedcore.planning.curvature`). `problem` has the worst case, h''_max B^2.
    """
    bound = pooled_bound(found.values, found.sigmas, problem.weights, record_bound)
    return problem.smoothness * min(scale * (bound / record_bound**2), 1.0)


def standards_of(plan: Plan, columns: int, moments: Vector) -> tuple[Vector, Vector, Matrix | None]:
    """Centres and scales (p,) of the features of columns with a range, of pooled `moments`; and the matrix (p, p) that
    whitens them, where the plan is of second moments."""
    noise, (phase,) = pooled_noise(plan), plan.phases
    if phase.answer not in SecondMoments.asks:
        return *centres_and_scales(*parted(moments, columns), noise), None
    bound, records = bound_of(phase), sum(silo.n for silo in plan.problem.silos)
    return standards(*unpacked(moments, columns, bound), noise, noise / bound, records)


def statistic_of(config: ExperimentConfig) -> Statistic | None:
    """What silos release before a run of `config`; None if nothing."""
    section = config.released
    if isinstance(section, PcaConfig):
        return ComponentMoments(section, config.data)
    if isinstance(section, ReleasedScaling) and isinstance(config.data, FilesData):
        return ScaleMoments(section, config.data)
    if isinstance(section, ReleasedCurvature):
        return CurvatureRelease(section, config.data, config.model)
    return None


def statistic_asked(config: ExperimentConfig) -> Statistic:
    """What silos release before a run of `config`. Raises InputError if there is nothing."""
    statistic = statistic_of(config)
    if statistic is None:
        raise InputError(
            "data.pca.constants, data.scaling.constants and algorithm.smoothness are not `released`: there are no "
            "statistics to ask for"
        )
    return statistic


def outlook(statistics: Plan) -> dict[str, float]:
    """By name, what noise will do to the constants: `moment_noise`, its deviation on each number of the pooled
    statistic (of columns in halves of their ranges, and of mean squares in squares of these), and of second moments and
    eigenvalues `eigenvalue_noise` (of these with silos weighed by their records)."""
    if statistics.phases[0].answer in LargestEigenvalue.asks:
        return {"eigenvalue_noise": pooled_noise(statistics)}
    found = {"moment_noise": pooled_noise(statistics)}
    if statistics.phases[0].answer in SecondMoments.asks:
        found["eigenvalue_noise"] = eigenvalue_noise(statistics)
    return found


def correlation_noise(statistics: Plan) -> float:
    """Deviation of noise on the correlation of two columns whose deviations are as expected, from second moments."""
    return pooled_noise(statistics) * math.sqrt(0.5) / USUAL_SCALE**2


def eigenvalue_noise(statistics: Plan) -> float:
    """About how far noise moves eigenvalues of the pooled second moment: sigma sqrt(2 p), of the squared norm's unit.

    sigma, of the pooled statistic, is that of its diagonal entries; the others have sigma / sqrt(2), so the noise is a
    Gaussian orthogonal ensemble, and sigma sqrt(2 p) the edge of its spectrum (Wigner's semicircle). Directions of less
    variance than that are the noise's own.
    """
    return pooled_noise(statistics) * math.sqrt(2 * _features(statistics))


def _features(statistics: Plan) -> int:
    """p of moments of p + p (p + 1) / 2 numbers."""
    return (math.isqrt(8 * statistics.problem.dim + 9) - 3) // 2
