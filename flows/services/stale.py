"""Flow and task runs that a killed driver left RUNNING in Prefect's database: the next start closes them."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from fedcore.home import Home
from flows.runs import is_driven

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient


def close_stale_task_runs(client: SyncPrefectClient, flow_run_id: UUID) -> None:
    """Sets to Crashed the task runs that an earlier attempt at this flow run left RUNNING."""
    from prefect.client.schemas.filters import (
        FlowRunFilter,
        FlowRunFilterId,
        TaskRunFilter,
        TaskRunFilterState,
        TaskRunFilterStateType,
    )
    from prefect.client.schemas.objects import StateType
    from prefect.states import Crashed

    open_tasks = client.read_task_runs(
        flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id])),
        task_run_filter=TaskRunFilter(
            state=TaskRunFilterState(type=TaskRunFilterStateType(any_=[StateType.RUNNING, StateType.PENDING]))
        ),
    )
    for task_run in open_tasks:
        client.set_task_run_state(task_run.id, Crashed(message="its driver was killed"), force=True)


def close_stale_flow_runs(home: Home) -> list[str]:
    """Sets to Crashed every flow run of ours that is RUNNING although nobody drives its run or sweep; returns ids."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
    from prefect.client.schemas.objects import StateType
    from prefect.states import Crashed

    running = FlowRunFilter(
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.RUNNING, StateType.PENDING]))
    )
    closed = []
    with get_client(sync_client=True) as client:
        for flow_run in client.read_flow_runs(flow_run_filter=running):
            ids = [tag.partition(":")[2] for tag in flow_run.tags if tag.startswith(("run:", "sweep:"))]
            if ids and not any(is_driven(home, known) for known in ids):
                close_stale_task_runs(client, flow_run.id)
                client.set_flow_run_state(
                    flow_run.id, Crashed(message="its driver was killed; `fedcore resume` goes on"), force=True
                )
                closed.append(str(flow_run.id))
    return closed
