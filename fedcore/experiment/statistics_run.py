"""The run before a run, and what is looked at before anything is asked."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedcore.algorithms import SecondMoments
from fedcore.arrays import Vector
from fedcore.data.dataset import facts, prepare
from fedcore.data.layout import write_projection
from fedcore.data.pca import Projection
from fedcore.data.silo_file import Constants
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment, make_plan
from fedcore.experiment.statistics import plan_statistics, raw_data, raw_model, statistics_id, statistics_method
from fedcore.planning.moments import unpacked


class StatisticsRun(Experiment):
    """The run before a run: silos release the moments from which `data.pca.constants: released` are computed."""

    @classmethod
    def prepare(
        cls, config: ExperimentConfig, silo_root: Path, released: tuple[Constants, Projection] | None = None
    ) -> StatisticsRun:
        """The release that `config` asks for, on the same silos with their records as they are before projection.

        Raises InputError as `Experiment.prepare`, for too many features, and if it asks for none.
        """
        data = raw_data(config)
        silos, features = facts(data, raw_model(config, 1.0), config.seed)
        plan = plan_statistics(config, silos, features)
        bound = statistics_method(config, features).bound
        dataset = prepare(data, raw_model(config, bound), config.seed, silo_root)
        return cls(config, statistics_id(config), dataset, plan)

    @property
    def method(self) -> SecondMoments:
        return statistics_method(self.config, len(self.dataset.feature_names))

    def start(self) -> np.ndarray:
        """0 (d,), of the statistic: nothing is trained."""
        return np.zeros(self.plan.problem.dim)

    @property
    def loss(self) -> None:
        """None: no gradient is asked for."""
        return None

    def constants(self, silo_root: Path, moments: Vector) -> tuple[Constants, Projection]:
        """The constants of pooled `moments` (`SecondMoments.output`): recorded below `silo_root` unless they are there.

        Free of charge, however often and for whatever dimension. Raises InputError if noise has swallowed the variance,
        and as `write_projection`.
        """
        pca, method = self.config.released_pca, self.method
        dimension = pca.dimension if pca is not None else method.features
        mean, second = unpacked(moments, method.features, method.bound)
        path, projection = write_projection(
            silo_root.absolute() / self.dataset.name / self.run, "released", dimension,
            "computed from moments that the silos released with noise and a charge",
            lambda: Projection.of_moments(mean, second, dimension),
        )  # fmt: skip
        return Constants(str(path), projection.digest, "released", dimension), projection


def check(config: ExperimentConfig, silo_root: Path) -> None:
    """Finds a user's mistakes in config and files before anything is asked. Raises InputError."""
    if config.released_pca is None:
        Experiment.prepare(config, silo_root)
    else:
        StatisticsRun.prepare(config, silo_root)
        make_plan(config)
