"""Whole runs from config to result without an engine, as a flow runs them without Prefect's tasks."""

from __future__ import annotations

from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.result import RunResult
from fedcore.home import Home
from flows.driver.session import Session
from flows.training import train as train_run
from tasks.training import Training
from tests.registers import registered_config


def train(training: Training) -> None:
    while training.phase is not None:
        training.advance()


def run(home: Home, made: ExperimentConfig, session: Session | None = None) -> RunResult:
    """Drives the run in this session, or in one of its own that is closed at the end."""
    registered_config(made, home)
    own = session or Session(home)
    try:
        return train_run(made, own, train)
    finally:
        if session is None:
            own.close()
