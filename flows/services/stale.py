"""Runs, sweeps and flow runs that a killed driver left RUNNING, and their final states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from fedcore.errors import InputError
from fedcore.home import Home
from flows.recorded.former_runs import FormerRuns
from flows.run_lock import ID, Kind, is_driven, store_path, unless_driven
from flows.sweep_files import driven_by, is_decided, load_saved, recorded_runs
from flows.terminal.console import Terminal
from tasks.run_file import is_readable, read_meta
from tasks.tracking.run_writer import Status

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun
    from prefect.states import State


BEGINNING = timedelta(minutes=1)
"""Time from a flow run's start until its process holds the run's lock, on the slowest machine."""


@contextmanager
def left_behind(home: Home, name: str, kind: Kind) -> Iterator[Status | None]:
    """Final status of a run or sweep without a driver, locked for the block.

    FINISHED or FAILED by its checkpoint; a sweep is FINISHED once all its cells are; else KILLED. None if a driver has
    it, its id is not fedcore's, or the status is unknown: then the reason is printed on standard error.
    """
    former = FormerRuns(home)
    if kind == "sweep" and ID.fullmatch(name) and not is_driven(home, name):
        _find_cells(home, name, former)  # before the lock, for which a driver waits no longer than `LOOKED`
    with unless_driven(home, name, kind) as held:
        if not held:
            yield None
        else:
            yield _status(home, name, kind, former)


def _status(home: Home, name: str, kind: Kind, former: FormerRuns) -> Status | None:
    """Final status; None if it is unknown, with the reason on standard error, once per process."""
    try:
        return _sweep_ended(home, name, former) if kind == "sweep" else _run_ended(home, name)
    except InputError as error:
        if (kind, name) not in _reported:
            _reported.add((kind, name))
            Terminal(stderr=True).print_plain(f"how {kind} {name} ended is left open: {error}")
        return None


_reported: set[tuple[Kind, str]] = set()
"""Runs and sweeps of unknown status that this process has reported, once each."""


def _run_ended(home: Home, run: str) -> Status:
    path = store_path(home, run)
    _check_readable(path)
    state = read_meta(path).get("state")
    return "FINISHED" if state == "FINISHED" else "FAILED" if state == "FAILED" else "KILLED"


def _find_cells(home: Home, sweep: str, former: FormerRuns) -> None:
    """Fills `former` with a sweep's runs of former ids: slow in a home with many runs."""
    with suppress(InputError):
        config = load_saved(home, sweep)
        recorded_runs(home, sweep, config, former).runs(config.cells())


def _sweep_ended(home: Home, sweep: str, former: FormerRuns) -> Status:
    if not (home.sweeps / sweep).is_dir():
        return "KILLED"  # a person deleted it
    config = load_saved(home, sweep)
    runs = recorded_runs(home, sweep, config, former)
    if is_decided(home, config, runs):
        return "FINISHED"
    for cell in config.cells():
        _check_readable(store_path(home, runs.run(cell)))
    return "KILLED"


def _check_readable(path: Path) -> None:
    if not is_readable(path):
        raise InputError(f"{path} cannot be read")


def close_stale_task_runs(client: SyncPrefectClient, flow_run_id: UUID) -> None:
    """Sets task runs that an earlier attempt at this flow run left RUNNING to Crashed."""
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
    """Ends fedcore's RUNNING or PENDING flow runs without a driver; returns their ids.

    Also ends task runs that ended flow runs left RUNNING.
    """
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        _close_left_task_runs(client)
        found = [run for run in _undriven(client, home, ("RUNNING", "PENDING")) if not _begins(run)]
        return [str(run.id) for run in found if _closed(client, home, run)]


class StaleWatch:
    """Closes flow runs of killed drivers, repeatedly, so that the page offers Retry for them."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._seen: set[UUID] = set()

    def look(self, client: SyncPrefectClient) -> list[str]:
        """Ends flow runs that were without a driver at the last look too; returns their ids.

        One look is not enough. A new driver has a flow run before it locks the run; an ending one still writes its
        result after it releases the run.
        """
        found = {run.id: run for run in _undriven(client, self._home, ("RUNNING",)) if not self._is_over(run)}
        closed = [str(each) for each, run in found.items() if each in self._seen and _closed(client, self._home, run)]
        self._seen = set(found)
        return closed

    def _is_over(self, flow_run: FlowRun) -> bool:
        names = [name for _, name in _known(flow_run) if (self._home.runs / name).is_dir()]
        return any("result" in read_meta(store_path(self._home, name)) for name in names)


def _known(flow_run: FlowRun) -> list[tuple[Kind, str]]:
    """Run and sweep that a flow run's tags name. Ids are checked, because the server's tags become paths."""
    named = [tag.partition(":") for tag in flow_run.tags]
    return [(cast(Kind, kind), name) for kind, _, name in named if kind in ("run", "sweep") and ID.fullmatch(name)]


def _begins(flow_run: FlowRun) -> bool:
    """True if a process may be starting a flow run of a schedule or the page, without a lock yet.

    A command locks its run before it creates the flow run.
    """
    state = flow_run.state
    if state is None or not (state.is_pending() or flow_run.auto_scheduled):
        return False
    return datetime.now(UTC) - state.timestamp < BEGINNING


def _undriven(client: SyncPrefectClient, home: Home, states: Sequence[str]) -> list[FlowRun]:
    """fedcore's flow runs in these states whose run or sweep has no driver."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
    from prefect.client.schemas.objects import StateType

    types = [StateType(state) for state in states]
    wanted = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=types)))
    found = client.read_flow_runs(flow_run_filter=wanted)
    return [run for run in found if (known := _known(run)) and not any(is_driven(home, name) for _, name in known)]


def _closed(client: SyncPrefectClient, home: Home, flow_run: FlowRun) -> bool:
    """Ends an open flow run like its run or sweep, under their locks; false if ended or driven."""
    with ExitStack() as held:
        known = _known(flow_run)
        sweeps_first = sorted(known, key=lambda key: key[0] == "run")  # the sweep's search comes before any lock
        found = {key: held.enter_context(left_behind(home, key[1], key[0])) for key in sweeps_first}
        ended = {key: found[key] for key in known}
        state = client.read_flow_run(flow_run.id).state
        if None in ended.values() or state is None or not (state.is_running() or state.is_pending()):
            return False
        close_stale_task_runs(client, flow_run.id)
        client.set_flow_run_state(flow_run.id, _ended(home, flow_run, ended), force=True)
        return True


def _ended(home: Home, flow_run: FlowRun, ended: Mapping[tuple[Kind, str], Status | None]) -> State[Any]:
    """Completed if this flow run finished its run or sweep without reporting it; else Crashed."""
    from prefect.states import Completed, Crashed

    for (kind, name), status in ended.items():
        meta = read_meta(store_path(home, name)) if kind == "run" else {"flow_run_id": driven_by(home, name)}
        if status == "FINISHED" and meta.get("flow_run_id") == str(flow_run.id):
            return Completed(message=f"its {kind} is finished; its process ended before it reported so")
    over = ended and all(status == "FINISHED" for status in ended.values())
    left = "another one finished its work" if over else "`fedcore resume` goes on"
    return Crashed(message=f"its driver was killed; {left}")


def _close_left_task_runs(client: SyncPrefectClient) -> None:
    """Sets task runs still RUNNING in ended flow runs to Crashed: Cancel may kill their process."""
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
