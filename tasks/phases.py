"""Prefect's view of a run: each phase a task, and each round a task inside it.

Tasks run in the driver and hold no result: what a run has done is in its checkpoint and nowhere else. A task is never
retried by Prefect itself; a failed run is resumed as a whole.
"""

from __future__ import annotations

from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from fedcore.experiment.result import StatisticsResult
from fedcore.experiment.statistics_run import StatisticsRun
from fedcore.federation.in_process import Backend
from tasks.run_store import RunStore
from tasks.statistics import release
from tasks.training import Training

ROUND_TASKS = 1000
"""`orchestration.tasks: auto` makes rounds tasks up to this many in one flow: each costs the server 9 to 26 ms."""

_PLAIN: dict[str, Any] = {"cache_policy": NO_CACHE, "persist_result": False, "retries": 0, "log_prints": False}


@task(name="round", task_run_name="round {phase}.{round}", **_PLAIN)
def round_task(training: Training, phase: int, round: int) -> None:
    """One communication round."""
    training.advance()


@task(name="moments", task_run_name="moments", **_PLAIN)
def release_task(run: StatisticsRun, backend: Backend, store: RunStore) -> StatisticsResult:
    """The release of statistics before a run, if it is not finished."""
    return release(run, backend, store)


@task(name="phase", task_run_name="phase {phase}", **_PLAIN)
def phase_task(training: Training, phase: int, rounds_are_tasks: bool) -> None:
    """All rounds of a phase that are left."""
    while training.phase == phase:
        if rounds_are_tasks:
            round_task(training, phase, training.round)
        else:
            training.advance()


def rounds_are_tasks(choice: str, rounds: int) -> bool:
    """Whether each round becomes a task, for `orchestration.tasks` and the rounds of the whole flow."""
    return choice == "round" or (choice == "auto" and rounds <= ROUND_TASKS)
