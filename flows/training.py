"""One run, from its checkpoint to its end: one path for a first start, a resume and a retry."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from fedcore.errors import AbandonedError, BusyError, InputError, SiloError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment, make_plan
from fedcore.experiment.identity import SCHEMA
from fedcore.experiment.patience import PatienceConfig
from fedcore.experiment.result import AbandonedRun, RunResult
from fedcore.experiment.stored.configs import stored_experiment
from fedcore.federation.in_process import Backend
from fedcore.ledger.storage.known_runs import KnownRun
from flows.driver.session import Release, Session
from flows.driver.signals import stopped_by
from flows.pages.names import shown_name
from flows.recorded.former_ids import refuse_former
from flows.run_lock import drive_lock, store_path
from flows.run_publication import RunPublication
from flows.runs import REFUSALS
from tasks.calls import Calls, alone
from tasks.run_store import RunStore
from tasks.statistics import release
from tasks.tracking.tracker import TrackedRun
from tasks.training import Training

EXPECTED = (InputError, SiloError, BusyError)
"""Errors that a user sees as their sentence, without a traceback."""


def train(
    config: ExperimentConfig,
    session: Session,
    rounds: Callable[[Training], Calls[None] | None],
    *,
    sweep: str | None = None,
    name: str | None = None,
    flow_run: dict[str, str] | None = None,
    release: Release = release,
) -> RunResult:
    """Starts or resumes a run and returns its result; that of a finished run at once.

    `rounds`: carries out the remaining rounds, or returns the calls that do. `release`: carries out a release of
    statistics before the run. `name`: of the run in MLflow; None: `shown_name`.

    Raises InputError, SiloError, BusyError. The run's state on disk and in MLflow is then FINISHED, FAILED, or KILLED
    if it was interrupted.
    """
    return alone(train_calls(config, session, rounds, sweep=sweep, name=name, flow_run=flow_run, release=release))


def train_calls(
    config: ExperimentConfig,
    session: Session,
    rounds: Callable[[Training], Calls[None] | None],
    *,
    sweep: str | None = None,
    name: str | None = None,
    flow_run: dict[str, str] | None = None,
    release: Release = release,
    patience: PatienceConfig | None = None,
) -> Calls[RunResult]:
    """`train` as a generator that yields each call to silos.

    Raises AbandonedError if `patience` ends the run, now or before: its state is ABANDONED, and silos close it. A run
    that was finished under a former id is not run again. After one that was stopped under a former id, only a command
    begins anew, with a notice; other callers get InputError.
    """
    name = shown_name(config) if name is None else name
    for stopped in () if session.commanded else session.recorded_runs.stopped([config]):
        refuse_former(stopped)
    run = session.recorded_runs.run(config)
    with drive_lock(session.home, run) as lock:
        # With ledgers in memory, rounds lost in a power cut are computed again, to the same bits. Without waits for a
        # disk, a writing thread would cost training more than the writing itself, by turns at the interpreter.
        durable = config.privacy.ledger == "sqlite"
        # A shuffler stores the batch of the newest round only, so no question may be older.
        wait = config.orchestration.checkpoint == "each-round" or not durable or config.shuffler is not None
        store = RunStore(store_path(session.home, run), wait=wait, durable=durable)
        try:
            done = store.meta()
            if (result := _recorded(config, session, store, run, name, patience)) is not None:
                return result
            lease, first = store.take_lease()
            known = _known(config, session, run)
            again = "refused" in done
            if config.released is not None:  # the release of statistics writes to the same ledgers
                first = first and not known.anywhere()
            began = done.get("began") or datetime.now(UTC).isoformat(timespec="seconds")
            store.set_meta(
                state="RUNNING",
                began=began,
                parameters=json.dumps(stored_experiment(config, session.home.anchor)),
                rounds=make_plan(config).rounds,
                sweep=sweep,
                message=None,
                refused=None,
                schema=SCHEMA,
                **(flow_run or {}),
            )
            try:
                # Silos may have to release statistics here; a run that is stopped meanwhile can be resumed as usual.
                experiment = session.experiment(config, release)
            except BaseException as error:
                _end_by(error, store, None, lambda: again or (first and not known.anywhere()))
                raise
            # The run's folder may have been deleted after answers; then a ledger has the run. Ledgers of the present
            # versions are read here, before the run is written to them; the possibly many others only after a refusal.
            versions = {source.name: source.version for source in experiment.dataset.sources}
            at_first = first and not known.at(versions)
            publication = RunPublication(experiment, session, sweep, name, flow_run or {}, patience)
            backend = partial(session.backend, experiment, lease, at_first)

            def fresh() -> bool:
                return again or (at_first and not known.elsewhere(versions))

            return (yield from _train_calls(experiment, backend, session, store, rounds, publication, patience, fresh))
        finally:
            session.hold_until_published(lock)
            store.close()


def _recorded(
    config: ExperimentConfig, session: Session, store: RunStore, run: str, name: str, patience: PatienceConfig | None
) -> RunResult | None:
    """Result of a finished run; None for a run that has not ended. Publishes what MLflow lacks of an ended run.

    Raises AbandonedError for a run that patience ended.
    """
    done = store.meta()
    if done.get("state") not in ("FINISHED", "ABANDONED"):
        return None
    unpublished = config.tracking.mlflow and "tracked" not in done
    flow_run: dict[str, str] = {key: done[key] for key in ("flow_run_id", "flow_run_url") if key in done}

    def publication(sweep: str | None) -> RunPublication:
        return RunPublication(replace(session.experiment(config), run=run), session, sweep, name, flow_run, patience)

    if done["state"] == "FINISHED":
        result = RunResult.model_validate_json(done["result"])
        if unpublished:
            publication(done.get("sweep")).finish_again(store, result)
        return result
    ended = AbandonedRun.model_validate_json(done["abandoned"])
    if unpublished and patience is not None:
        publication(ended.sweep).abandon_again(store, ended)
    raise AbandonedError(ended.refusal)


def _known(config: ExperimentConfig, session: Session, run: str) -> KnownRun:
    """Lookup of the run in durable ledgers of this home; those of a remote cluster are out of reach."""
    if config.privacy.ledger != "sqlite":
        return KnownRun(session.home.ledger_folders, (), run)
    silos = (silo.name for silo in make_plan(config).problem.silos)
    return KnownRun(session.home.ledger_folders if config.cluster.address is None else None, silos, run)


def _train_calls(
    experiment: Experiment,
    opened: Callable[[], Backend],
    session: Session,
    store: RunStore,
    rounds: Callable[[Training], Calls[None] | None],
    publication: RunPublication,
    patience: PatienceConfig | None,
    fresh: Callable[[], bool],
) -> Calls[RunResult]:
    tracker = publication.begin() if experiment.config.tracking.mlflow else None
    backend = None
    try:
        backend = opened()
        training = Training(experiment, backend, store, tracker, session.progress, patience)
        training.start()
        fresh = _never
        with contextlib.suppress(AbandonedError):
            if (calls := rounds(training)) is not None:
                yield from calls
        if training.verdict is not None:
            ended = yield from training.abandon_calls(publication.sweep)
            files, recorded = partial(publication.write, ended), json.dumps(ended.as_json())
            store.set_meta(files, state="ABANDONED", message=ended.sentence, abandoned=recorded)
            if tracker is not None:
                publication.abandon(tracker, ended)
        else:
            result = yield from training.last_calls()
            if patience is not None:  # the choice depends on this run's losses too
                result = patience.with_statement(result)
            files = partial(publication.write_all, result, training.model)
            store.set_meta(files, result=json.dumps(result.as_json()), state="FINISHED")
            if tracker is not None:
                publication.finish(tracker, training.model, result)
            return result
    except BaseException as error:
        _end_by(error, store, tracker, fresh)
        raise
    finally:
        if backend is not None:
            backend.close()
    raise AbandonedError(ended.sentence)


def _never() -> bool:
    return False


def _end_by(error: BaseException, store: RunStore, tracker: TrackedRun | None, fresh: Callable[[], bool]) -> None:
    """Records the run's end by an error. `fresh`: true if no silo can have answered, so a refused run costs nothing."""
    if stopped_by() is not None or isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
        _end(store, tracker, "KILLED", f"stopped by {stopped_by() or type(error).__name__}")
    else:
        code = error.code if isinstance(error, SiloError) else None
        refused = code if code in REFUSALS and fresh() else None
        _end(store, tracker, "FAILED", str(error) or type(error).__name__, refused)


def _end(store: RunStore, tracker: TrackedRun | None, state: str, message: str, refused: str | None = None) -> None:
    # With the disk full or gone, the run reads as KILLED once this process has ended.
    with contextlib.suppress(InputError):
        try:
            store.set_meta(state=state, message=message, refused=refused)
        except BusyError:  # another driver has the run now, and records its end
            return
    if tracker is not None:
        tracker.finish(state)  # type: ignore[arg-type]
