"""Driving one run from wherever its checkpoint is to its end; the same for a first start, a resume and a retry."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import numpy as np
import yaml

from fedcore.errors import BusyError, InputError, SiloError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment, make_plan
from fedcore.experiment.identity import SCHEMA, run_id
from fedcore.experiment.result import RunResult
from fedcore.experiment.statistics import plan_as_json
from flows.runs import drive_lock, store_path
from flows.session import Release, Session
from tasks.calls import Calls, alone
from tasks.mlflow.tables import key_of
from tasks.result_file import jsonable, write_atomically
from tasks.run_store import RunStore
from tasks.statement import evaluation_metrics, phase_model, privacy_tags, run_parameters
from tasks.statistics import release
from tasks.tracking import TrackedRun
from tasks.training import Training


class Stopped(KeyboardInterrupt):
    """Ctrl-C or SIGTERM: the run ends as KILLED and can be resumed."""


_signal: str | None = None


def stopped_by() -> str | None:
    """The signal that asked this process to stop. What it interrupted may have turned the exception into another."""
    return _signal


@contextmanager
def stoppable() -> Iterator[None]:
    """Turns SIGTERM and SIGINT into `Stopped` for the time of the block (main thread only)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        global _signal
        _signal = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
        raise Stopped(_signal)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def drive(
    config: ExperimentConfig,
    session: Session,
    rounds: Callable[[Training], Calls[None] | None],
    *,
    sweep: str | None = None,
    flow_run: dict[str, str] | None = None,
    release: Release = release,
) -> RunResult:
    """The result of the run; `rounds` carries out what is left of it, or makes the calls that do, `release` the
    statistics before it, if any.

    A finished run is not run again: its recorded result is returned. Raises InputError, SiloError, BusyError; the
    run's state on disk and in MLflow says how it ended (FINISHED, FAILED, or KILLED if it was interrupted).
    """
    return alone(driven(config, session, rounds, sweep=sweep, flow_run=flow_run, release=release))


def driven(
    config: ExperimentConfig,
    session: Session,
    rounds: Callable[[Training], Calls[None] | None],
    *,
    sweep: str | None = None,
    flow_run: dict[str, str] | None = None,
    release: Release = release,
) -> Calls[RunResult]:
    """`drive`, stopping at each call that silos have to answer."""
    run = run_id(config)
    with drive_lock(session.home, run):
        # Ledgers in memory end with their process: what a power cut takes is computed again, to the same bits. And
        # where nothing waits for a disk, a thread costs training more than the writing, by turns at the interpreter.
        durable = config.privacy.ledger == "sqlite"
        # And a shuffler keeps the batch of the newest round only: none may be asked for that is older.
        wait = config.orchestration.checkpoint == "each-round" or not durable or config.shuffler is not None
        store = RunStore(store_path(session.home, run), wait=wait, durable=durable)
        try:
            done = store.meta()
            if done.get("state") == "FINISHED":
                result = RunResult.model_validate_json(done["result"])
                if config.tracking.mlflow and "tracked" not in done:
                    _track_finished(session.experiment(config), session, store, result, done)
                return result
            store.set_meta(
                state="RUNNING", pid=os.getpid(), parameters=config.model_dump_json(),
                rounds=make_plan(config).rounds, sweep=sweep, message=None, schema=SCHEMA, **(flow_run or {}),
            )  # fmt: skip
            try:
                # Silos may have to release statistics first; a run that is stopped there can be resumed like any other.
                experiment = session.experiment(config, release)
            except BaseException as error:
                _end_by(error, store, None)
                raise
            return (yield from _driven(experiment, session, store, rounds, sweep, flow_run or {}))
        finally:
            store.close()


def _driven(
    experiment: Experiment,
    session: Session,
    store: RunStore,
    rounds: Callable[[Training], Calls[None] | None],
    sweep: str | None,
    flow_run: dict[str, str],
) -> Calls[RunResult]:
    config, run = experiment.config, experiment.run
    tracker = _begin(experiment, session, sweep, flow_run) if config.tracking.mlflow else None
    backend = None
    try:
        backend = session.backend(experiment)
        training = Training(experiment, backend, store, tracker, session.progress)
        training.start()
        if (calls := rounds(training)) is not None:
            yield from calls
        result = yield from training.last_calls()
        texts = _texts(experiment, result)
        for name, text in texts.items():
            write_atomically(session.home.runs / run / name, text.encode())
        weights = {"w": training.model.tolist(), "shape": phase_model(experiment, training.model).weights_shape}
        model = jsonable({**weights, **_statement(experiment)})
        write_atomically(session.home.runs / run / "model.json", model)
        store.set_meta(result=json.dumps(result.as_json()), state="FINISHED")
        if tracker is not None:
            _finish(experiment, session, tracker, training.model, result)
        return result
    except BaseException as error:
        _end_by(error, store, tracker)
        raise
    finally:
        if backend is not None:
            backend.close()


def _begin(experiment: Experiment, session: Session, sweep: str | None, flow_run: dict[str, str]) -> TrackedRun:
    config = experiment.config
    statement = _statement(experiment)
    tags = {"fedcore.method": config.algorithm.name, "fedcore.trust": config.privacy.trust, **statement}
    tags |= {"fedcore.sweep": sweep} if sweep else {}
    tags |= {f"prefect.{key}": value for key, value in flow_run.items()}
    note = statement["privacy.statement"]
    if "flow_run_url" in flow_run:
        note += f"\n\n[Flow run in Prefect]({flow_run['flow_run_url']})"
    name = f"{config.algorithm.name} {config.privacy.level} seed {config.seed}"
    params = run_parameters(config, experiment.plan, experiment.statistics)
    return session.track(experiment.run, name, params, tags | {"mlflow.note.content": note})


def _statement(experiment: Experiment) -> dict[str, str]:
    return privacy_tags(experiment.config, experiment.plan, experiment.statistics)


_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""The same text, in a twentieth of the time where PyYAML was built with its C library."""


def _texts(experiment: Experiment, result: RunResult) -> dict[str, str]:
    """The run's files, which are also its artifacts in MLflow."""
    return {
        "config.yaml": yaml.dump(experiment.config.model_dump(mode="json"), Dumper=_DUMPER, sort_keys=False),
        "plan.json": jsonable(plan_as_json(experiment.plan, experiment.statistics)).decode(),
        "ledger.json": jsonable({"noise": result.noise, "silos": [silo.as_json() for silo in result.silos]}).decode(),
        "result.json": jsonable(result.as_json()).decode(),
    }


def _finish(experiment: Experiment, session: Session, tracker: TrackedRun, w: np.ndarray, result: RunResult) -> None:
    """Gives the result, the files, the model and its privacy statement to MLflow's writer."""
    keys = (
        "test_error", "test_loss", "epsilon_accounted", "epsilon_statistics", "epsilon_training", "epsilon_paper",
        "epsilon_shuffled",
        "delta", "rounds", "seconds", "majority_error", "test_auc", "test_rmse", "test_mae", "variance_explained",
        "silo_mean_error",
    )  # fmt: skip
    recall = {key_of(f"test_recall/{name}"): value for name, value in (result.test_recall or {}).items()}
    told = {} if result.at_last is None else evaluation_metrics(result.at_last)
    tracker.finish(
        "FINISHED",
        {key: float(value) for key in keys if (value := getattr(result, key)) is not None} | recall | told,
        _texts(experiment, result),
        phase_model(experiment, w),
        register_as=experiment.config.name,
        privacy_tags=_statement(experiment),
    )
    session.finished(experiment.run)


def _track_finished(
    experiment: Experiment, session: Session, store: RunStore, result: RunResult, meta: dict[str, str]
) -> None:
    """Tells MLflow all of a finished run once more: its driver ended before MLflow had it all."""
    flow_run: dict[str, str] = {key: meta[key] for key in ("flow_run_id", "flow_run_url") if key in meta}
    tracker = _begin(experiment, session, meta.get("sweep"), flow_run)
    training = Training(experiment, None, store, tracker)
    training.load()
    training.track_again()
    _finish(experiment, session, tracker, training.model, result)


def _end_by(error: BaseException, store: RunStore, tracker: TrackedRun | None) -> None:
    if stopped_by() is not None or isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
        _end(store, tracker, "KILLED", f"stopped by {stopped_by() or type(error).__name__}")
    else:
        _end(store, tracker, "FAILED", str(error) or type(error).__name__)


def _end(store: RunStore, tracker: TrackedRun | None, state: str, message: str) -> None:
    # With the disk full or gone, the run reads as KILLED once this process has ended.
    with contextlib.suppress(InputError):
        store.set_meta(state=state, message=message)
    if tracker is not None:
        tracker.finish(state)  # type: ignore[arg-type]


EXPECTED = (InputError, SiloError, BusyError)
"""Errors whose sentence is all that a user needs."""
