"""What silos can be asked to release before a run: statistics behind principal components, `data.scaling`, curvature.

To add a kind: a section of the config with `key` and `epsilon`, told by `ExperimentConfig.released`, a file here with
the protocol `Statistic`, and its line in `statistic_of`.
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
    """What silos release before a run of `config`; None if nothing."""
    section = config.released
    if isinstance(section, PcaConfig):
        return ComponentMoments(section, config.data)
    if isinstance(section, ReleasedScaling) and isinstance(config.data, FilesData):
        return ScaleMoments(section, config.data)
    if isinstance(section, ReleasedCurvature):
        return CurvatureRelease(section, config.data, config.model)
    return None


def required_statistic(config: ExperimentConfig) -> Statistic:
    """What silos release before a run of `config`. Raises InputError if there is nothing."""
    statistic = statistic_of(config)
    if statistic is None:
        raise InputError(
            "data.pca.constants, data.scaling.constants and algorithm.smoothness are not `released`: there are no "
            "statistics to ask for"
        )
    return statistic
