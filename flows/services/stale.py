"""Flow and task runs that a killed driver left RUNNING in Prefect's database: the next start closes them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from fedcore.home import Home
from flows.runs import is_driven, read_run

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun
    from prefect.states import State


_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


def close_stale_task_runs(client: SyncPrefectClient, flow_run_id: UUID) -> None:
    """Sets to Crashed the task runs that an earlier attempt at this flow run left RUNNING."""
    from prefect.states import Crashed

    close_task_runs(client, flow_run_id, Crashed(message="its driver was killed"))


def close_task_runs(client: SyncPrefectClient, flow_run_id: UUID, state: State[Any]) -> None:
    """Sets the task runs of this flow run that are RUNNING or PENDING to this state."""
    from prefect.client.schemas.filters import (
        FlowRunFilter,
        FlowRunFilterId,
        TaskRunFilter,
        TaskRunFilterState,
        TaskRunFilterStateType,
    )
    from prefect.client.schemas.objects import StateType

    open_tasks = client.read_task_runs(
        flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id])),
        task_run_filter=TaskRunFilter(
            state=TaskRunFilterState(type=TaskRunFilterStateType(any_=[StateType.RUNNING, StateType.PENDING]))
        ),
    )
    for task_run in open_tasks:
        client.set_task_run_state(task_run.id, state, force=True)


def close_stale_flow_runs(home: Home) -> list[str]:
    """Sets to Crashed every flow run of ours that is RUNNING although nobody drives its run or sweep, and the task runs
    that flow runs left RUNNING at their end; returns the flow runs' ids."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        _close_left_task_runs(client)
        return [_close(client, flow_run.id) for flow_run in _undriven(client, home, ("RUNNING", "PENDING"))]


class StaleWatch:
    """Closes flow runs of killed drivers while others wait for work: until then the page has no Retry for them."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._seen: set[UUID] = set()

    def look(self, client: SyncPrefectClient) -> list[str]:
        """Sets to Crashed what was found undriven at the last look too; returns ids.

        A driver that begins has a flow run before it holds the run, and one that ends still tells of its result.
        """
        found = {run.id for run in _undriven(client, self._home, ("RUNNING",)) if not self._is_over(run)}
        closed = [_close(client, each) for each in found & self._seen]
        self._seen = found
        return closed

    def _is_over(self, flow_run: FlowRun) -> bool:
        records = (read_run(self._home, known) for known in _known(flow_run) if (self._home.runs / known).is_dir())
        return any(record is not None and record.result is not None for record in records)


def _known(flow_run: FlowRun) -> list[str]:
    """Ids of the run and the sweep that a flow run's tags name: tags are the server's word, and ids become paths."""
    named = [tag.partition(":")[2] for tag in flow_run.tags if tag.startswith(("run:", "sweep:"))]
    return [each for each in named if _ID.fullmatch(each)]


def _undriven(client: SyncPrefectClient, home: Home, states: Sequence[str]) -> list[FlowRun]:
    """Flow runs of ours in these states whose run or sweep nobody drives."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
    from prefect.client.schemas.objects import StateType

    types = [StateType(state) for state in states]
    wanted = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=types)))
    found = client.read_flow_runs(flow_run_filter=wanted)
    return [run for run in found if (known := _known(run)) and not any(is_driven(home, each) for each in known)]


def _close(client: SyncPrefectClient, flow_run: UUID) -> str:
    from prefect.states import Crashed

    close_stale_task_runs(client, flow_run)
    message = "its driver was killed; `fedcore resume` goes on"
    client.set_flow_run_state(flow_run, Crashed(message=message), force=True)
    return str(flow_run)


def _close_left_task_runs(client: SyncPrefectClient) -> None:
    """Sets to Crashed the task runs that are RUNNING in flow runs that have ended: Cancel may kill their process."""
    from prefect.client.schemas.filters import (
        FlowRunFilter,
        FlowRunFilterState,
        FlowRunFilterStateType,
        TaskRunFilter,
        TaskRunFilterState,
        TaskRunFilterStateType,
    )
    from prefect.client.schemas.objects import StateType
    from prefect.states import Crashed

    ended = [StateType.CANCELLED, StateType.CRASHED, StateType.FAILED]
    left = client.read_task_runs(
        flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=ended))),
        task_run_filter=TaskRunFilter(
            state=TaskRunFilterState(type=TaskRunFilterStateType(any_=[StateType.RUNNING, StateType.PENDING]))
        ),
    )
    for task_run in left:
        client.set_task_run_state(task_run.id, Crashed(message="its flow run has ended"), force=True)
