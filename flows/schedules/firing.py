"""Firing: a flow run that a schedule created. Selects its repetition, skips it, or pauses its schedule."""

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
"""Prefect's own tag for flow runs that schedules created."""

_TAG = "repetition:"


class SkippedError(RuntimeError):
    """A firing that runs nothing; the message is the reason."""


@dataclass(frozen=True)
class Firing:
    """One firing of a schedule, at its first start or at a retry."""

    client: SyncPrefectClient
    flow_run: FlowRun
    schedule: UUID
    tags: list[str] = field(default_factory=lambda: [AUTO])
    """Tags of the flow run beside those of its run; one names the repetition, for a retry."""

    @classmethod
    def of(cls, client: SyncPrefectClient, flow_run_id: str) -> Firing | None:
        """The firing of a flow run; None if a person or a command created it."""
        flow_run = client.read_flow_run(UUID(flow_run_id))
        schedule = schedule_of(flow_run)
        return None if schedule is None else cls(client, flow_run, schedule)

    @classmethod
    @contextmanager
    def carried_out(cls, flow_run_id: str) -> Iterator[Firing | None]:
        """The firing of a flow run, or None, for the block that carries it out.

        Turns BusyError into SkippedError, and pauses the schedule after a silo's final refusal.
        """
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
        """The repetition of this firing: at a retry the same as before, else `next_repetition`."""
        tagged = [tag.removeprefix(_TAG) for tag in self.flow_run.tags if tag.startswith(_TAG)]
        known = [count for count in tagged if count.isascii() and count.isdecimal() and len(count) < 10]
        found = int(known[0]) if known else next_repetition(first, done)
        self.tags.append(f"{_TAG}{found}")
        return found

    def pause(self, refused: SiloError) -> None:
        """Pauses the schedule, and writes the refusal to the flow run's log."""
        from prefect import get_run_logger

        for schedule in schedules(self.client):
            if schedule.id == self.schedule:
                set_active(self.client, schedule, False)
        get_run_logger().warning(f"the schedule is paused: {refused}; `fedcore schedule resume` lets it fire again")


def next_repetition(first: int, done: Callable[[int], bool]) -> int:
    """First repetition from `first` on that is not `done`, if those before it are.

    Searches by doubling and halving: a schedule may have fired for years, and `done` reads files.
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
    """State of a flow run that ran nothing."""
    from prefect.states import Cancelled

    return Cancelled(message=str(why))
