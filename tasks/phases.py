"""Prefect's view of a run: each phase a task, and each round a task inside it.

Tasks run in the driver and hold no result: only the checkpoint records a run's progress. Prefect never retries a
task; a failed run is resumed as a whole.
"""

from __future__ import annotations

from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.context import FlowRunContext
from prefect.transactions import get_transaction

from fedcore.experiment.result import StatisticsResult
from fedcore.experiment.statistics_run import StatisticsRun
from fedcore.federation.in_process import Backend
from tasks.run_store import RunStore
from tasks.statistics import release
from tasks.training import Training

ROUND_TASKS, RUN_TASKS = 1_000, 10_000
"""Most rounds that `orchestration.tasks: auto` makes tasks, in a sweep and in a single run. Each task costs Prefect's
server 9 to 26 ms and 4 KB of memory."""

_PLAIN: dict[str, Any] = {"cache_policy": NO_CACHE, "persist_result": False, "retries": 0, "log_prints": False}


@task(name="round", task_run_name="round {phase}.{round}", **_PLAIN)
def round_task(training: Training, phase: int, round: int) -> None:
    """One communication round."""
    training.advance()


@task(name="moments", task_run_name="moments", **_PLAIN)
def release_task(run: StatisticsRun, backend: Backend, store: RunStore) -> StatisticsResult:
    """The release of statistics before a run, begun or resumed."""
    return release(run, backend, store)


@task(name="phase", task_run_name="phase {phase}", **_PLAIN)
def phase_task(training: Training, phase: int, rounds_are_tasks: bool) -> None:
    """The remaining rounds of a phase."""
    while training.phase == phase:
        if rounds_are_tasks:
            round_task(training, phase, training.round)
            _forget_round()
        else:
            training.advance()


def _forget_round() -> None:
    """Frees what Prefect would hold of a round's task until the task or flow around it ends.

    That is a transaction of 20 KB, to be committed or rolled back with all others, and a list of assets. A round has
    no result, no hook and no asset, and is never rolled back.
    """
    if (around := get_transaction()) is not None:
        around.children.clear()
    if (flow := FlowRunContext.get()) is not None:
        flow.task_run_assets.clear()


def rounds_are_tasks(choice: str, rounds: int, most: int = ROUND_TASKS) -> bool:
    """True if each round becomes a task, given `orchestration.tasks` and the number of rounds of the whole flow."""
    return choice == "round" or (choice == "auto" and rounds <= most)
