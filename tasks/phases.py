"""Prefect's view of a run: each phase a task, and each round a task inside it.

Tasks run in the driver and hold no result: what a run has done is in its checkpoint and nowhere else. A task is never
retried by Prefect itself; a failed run is resumed as a whole.
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
"""`orchestration.tasks: auto` makes rounds tasks up to this many in a sweep, and in a run by itself: each costs the
server 9 to 26 ms and 4 KB of its memory, and nobody looks at so many."""

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
            _forget_round()
        else:
            training.advance()


def _forget_round() -> None:
    """Lets go of what Prefect keeps of a task until the one around it ends, or the flow.

    Its transaction, 20 KB, to be committed or undone with all others: a round holds no result, has no hook, and is
    never undone. And which assets it had, of which we have none.
    """
    if (around := get_transaction()) is not None:
        around.children.clear()
    if (flow := FlowRunContext.get()) is not None:
        flow.task_run_assets.clear()


def rounds_are_tasks(choice: str, rounds: int, most: int = ROUND_TASKS) -> bool:
    """Whether each round becomes a task, for `orchestration.tasks` and the rounds of the whole flow."""
    return choice == "round" or (choice == "auto" and rounds <= most)
