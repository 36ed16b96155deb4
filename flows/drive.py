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
from typing import Any

import yaml

from fedcore.config import ExperimentConfig
from fedcore.errors import BusyError, InputError, SiloError
from fedcore.experiment import Experiment
from flows.runs import drive_lock, store_path
from flows.session import Session
from tasks.run_store import RunStore, jsonable, write_atomically
from tasks.statement import phase_model, privacy_tags, run_parameters
from tasks.tracking import Tracker
from tasks.training import Training


class Terminated(KeyboardInterrupt):
    """SIGTERM: ends like Ctrl-C, as KILLED, and can be resumed."""


@contextmanager
def terminable() -> Iterator[None]:
    """Turns SIGTERM into `Terminated` for the time of the block (main thread only)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def raise_terminated(number: int, frame: FrameType | None) -> None:
        raise Terminated(f"signal {number}")

    before = signal.signal(signal.SIGTERM, raise_terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def drive(
    config: ExperimentConfig,
    session: Session,
    rounds: Callable[[Training], None],
    *,
    sweep: str | None = None,
    flow_run: dict[str, str] | None = None,
) -> dict[str, Any]:
    """The result of the run; `rounds` carries out what is left of it.

    A finished run is not run again: its recorded result is returned. Raises InputError, SiloError, BusyError; the
    run's state on disk and in MLflow says how it ended (FINISHED, FAILED, or KILLED if it was interrupted).
    """
    experiment = session.experiment(config)
    run = experiment.run
    with drive_lock(session.home, run):
        store = RunStore(store_path(session.home, run), wait=config.orchestration.checkpoint == "each-round")
        try:
            done = store.meta()
            if done.get("state") == "FINISHED":
                return dict(json.loads(done["result"]))
            return _drive(experiment, session, store, rounds, sweep, flow_run or {})
        finally:
            store.close()


def _drive(
    experiment: Experiment,
    session: Session,
    store: RunStore,
    rounds: Callable[[Training], None],
    sweep: str | None,
    flow_run: dict[str, str],
) -> dict[str, Any]:
    config, run = experiment.config, experiment.run
    tracker = session.tracker if config.tracking.mlflow else None
    store.set_meta(
        state="RUNNING", pid=os.getpid(), parameters=config.model_dump_json(), rounds=experiment.plan.rounds,
        sweep=sweep, message=None, **flow_run,
    )  # fmt: skip
    if tracker is not None:
        tags = {"fedcore.method": config.algorithm.name, "fedcore.trust": config.privacy.trust}
        tags |= {"fedcore.sweep": sweep} if sweep else {}
        tags |= {f"prefect.{key}": value for key, value in flow_run.items()}
        name = f"{config.algorithm.name} {_epsilon(config)} seed {config.seed}"
        statement = privacy_tags(config, experiment.plan)
        note = statement["privacy.statement"]
        if "flow_run_url" in flow_run:
            note += f"\n\n[Flow run in Prefect]({flow_run['flow_run_url']})"
        tags |= {"mlflow.note.content": note} | statement
        tracker.begin(run, name, run_parameters(config, experiment.plan), tags)
    backend = None
    try:
        backend = session.backend(experiment)
        training = Training(experiment, backend, store, tracker, session.progress)
        if hasattr(backend, "keep_receipts"):
            backend.keep_receipts(lambda: training.receipts)
        training.start()
        rounds(training)
        result = training.finish()
        _publish(experiment, session, tracker, training, result)
        store.set_meta(result=json.dumps(result), state="FINISHED")
        return result
    except (KeyboardInterrupt, SystemExit) as error:
        _end(store, tracker, "KILLED", "stopped by SIGTERM" if isinstance(error, Terminated) else "stopped by Ctrl-C")
        raise
    except BaseException as error:
        _end(store, tracker, "FAILED", str(error) or type(error).__name__)
        raise
    finally:
        if backend is not None:
            backend.close()


def _publish(
    experiment: Experiment,
    session: Session,
    tracker: Tracker | None,
    training: Training,
    result: dict[str, Any],
) -> None:
    """Writes the run's files, and the same texts, its model and its privacy statement to MLflow."""
    config, plan = experiment.config, experiment.plan
    texts = {
        "config.yaml": yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False),
        "plan.json": jsonable(plan.as_json()).decode(),
        "ledger.json": jsonable({"noise": result["noise"], "silos": result["silos"]}).decode(),
        "result.json": jsonable(result).decode(),
    }
    folder = session.home.runs / experiment.run
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())
    write_atomically(
        folder / "model.json", jsonable({"w": training.model.tolist(), **privacy_tags(config, plan)})
    )
    if tracker is not None:
        metrics = {
            key: float(result[key])
            for key in (
                "test_error",
                "test_loss",
                "epsilon_accounted",
                "epsilon_paper",
                "delta",
                "rounds",
                "seconds",
            )
            if result.get(key) is not None
        }
        model = phase_model(experiment, training.model)
        tracker.finish(
            "FINISHED",
            metrics,
            texts,
            model,
            register_as=config.name,
            privacy_tags=privacy_tags(config, plan),
        )


def _end(store: RunStore, tracker: Tracker | None, state: str, message: str) -> None:
    # With the disk full or gone, the run reads as KILLED once this process has ended.
    with contextlib.suppress(InputError):
        store.set_meta(state=state, message=message)
    if tracker is not None:
        tracker.finish(state)  # type: ignore[arg-type]


def _epsilon(config: ExperimentConfig) -> str:
    return "no privacy" if config.privacy.epsilon is None else f"epsilon {config.privacy.epsilon:g}"


EXPECTED = (InputError, SiloError, BusyError)
"""Errors whose sentence is all that a user needs."""
