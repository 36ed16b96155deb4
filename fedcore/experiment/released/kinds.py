"""Kinds of statistics that silos can release before a run: for principal components, `data.scaling` and curvature.

To add a kind: a section of the config with `key` and `epsilon`, returned by `ExperimentConfig.released`; a file here
that implements the protocol `Statistic`; and a line in `statistic_of`.
"""

from __future__ import annotations

from fedcore.data.constants.pca import PcaConfig
from fedcore.data.constants.scaling import ReleasedScaling
from fedcore.data.tabular import FilesData
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.released.components import ComponentMoments
from fedcore.experiment.released.curvature import CurvatureRelease
from fedcore.experiment.released.scales import ScaleMoments
from fedcore.experiment.released.statistic import Statistic
from fedcore.planning.curvature import ReleasedCurvature


def statistic_of(config: ExperimentConfig) -> Statistic | None:
    """The statistic that silos release before a run of `config`; None if there is none."""
    section = config.released
    if isinstance(section, PcaConfig):
        return ComponentMoments(section, config.data)
    if isinstance(section, ReleasedScaling) and isinstance(config.data, FilesData):
        return ScaleMoments(section, config.data)
    if isinstance(section, ReleasedCurvature):
        return CurvatureRelease(section, config.data, config.model)
    return None


def required_statistic(config: ExperimentConfig) -> Statistic:
    """The statistic that silos release before a run of `config`. Raises InputError if there is none."""
    statistic = statistic_of(config)
    if statistic is None:
        raise InputError(
            "data.pca.constants, data.scaling.constants and algorithm.smoothness are not `released`: there are no "
            "statistics to ask for"
        )
    return statistic
