"""Which firings of a schedule run nothing, decided before a process is started for them.

A process takes seconds of processor time to find out that it is to do nothing. Where a schedule fires faster than that,
the firings that do nothing would be all that a machine does.
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
    """The schedule whose firing a flow run is; None if a person or a command made it."""
    maker = flow_run.created_by
    return maker.id if flow_run.auto_scheduled and maker is not None else None


def passed_over(
    waiting: Iterable[FlowRunResponse], going: Iterable[FlowRun], now: datetime
) -> tuple[dict[UUID, str], set[UUID]]:
    """Flow runs that are to run nothing, with the reason, and those that wait until an earlier firing has begun.

    A firing is skipped where it is due while an earlier one of its schedule is carried out. Of several that are due,
    after a pause of the services or of other runs, the last does what all of them would. A retry was asked for, and is
    never passed over.
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
            said = f"skipped: the schedule's firing of {_moment(busy[schedule].expected_start_time)} is not over"
            over.update((flow_run, said) for _, flow_run in due)
        elif due:
            said = f"missed: the schedule's firing of {_moment(due[-1][0])} is due too"
            over.update((flow_run, said) for _, flow_run in due[:-1])
        first = 0 if due or schedule in busy else 1
        early.update(flow_run for _, flow_run in firings[len(due) + first :])
    return over, early


def _moment(moment: datetime | None) -> str:
    return "an unknown time" if moment is None else f"{moment:%F %T}"
