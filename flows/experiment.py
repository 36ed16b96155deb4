"""The Prefect flow of one run. Its parameters are the sections of the config, so the page draws a form for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from prefect import flow, get_run_logger, runtime
from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client

from fedcore.algorithms import AlgorithmConfig
from fedcore.data.config import DataConfig
from fedcore.data.sources.images import DigitsData
from fedcore.directed_rounding import shown_down, shown_up
from fedcore.experiment.config import ClusterConfig, ExperimentConfig, OrchestrationConfig, TrackingConfig
from fedcore.experiment.identity import run_id
from fedcore.experiment.result import RunResult, shortfall
from fedcore.home import Home
from fedcore.models.config import ModelConfig
from fedcore.planning.config import EvaluationConfig, ParticipationConfig, PrivacyConfig, ShufflerConfig
from fedcore.planning.plan import Plan
from fedcore.printable import in_markdown
from flows.drive import EXPECTED, drive, stoppable
from flows.kept.former_ids import UNDER_FORMER, KeptRuns
from flows.pages.links import artifact_key, flow_page, run_page
from flows.pages.names import name_in
from flows.schedules.adds import firing_adds
from flows.schedules.firing import Firing, SkippedError, skipped_state
from flows.services.stale import close_stale_task_runs
from flows.session import Session
from tasks.phases import RUN_TASKS, phase_task, release_task, rounds_are_tasks
from tasks.training import Training


def flow_run_name() -> str:
    """`name_in` of the flow run's own parameters."""
    given = runtime.flow_run.parameters
    config = ExperimentConfig.model_validate(_jsonable(given))
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
    """Trains one model, or takes the run of these parameters up where it stopped; returns its result.

    `sweep`: id of the sweep this is a cell of. Of a schedule's firing `orchestration.scheduled` says whether it is a
    repetition of its own.
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
                return _carried_out(config, sweep)
            return _carried_out(_fired(config, firing), sweep, firing.tags)
    except SkippedError as skipped:
        return skipped_state(skipped)


def _fired(config: ExperimentConfig, firing: Firing) -> ExperimentConfig:
    """What a firing runs, told in its log."""
    home, repeats = Home.current(), config.orchestration.scheduled == "repetition"
    if repeats:
        runs = KeptRuns(home)
        again = firing.repetition(config.repetition, lambda count: runs.is_over(_repeated(config, count)))
        config = _repeated(config, again)
    for sentence in firing_adds([config], repeats):
        get_run_logger().info(sentence)
    return config


def _repeated(config: ExperimentConfig, repetition: int) -> ExperimentConfig:
    return config.model_copy(update={"repetition": repetition})


def _carried_out(config: ExperimentConfig, sweep: str | None, tags: Sequence[str] = ()) -> RunResult:
    def rounds(training: Training) -> None:
        as_tasks = rounds_are_tasks(config.orchestration.tasks, training.experiment.plan.rounds, RUN_TASKS)
        while (phase := training.phase) is not None:
            get_run_logger().info(phase_line(training.experiment.plan, phase, training.round))
            phase_task(training, phase, as_tasks)

    with Session.of_driver(Home.current()) as session, stoppable():
        run = session.kept_runs.run(config)
        _enter([*flow_tags(config, sweep, run), *tags])
        if run != run_id(config):
            same = f"{run} is of the same parameters, {UNDER_FORMER}, and stands for this run"
            get_run_logger().info(f"{same}{session.kept_runs.doubt([config])}")
        flow_run = flow_page(session.pages, str(runtime.flow_run.id))
        name = name_in(session.home, config, sweep)
        session.failure = None
        try:
            result = drive(config, session, rounds, sweep=sweep, name=name, flow_run=flow_run, release=release_task)
        except EXPECTED as error:
            session.failure = error
            raise
        if config.tracking.mlflow:
            key, text = outcome(session, result)
            create_markdown_artifact(text, key=key)
        return result


def phase_line(plan: Plan, index: int, round: int) -> str:
    """What the flow run's log says as a phase begins, or goes on from a round after the first."""
    phase = plan.phases[index - 1]
    rounds = f"{phase.rounds} rounds" + (f", from round {round}" if round > 1 else "")
    noise = f"sigma {shown_down(phase.sigma)}, epsilon {shown_up(phase.epsilon_accounted)}"
    noise = noise if plan.problem.budget.private else "no noise"
    return f"phase {index} of {len(plan.phases)}: {rounds}, n {phase.n} at the smallest silo, {noise}"


def parameters(config: ExperimentConfig) -> dict[str, Any]:
    """The flow's parameters for a config."""
    return {field: getattr(config, field) for field in ExperimentConfig.model_fields}


def flow_tags(config: ExperimentConfig, sweep: str | None, run: str | None = None) -> list[str]:
    """By what a flow run is found: run, method, seed, budget, sweep. `run`: its id, if not that of now."""
    tags = [f"run:{run or run_id(config)}", config.algorithm.name, f"seed:{config.seed}"]
    level = config.privacy.level
    tags += ["no-privacy"] if level == "no privacy" else [said.replace(" ", ":") for said in level.split(", ")]
    return tags if sweep is None else [*tags, f"sweep:{sweep}"]


def outcome(session: Session, result: RunResult) -> tuple[str, str]:
    """An artifact's key and text: what came out, and the link to the run in MLflow."""
    in_mlflow = session.mlflow_address(result.run, timeout=30.0)
    error = "" if result.error is None else f"{result.measure} {result.error:.4g}, "
    spent, delta = result.epsilon_accounted, shown_up(result.delta, 3)
    privacy = "NO PRIVACY" if spent is None else f"accounted epsilon {shown_up(spent)} at delta {delta}"
    if result.epsilon_whole_silo is not None:
        whole, at = shown_up(result.epsilon_whole_silo), shown_up(result.delta_whole_silo, 3)
        privacy += f", for a whole silo {whole} at delta {at}"
    if result.epsilon_shuffled is not None:
        privacy += f" (of shuffled batches {shown_up(result.epsilon_shuffled)})"
    text = f"{result.run}: {error}{privacy}, {result.rounds} rounds."
    if (short := shortfall(result)) is not None:
        text += f" The model is {short}."
    text = in_markdown(text)
    if in_mlflow is not None:
        text += f" [Run in MLflow]({run_page(session.pages, in_mlflow)})"
    return artifact_key("result", result.run), text


def _enter(tags: Sequence[str]) -> None:
    """Tags the flow run, through the API: `tags()` would add a call to every task run. Closes an earlier attempt."""
    with get_client(sync_client=True) as client:
        client.update_flow_run(runtime.flow_run.id, tags=list(tags))
        if runtime.flow_run.run_count > 1:
            close_stale_task_runs(client, UUID(str(runtime.flow_run.id)))


def _jsonable(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key in ExperimentConfig.model_fields}
