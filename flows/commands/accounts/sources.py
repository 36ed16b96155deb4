"""Silos of a config as sources that can be registered, before any run of the config."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fedcore.data.dataset import prepare
from fedcore.data.silo_file import SiloSource
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.statistics import raw_data, raw_model


def silo_sources(config: ExperimentConfig, silo_root: Path) -> tuple[SiloSource, ...]:
    """Sources of the silos; generated ones are written below `silo_root` unless they exist. Raises InputError.

    Records are those before scaling by constants that silos release: accounts belong to files, whatever their scaling.
    """
    if config.released is None:
        return prepare(config.data, config.model, config.seed, silo_root).sources
    return prepare(raw_data(config), raw_model(config, 1.0), config.seed, silo_root).sources


def sources_of_cells(cells: Iterable[ExperimentConfig], silo_root: Path) -> list[tuple[SiloSource, ...]]:
    """The experiments' sources without repetitions, since cells of a sweep may differ in their data. Raises InputError.

    Each element holds a silo at most once, with one version of its data.
    """
    found: list[tuple[SiloSource, ...]] = []
    known: set[tuple[str, str]] = set()
    for cell in cells:
        sources = tuple(each for each in silo_sources(cell, silo_root) if (each.name, each.version) not in known)
        known.update((each.name, each.version) for each in sources)
        found += [sources] if sources else []
    return found
