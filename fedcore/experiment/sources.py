"""The silos of a config as sources that can be registered, before any run of it."""

from __future__ import annotations

from pathlib import Path

from fedcore.data.dataset import prepare
from fedcore.data.silo_file import SiloSource
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.statistics import raw_data, raw_model


def silo_sources(config: ExperimentConfig, silo_root: Path) -> tuple[SiloSource, ...]:
    """Sources of the silos: generated ones are written below `silo_root` unless they are there. Raises InputError.

    As their records are before constants that silos release: accounts are of files, whatever is made of them.
    """
    if config.released is None:
        return prepare(config.data, config.model, config.seed, silo_root).sources
    return prepare(raw_data(config), raw_model(config, 1.0), config.seed, silo_root).sources
