"""Released moments for centres, scales and whitening of columns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fedcore.algorithms import ColumnMoments, SecondMoments
from fedcore.algorithms.statistics.pooled import pooled_noise
from fedcore.arrays import Matrix, Vector
from fedcore.data.constants.scaling import ReleasedScaling, Scales, measured, with_range
from fedcore.data.constants.shrinkage import centres_and_scales
from fedcore.data.constants.whitening import standards
from fedcore.data.data_config import DataConfig
from fedcore.data.layout import write_scales
from fedcore.data.silo_file import Constants, Released
from fedcore.data.tabular import FilesData
from fedcore.experiment.released.statistic import STATEMENT, FromMoments
from fedcore.planning.plan import Plan
from fedcore.planning.sensitivity.column_moments import parted, record_bound
from fedcore.planning.sensitivity.moments import unpacked
from fedcore.silo.answers.moments import bound_of

_SHORTER = 0.8
"""Norm bound for second moments, relative to that for means and squares alone; the noise on second moments falls with
the square of the bound (docs/explanation/statistics.md)."""


@dataclass(frozen=True)
class ScaleMoments(FromMoments):
    """`data.scaling.constants: released`: means and squares of columns with a range, or all second moments to
    whiten."""

    section: ReleasedScaling
    config: FilesData

    charged_again: ClassVar[str] = "data.scaling.epsilon or data.scaling.whiten"

    @property
    def prepared_with(self) -> str:
        return f"centres{', scales and whitening' if self.section.whiten else ' and scales'} of columns"

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

        path, scales = write_scales(folder, len(ranged), STATEMENT, fit)
        return Constants(str(path), scales.digest, "released", len(ranged)), scales


def standards_of(plan: Plan, columns: int, moments: Vector) -> tuple[Vector, Vector, Matrix | None]:
    """Centres and scales (p,) of columns with a range from pooled `moments`, and the whitening matrix (p, p).

    The matrix is None unless the plan releases second moments.
    """
    noise, (phase,) = pooled_noise(plan), plan.phases
    if phase.question.kind not in SecondMoments.asks:
        return *centres_and_scales(*parted(moments, columns), noise), None
    bound, records = bound_of(phase), sum(silo.n for silo in plan.problem.silos)
    return standards(*unpacked(moments, columns, bound), noise, noise / bound, records)
