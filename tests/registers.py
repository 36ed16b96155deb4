"""Accounts of guarded silos in the register of tests, as their operator makes them."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from fedcore.experiment.experiment import Experiment
from fedcore.home import LedgerFolders
from fedcore.silo.registration import register_silos

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def registered(made: Experiment, folders: LedgerFolders, new: bool = True, disjoint: bool = False) -> Experiment:
    """The experiment, once its silos have an account with ledgers in `folders`; `fedcore budget register` does it."""
    if made.config.privacy.noise == "guarded":
        register_silos(made.dataset.sources, folders, new, lambda *_: disjoint, lambda: datetime.now(UTC))
    return made


def register_path() -> Path:
    return Path(os.environ["FEDCORE_REGISTER"]) / "register"
