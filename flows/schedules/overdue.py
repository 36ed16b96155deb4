"""Selects the firings of a schedule that run nothing, before a process starts for them.

A process needs seconds of processor time to find that it has nothing to do. If a schedule fires faster than that, such
firings would occupy the whole machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun
    from prefect.client.schemas.responses import FlowRunResponse


def schedule_of(flow_run: FlowRun | FlowRunResponse) -> UUID | None:
    """Id of the schedule that created a flow run; None if a person or a command created it."""
    maker = flow_run.created_by
    return maker.id if flow_run.auto_scheduled and maker is not None else None


def passed_over(
    waiting: Iterable[FlowRunResponse], going: Iterable[FlowRun], now: datetime
) -> tuple[dict[UUID, str], set[UUID]]:
    """Flow runs that run nothing, with the reason, and those that wait for an earlier firing.

    A due firing is skipped while an earlier one of its schedule runs. Of several due firings, after a pause of the
    services or during other runs, only the last one runs: it does the work of all. A person's retry always runs.
    """
    busy = {schedule: each for each in going if (schedule := schedule_of(each)) is not None}
    fired: dict[UUID, list[tuple[datetime, UUID]]] = {}
    for each in waiting:
        schedule, moment = schedule_of(each), each.expected_start_time
        if schedule is not None and moment is not None and each.run_count == 0:
            fired.setdefault(schedule, []).append((moment, each.id))
    over: dict[UUID, str] = {}
    early: set[UUID] = set()
    for schedule, firings in fired.items():
        firings.sort()
        due = [each for each in firings if each[0] <= now]
        if schedule in busy:
            reason = f"skipped: the schedule's firing of {_moment(busy[schedule].expected_start_time)} is not over"
            over.update((flow_run, reason) for _, flow_run in due)
        elif due:
            reason = f"missed: the schedule's firing of {_moment(due[-1][0])} is due too"
            over.update((flow_run, reason) for _, flow_run in due[:-1])
        first = 0 if due or schedule in busy else 1
        early.update(flow_run for _, flow_run in firings[len(due) + first :])
    return over, early


def _moment(moment: datetime | None) -> str:
    return "an unknown time" if moment is None else f"{moment:%F %T}"
