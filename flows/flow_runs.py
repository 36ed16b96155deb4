"""The Prefect flow of one run, and flow runs that this process creates and carries out.

A flow run belongs to the deployment of its kind, if there is one, so that Retry on the page resumes it there. This
process carries it out all the same: starting another process takes longer than most runs. Cancel on the page stops it.
The flow's parameters are the sections of the config, so the page draws a form for them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect import flow, get_run_logger, runtime
from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client

from fedcore.algorithms import AlgorithmConfig
from fedcore.data.data_config import DataConfig
from fedcore.data.sources.images import DigitsData
from fedcore.errors import InputError
from fedcore.experiment.config import ClusterConfig, ExperimentConfig, OrchestrationConfig, TrackingConfig
from fedcore.experiment.identity import run_id
from fedcore.experiment.result import RunResult
from fedcore.home import Home
from fedcore.models.model_config import ModelConfig
from fedcore.planning.plan_config import EvaluationConfig, ParticipationConfig, PrivacyConfig, ShufflerConfig
from flows.driver.session import Session
from flows.driver.signals import stoppable, stopped_by
from flows.pages.flow_run import flow_tags, outcome, phase_line
from flows.pages.links import flow_page
from flows.pages.names import name_in
from flows.recorded.former_ids import UNDER_FORMER, RecordedRuns
from flows.schedules.adds import firing_adds
from flows.schedules.firing import Firing, SkippedError, skipped_state
from flows.schedules.orders import Order
from flows.services.secret import authorization
from flows.services.stale import close_stale_task_runs, close_task_runs
from flows.training import EXPECTED, train
from tasks.phases import RUN_TASKS, phase_task, release_task, rounds_are_tasks
from tasks.training import Training

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun

LOOK = 2.0
"""Seconds between two checks for a cancelled flow run."""
_STOPPED = ("CANCELLING", "CANCELLED")


def carry_out(kind: str, parameters: Mapping[str, Any], tags: Sequence[str]) -> None:
    """Runs the flow `kind` (run or sweep) in this process, to its end, and raises its errors.

    Ctrl-C, SIGTERM and Cancel on the page leave the flow run Cancelled.
    """
    flow = flow_of(kind)
    with get_client(sync_client=True) as client:
        take_up(client, flow, _created(client, flow, parameters, tags), parameters)


def take_up(client: SyncPrefectClient, flow: Any, flow_run: FlowRun, parameters: Mapping[str, Any]) -> None:
    """Runs an existing flow run in this process, to its end; errors and stops as in `carry_out`."""
    from prefect.flow_engine import run_flow as run_engine

    with _cancellable(flow_run.id) as ended:
        try:
            run_engine(flow, flow_run=flow_run, parameters=dict(parameters))
        except BaseException as error:
            # The interrupted code may have turned the signal's exception into another error.
            if isinstance(error, KeyboardInterrupt) or stopped_by() is not None:
                ended.set()  # before the state changes: the thread that reads it would end this process here
                with contextlib.suppress(Exception):  # the server may be gone
                    _cancelled(client, flow_run.id, stopped_by() or str(error) or "Ctrl-C")
            raise


def flow_of(kind: str) -> Any:
    """The flow of a kind: `run` or `sweep`."""
    if kind == "run":
        return run_flow
    from flows.sweep import sweep_flow

    return sweep_flow


def _created(client: SyncPrefectClient, flow: Any, parameters: Mapping[str, Any], tags: Sequence[str]) -> FlowRun:
    """Creates a flow run that no deployment starts, because it is not scheduled. Retry on the page runs its order."""
    from prefect.exceptions import ObjectNotFound
    from prefect.states import Pending

    plain = flow.serialize_parameters(dict(parameters))
    try:
        deployment = client.read_deployment_by_name(f"{flow.name}/{flow.name}")
    except ObjectNotFound:
        return client.create_flow_run(flow, parameters=plain, state=Pending(), tags=tags)
    made = client.create_flow_run_from_deployment(deployment.id, parameters=plain, state=Pending(), tags=tags)
    Order(flow.name, plain).record(Home.current(), "flow-run", made.id)
    return made


@contextlib.contextmanager
def _cancellable(flow_run: UUID) -> Iterator[threading.Event]:
    """Sends SIGTERM to this process once the flow run is cancelled, unless the event that it yields is set."""
    ended = threading.Event()
    # Read here: Prefect's settings name the server in this thread only.
    from prefect.settings import PREFECT_API_URL

    page = f"{PREFECT_API_URL.value()}/flow_runs/{flow_run}"
    home = Home.current()

    def look() -> None:
        import httpx

        while not ended.wait(LOOK):
            with contextlib.suppress(httpx.HTTPError, InputError, ValueError, LookupError):
                known = {"Authorization": authorization(home, page)}
                found = httpx.get(page, headers=known, timeout=LOOK, trust_env=False).json()
                if found["state_type"] in _STOPPED and not ended.is_set():
                    os.kill(os.getpid(), signal.SIGTERM)
                    return

    thread = threading.Thread(target=look, name="fedcore-cancel", daemon=True)
    thread.start()
    try:
        yield ended
    finally:
        ended.set()
        thread.join()


def _cancelled(client: SyncPrefectClient, flow_run: UUID, why: str) -> None:
    from prefect.states import Cancelled

    message = f"stopped by {why}; `fedcore resume` goes on"
    close_task_runs(client, flow_run, Cancelled(message=message))
    client.set_flow_run_state(flow_run, Cancelled(message=message), force=True)


def flow_run_name() -> str:
    """`name_in` of the flow run's own parameters."""
    given = runtime.flow_run.parameters
    sections = {key: value for key, value in given.items() if key in ExperimentConfig.model_fields}
    config = ExperimentConfig.model_validate(sections)
    return name_in(Home.current(), config, given.get("sweep"))


@flow(name="run", flow_run_name=flow_run_name, persist_result=False, retries=0)
def run_flow(
    privacy: PrivacyConfig,
    algorithm: AlgorithmConfig,
    name: str = "experiment",
    seed: int = 0,
    repetition: int = 0,
    data: DataConfig = DigitsData(),  # noqa: B008
    model: ModelConfig = ModelConfig(),  # noqa: B008
    participation: ParticipationConfig = ParticipationConfig(),  # noqa: B008
    evaluation: EvaluationConfig | None = None,
    shuffler: ShufflerConfig | None = None,
    cluster: ClusterConfig = ClusterConfig(),  # noqa: B008
    orchestration: OrchestrationConfig = OrchestrationConfig(),  # noqa: B008
    tracking: TrackingConfig = TrackingConfig(),  # noqa: B008
    sweep: str | None = None,
) -> RunResult:
    """Trains one model, or resumes the run of these parameters; returns its result.

    `sweep`: id of the sweep that the run is a cell of. In a schedule's firing, `orchestration.scheduled` selects the
    unfinished run or a new repetition.
    """
    config = ExperimentConfig(
        name=name,
        seed=seed,
        repetition=repetition,
        data=data,
        model=model,
        privacy=privacy,
        algorithm=algorithm,
        participation=participation,
        evaluation=evaluation,
        shuffler=shuffler,
        cluster=cluster,
        orchestration=orchestration,
        tracking=tracking,
    )
    try:
        with Firing.carried_out(str(runtime.flow_run.id)) as firing:
            if firing is None:
                return _trained(config, sweep)
            return _trained(_fired(config, firing), sweep, firing.tags)
    except SkippedError as skipped:
        return skipped_state(skipped)


def _fired(config: ExperimentConfig, firing: Firing) -> ExperimentConfig:
    """The config of a schedule's firing; logs what the firing adds to accounts."""
    home, repeats = Home.current(), config.orchestration.scheduled == "repetition"
    if repeats:
        runs = RecordedRuns(home)
        again = firing.repetition(config.repetition, lambda count: runs.is_over(_repeated(config, count)))
        config = _repeated(config, again)
    for sentence in firing_adds([config], repeats):
        get_run_logger().info(sentence)
    return config


def _repeated(config: ExperimentConfig, repetition: int) -> ExperimentConfig:
    return config.model_copy(update={"repetition": repetition})


def _trained(config: ExperimentConfig, sweep: str | None, tags: Sequence[str] = ()) -> RunResult:
    def rounds(training: Training) -> None:
        as_tasks = rounds_are_tasks(config.orchestration.tasks, training.experiment.plan.rounds, RUN_TASKS)
        while (phase := training.phase) is not None:
            get_run_logger().info(phase_line(training.experiment.plan, phase, training.round))
            phase_task(training, phase, as_tasks)

    with Session.of_driver(Home.current()) as session, stoppable():
        run = session.recorded_runs.run(config)
        _enter([*flow_tags(config, sweep, run), *tags])
        if run != run_id(config):
            same = f"{run} is of the same parameters, {UNDER_FORMER}, and stands for this run"
            get_run_logger().info(f"{same}{session.recorded_runs.doubt([config])}")
        flow_run = flow_page(session.pages, str(runtime.flow_run.id))
        name = name_in(session.home, config, sweep)
        session.failure = None
        try:
            result = train(config, session, rounds, sweep=sweep, name=name, flow_run=flow_run, release=release_task)
        except EXPECTED as error:
            session.failure = error
            raise
        if config.tracking.mlflow:
            key, text = outcome(session, result)
            create_markdown_artifact(text, key=key)
        return result


def _enter(tags: Sequence[str]) -> None:
    """Tags the flow run and closes task runs of an earlier attempt. `tags()` would add a call to every task run."""
    with get_client(sync_client=True) as client:
        client.update_flow_run(runtime.flow_run.id, tags=list(tags))
        if runtime.flow_run.run_count > 1:
            close_stale_task_runs(client, UUID(str(runtime.flow_run.id)))
