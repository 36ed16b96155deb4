"""The release of statistics as a run before a run, and the check of config and files before any silo is asked."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from fedcore.algorithms.statistics.pooled import PooledStatistic
from fedcore.arrays import Vector
from fedcore.data.dataset import facts, prepare
from fedcore.data.silo_file import Released
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment, make_plan
from fedcore.experiment.released.kinds import required_statistic
from fedcore.experiment.released.statistic import Eigenvalues
from fedcore.experiment.statistics import plan_statistics, raw_data, raw_model, statistics_id, statistics_method


class StatisticsRun(Experiment):
    """The run before a run: silos release the moments from which constants are computed (`released`)."""

    @classmethod
    def prepare(
        cls, config: ExperimentConfig, silo_root: Path, released: Released | Eigenvalues | None = None
    ) -> StatisticsRun:
        """The release of `config`, on the same silos with their records before the constants are applied.

        Raises InputError as `Experiment.prepare`, for too many features, and for a config without a release.
        """
        data = raw_data(config)
        silos, features = facts(data, raw_model(config, 1.0), config.seed)
        plan = plan_statistics(config, silos, features)
        bound = required_statistic(config).record_bound(features)
        dataset = prepare(data, raw_model(config, bound), config.seed, silo_root)
        return cls(config, statistics_id(config), dataset, plan)

    @property
    def method(self) -> PooledStatistic:
        return statistics_method(self.config, self.dataset.dim)

    @property
    def repetition(self) -> int:
        """0: repetitions of a training share one release, and its id."""
        return 0

    def start(self) -> np.ndarray:
        """0 (d,), with the length of the statistic: nothing is trained."""
        return np.zeros(self.plan.problem.objective.dim)

    @property
    def loss(self) -> None:
        """None: no gradient is needed."""
        return None

    def constants(self, silo_root: Path, moments: Vector) -> Released | Eigenvalues:
        """The constants from released `moments` (`PooledStatistic.output`), recorded below `silo_root` unless there.

        Free of charge, however often and for any dimension or limit. Raises InputError if noise exceeds the variance of
        principal components, and as `write_projection`.
        """
        folder = silo_root.absolute() / self.dataset.name / self.run
        return required_statistic(self.config).constants(self.plan, moments, folder)


def check_all(cells: Iterable[ExperimentConfig], silo_root: Path) -> None:
    """Calls `check` for one cell of each combination of data, model and seed."""
    for cell in {cell.model_dump_json(include={"data", "model", "seed"}): cell for cell in cells}.values():
        check(cell, silo_root)


def check(config: ExperimentConfig, silo_root: Path) -> None:
    """Raises InputError for a user's mistakes in config and files, before any silo is asked."""
    if config.released is None:
        Experiment.prepare(config, silo_root)
    else:
        StatisticsRun.prepare(config, silo_root)
        make_plan(config)
