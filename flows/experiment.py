"""The Prefect flow of one run. Its parameters are the sections of the config, so the page draws a form for them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from prefect import flow, runtime
from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client

from fedcore.algorithms import AlgorithmConfig
from fedcore.data.config import DataConfig
from fedcore.data.sources.images import DigitsData
from fedcore.experiment.config import (
    ClusterConfig,
    ExperimentConfig,
    OrchestrationConfig,
    ParticipationConfig,
    TrackingConfig,
)
from fedcore.experiment.identity import run_id
from fedcore.experiment.result import RunResult
from fedcore.home import Home
from fedcore.models.config import ModelConfig
from fedcore.planning.config import PrivacyConfig
from fedcore.upward import rounded_up
from flows.drive import drive, stoppable
from flows.services.stale import close_stale_task_runs
from flows.session import Session
from tasks.phases import phase_task, release_task, rounds_are_tasks
from tasks.training import Training


def flow_run_name() -> str:
    """Method, epsilon and seed: what a person looks for in a list of cells."""
    config = ExperimentConfig.model_validate(_jsonable(runtime.flow_run.parameters))
    return f"{config.algorithm.name} | {config.privacy.level} | seed {config.seed}"


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
    cluster: ClusterConfig = ClusterConfig(),  # noqa: B008
    orchestration: OrchestrationConfig = OrchestrationConfig(),  # noqa: B008
    tracking: TrackingConfig = TrackingConfig(),  # noqa: B008
    sweep: str | None = None,
    flow_rounds: int | None = None,
) -> RunResult:
    """Trains one model, or takes the run of these parameters up where it stopped; returns its result.

    `sweep`: id of the sweep this is a cell of. `flow_rounds`: rounds of the whole sweep, for orchestration.tasks auto.
    """
    config = ExperimentConfig(
        name=name, seed=seed, repetition=repetition, data=data, model=model, privacy=privacy, algorithm=algorithm,
        participation=participation, cluster=cluster, orchestration=orchestration, tracking=tracking,
    )  # fmt: skip

    def rounds(training: Training) -> None:
        planned = flow_rounds if flow_rounds is not None else training.experiment.plan.rounds
        # A single run shows its rounds whatever their number; only a sweep has a limit.
        choice = "round" if flow_rounds is None and orchestration.tasks == "auto" else orchestration.tasks
        as_tasks = rounds_are_tasks(choice, planned)
        while (phase := training.phase) is not None:
            phase_task(training, phase, as_tasks)

    with Session.of_driver(Home.current()) as session, stoppable():
        flow_run_id = str(runtime.flow_run.id)
        flow_run = {"flow_run_id": flow_run_id, "flow_run_url": _page(session, flow_run_id)}
        _enter(config, sweep)
        result = drive(config, session, rounds, sweep=sweep, flow_run=flow_run, release=release_task)
        if tracking.mlflow:
            _link(session, result)
        return result


def parameters(config: ExperimentConfig) -> dict[str, Any]:
    """The flow's parameters for a config."""
    return {field: getattr(config, field) for field in ExperimentConfig.model_fields}


def _enter(config: ExperimentConfig, sweep: str | None) -> None:
    """Tags the flow run, through the API: `tags()` would add a call to every task run. Closes an earlier attempt."""
    tags = [f"run:{run_id(config)}", config.algorithm.name, f"seed:{config.seed}"]
    level = config.privacy.level
    tags += ["no-privacy"] if level == "no privacy" else [said.replace(" ", ":") for said in level.split(", ")]
    if sweep is not None:
        tags.append(f"sweep:{sweep}")
    with get_client(sync_client=True) as client:
        client.update_flow_run(runtime.flow_run.id, tags=tags)
        if runtime.flow_run.run_count > 1:
            close_stale_task_runs(client, UUID(str(runtime.flow_run.id)))


def _page(session: Session, flow_run_id: object) -> str:
    """Where `fedcore up` shows the flow run; without `up` nobody serves the page, and this is where it will be."""
    return f"{session.pages['prefect']}/runs/flow-run/{flow_run_id}"


def _link(session: Session, result: RunResult) -> None:
    """An artifact of the flow run: what came out, and the link to the run in MLflow."""
    mlflow_run = session.tracker.mlflow_run_id(timeout=30.0)
    error = "" if result.test_error is None else f"test error {result.test_error:.3f}, "
    spent, delta = result.epsilon_accounted, rounded_up(result.delta, 3)
    privacy = "NO PRIVACY" if spent is None else f"accounted epsilon {rounded_up(spent)} at delta {delta}"
    text = f"{result.run}: {error}{privacy}, {result.rounds} rounds."
    if mlflow_run is not None:
        text += f" [Run in MLflow]({session.pages['mlflow']}/#/runs/{mlflow_run}?workflowType=machine_learning)"
    create_markdown_artifact(text, key=f"result-{result.run.lower().replace('_', '-').replace('.', '-')}")


def _jsonable(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key in ExperimentConfig.model_fields}
