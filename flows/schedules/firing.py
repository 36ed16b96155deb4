"""A flow run that a schedule made: what it runs, when it is skipped, and when its schedule ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from fedcore.errors import BusyError, SiloError
from flows.runs import REFUSALS
from flows.schedules.overdue import schedule_of
from flows.schedules.schedule import schedules, set_active

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun

AUTO = "auto-scheduled"
"""Prefect's own tag for what schedules made."""

_TAG = "repetition:"


class SkippedError(RuntimeError):
    """A firing that runs nothing; the message says why."""


@dataclass(frozen=True)
class Firing:
    """One firing of a schedule, at its first start or at a retry."""

    client: SyncPrefectClient
    flow_run: FlowRun
    schedule: UUID
    tags: list[str] = field(default_factory=lambda: [AUTO])
    """Those that the flow run keeps, beside what it is of: by one a retry knows its repetition again."""

    @classmethod
    def of(cls, client: SyncPrefectClient, flow_run_id: str) -> Firing | None:
        """The firing that a flow run is; None if a person or a command made it."""
        flow_run = client.read_flow_run(UUID(flow_run_id))
        schedule = schedule_of(flow_run)
        return None if schedule is None else cls(client, flow_run, schedule)

    @classmethod
    @contextmanager
    def carried_out(cls, flow_run_id: str) -> Iterator[Firing | None]:
        """The firing that a flow run is, if it is one, while it is carried out: BusyError becomes SkippedError, and a
        silo that refuses for good pauses the schedule."""
        from prefect.client.orchestration import get_client

        with get_client(sync_client=True) as client:
            firing = cls.of(client, flow_run_id)
            if firing is None:
                yield None
                return
            try:
                yield firing
            except BusyError as busy:
                raise SkippedError(f"skipped: {busy}") from busy
            except SiloError as refused:
                if refused.code in REFUSALS:
                    firing.pause(refused)
                raise

    def repetition(self, first: int, done: Callable[[int], bool]) -> int:
        """The repetition that this firing is of: at a retry the same as before, else `next_repetition`."""
        said = [tag.removeprefix(_TAG) for tag in self.flow_run.tags if tag.startswith(_TAG)]
        known = [count for count in said if count.isascii() and count.isdecimal() and len(count) < 10]
        found = int(known[0]) if known else next_repetition(first, done)
        self.tags.append(f"{_TAG}{found}")
        return found

    def pause(self, refused: SiloError) -> None:
        """Lets the schedule fire no more, and says so in the flow run's log."""
        from prefect import get_run_logger

        for schedule in schedules(self.client):
            if schedule.id == self.schedule:
                set_active(self.client, schedule, False)
        get_run_logger().warning(f"the schedule is paused: {refused}; `fedcore schedule resume` lets it fire again")


def next_repetition(first: int, done: Callable[[int], bool]) -> int:
    """The repetition, from `first` on, that is not `done` and follows only such that are.

    By doubling and then by halves: a schedule may have fired for years, and `done` reads files.
    """
    if not done(first):
        return first
    low, step = first, 1
    while done(low + step):
        low, step = low + step, 2 * step
    high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if done(middle) else (low, middle)
    return high


def skipped_state(why: Exception) -> Any:
    """The state of a flow run that ran nothing."""
    from prefect.states import Cancelled

    return Cancelled(message=str(why))
