"""Accounts of guarded silos in the register of tests, as their operator makes them: an operator for each home."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime

from fedcore.data.silo_file import SiloSource
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment
from fedcore.home import Home, LedgerFolders
from fedcore.silo.registration import register_silos
from flows.commands.accounts.sources import silo_sources


def register_all(sources: Sequence[SiloSource], folders: LedgerFolders) -> None:
    """Does `fedcore budget register --new` in a register beside the ledgers, and sets FEDCORE_REGISTER to it.

    The fixture `register_folder` restores the variable after the test.
    """
    os.environ["FEDCORE_REGISTER"] = str(folders.ledgers.parent / "register")
    register_silos(sources, folders, True, lambda *_: False, lambda: datetime.now(UTC))


def registered(made: Experiment, folders: LedgerFolders) -> Experiment:
    """The experiment, once its guarded silos have accounts with ledgers in `folders`."""
    if made.config.privacy.noise == "guarded":
        register_all(made.dataset.sources, folders)
    return made


def registered_config(config: ExperimentConfig, home: Home) -> ExperimentConfig:
    """The config, once its guarded silos have accounts with ledgers in this home."""
    if config.privacy.noise == "guarded":
        register_all(silo_sources(config, home.silos), home.ledger_folders)
    return config
