"""Parameters, budgets, metrics and models of a run in MLflow, written by one thread beside training.

The import is cheap, and no public call waits for the store. Runs are found by their tags before one is created, and
rows that MLflow has are not sent again. So a resumed driver may repeat every call, and each point is written once.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from fedcore.experiment.served.phase_model import PhaseModel
from tasks.tracking.run_writer import (
    Address,
    DatasetInput,
    LeftBehind,
    Row,
    RunWriter,
    Status,
    Table,
    TrackingStore,
    View,
)
from tasks.tracking.write_queue import WriteQueue

PORTION = 1000
"""Rows that are read and written together."""
MOST_READS = 60
"""Attempts at reading rounds, about two minutes in all, before they are given up."""


class Tracker:
    """The MLflow record of runs, several at a time, and of the sweep around them.

    Every call returns at once; the thread carries the calls out in order. If MLflow is unreachable, training goes on,
    and entries wait and are retried. `problem` describes that in a sentence; `close` returns True if all was delivered.
    """

    def __init__(self, store: TrackingStore) -> None:
        self._store = store
        self._queue = WriteQueue(store.write_rows, store.is_final, store.doubt)

    def begin(
        self,
        run_id: str,
        experiment: str,
        name: str,
        params: Mapping[str, Any],
        tags: Mapping[str, str],
        data: DatasetInput | None = None,
    ) -> TrackedRun:
        """Opens the parent run of `run_id`, RUNNING again if it had ended; adds parameters, sets tags, links the data.

        A new run gets the name `name` in MLflow's `experiment`. Keys of nested `params` are joined by dots. An existing
        parameter keeps its value: MLflow never changes one.
        """
        run, at = TrackedRun(run_id, self._store, self._queue), _now()

        def job() -> None:
            run.begun_as(self._store.begin(run_id, experiment, name, params, tags, data, at))

        self._queue.put(job)
        return run

    def begin_sweep(
        self, sweep_id: str, name: str, params: Mapping[str, Any], view: View, cells: Sequence[str] = ()
    ) -> None:
        """Opens the summary run of a sweep in the experiment `name`, and adds this view of the cells to its page.

        `cells`: ids of runs. Those that MLflow has get the tag `cell_tag` here, the others in `begin`.
        """
        at = _now()
        self._queue.put(lambda: self._store.sweep.begin(sweep_id, name, params, view, cells, at))

    def finish_sweep(
        self,
        status: Status,
        view: View,
        tables: Mapping[str, Table],
        files: Iterable[Path] = (),
        totals: Mapping[str, float] | None = None,
        note: str = "",
    ) -> None:
        """Ends the summary run: writes tables, files, totals as metrics and a note, and replaces the view.

        `tables`: columns by name, by file name; the page shows them.
        """
        listed, at = tuple(files), _now()
        self._queue.put(lambda: self._store.sweep.finish(status, tables, listed, totals or {}, note, view, at))

    def register_best(self, run: str, name: str, tags: Mapping[str, str]) -> None:
        """Makes the model of a finished run a version of the registered model `name`, with `tags` and alias `best`."""
        self._queue.put(lambda: self._store.sweep.register_best(run, name, tags))

    def close_stale(self, left: LeftBehind) -> None:
        """Closes stale runs in the thread; `left` must give None for those that this driver itself begins."""
        self._queue.put(lambda: self._store.close_stale(left))

    def once_delivered(self, act: Callable[[], object]) -> None:
        """Calls `act` once all earlier entries are in MLflow or given up."""
        self._queue.put_surely(act)

    @property
    def problem(self) -> str | None:
        """A sentence about entries that MLflow has not taken; None if there is no problem."""
        return self._queue.problem

    def once_on_disk(self, act: Callable[[], object]) -> None:
        """Calls `act`, in the thread, once all earlier entries are on MLflow's disk; never if an entry was lost."""

        def job() -> None:
            if not self._queue.lost:
                self._store.settle()
                act()

        self._queue.put(job)

    def flush(self, timeout: float | None = None) -> bool:
        """Waits until all entries are in MLflow; False after `timeout` seconds."""
        return self._queue.flush(timeout)

    def close(self, timeout: float | None = None) -> bool:
        """Writes waiting entries to disk and ends the thread; False if an entry is not delivered. Never raises."""
        self._queue.put(self._settle)
        return self._queue.close(timeout)

    def _settle(self) -> None:
        self._store.settle()
        self._store.close()


class TrackedRun:
    """One run in MLflow: its parent run, and a child run for each of its phases."""

    def __init__(self, run_id: str, store: RunWriter, queue: WriteQueue) -> None:
        self._run, self._store, self._queue = run_id, store, queue
        self._begun = threading.Event()
        self._address: Address | None = None

    def begun_as(self, address: Address) -> None:
        """Records the parent run's ids in MLflow, once it is written."""
        self._address = address
        self._begun.set()

    def begin_phase(self, index: int, params: Mapping[str, Any]) -> None:
        """Opens the child run of a phase; one that is FINISHED stays as it is."""
        at = _now()
        self._queue.put(lambda: self._store.begin_phase(self._run, index, params, at))

    def metrics(self, phase: int, step: int, values: Mapping[str, float], position: int | None = None) -> None:
        """Appends one round's values: to the phase at `step`, and to the run at `position`, its round among all.

        Steps of a key must grow; those that MLflow already has are not sent. A value that is not finite is written as
        NaN: the store would turn infinity into 1.8e308.
        """
        self._queue.put(Row(self._run, phase, step, dict(values), _now(), position))

    def metrics_of(
        self, phase: int, rows: Callable[[], Iterable[tuple[int, Mapping[str, float]]]], before: int
    ) -> None:
        """Appends many rounds as `metrics` does; the thread calls `rows` for (step, values) in order in its turn.

        `before`: number of the run's rounds before the phase.
        """
        at, failed = _now(), 0

        def job() -> None:
            nonlocal failed
            read = (Row(self._run, phase, step, dict(values), at, before + step) for step, values in rows())
            while True:
                try:
                    portion = list(islice(read, PORTION))
                except (OSError, sqlite3.Error) as error:
                    failed += 1
                    if failed < MOST_READS:
                        raise
                    # Rows of other runs wait behind these: a missing file must not block them.
                    raise LookupError(f"rounds of run {self._run} cannot be read: {error}") from None
                if not portion:
                    return
                self._store.write_rows(portion)

        self._queue.put(job)

    @property
    def waiting(self) -> int:
        """Number of entries of all runs that are not written yet."""
        return self._queue.waiting

    def end_phase(self, index: int, metrics: Mapping[str, float], model: PhaseModel | None = None) -> None:
        """Writes final values and the model of a phase, then sets its run to FINISHED. May be repeated."""
        at = _now()
        self._queue.put(lambda: self._store.end_phase(self._run, index, metrics, model, at))

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Sets tags of the parent run, for instance the link to the Prefect page."""
        self._queue.put(lambda: self._store.set_tags(self._run, tags))

    def finish(
        self,
        status: Status,
        metrics: Mapping[str, float] | None = None,
        artifacts: Mapping[str, str] | None = None,
        model: PhaseModel | None = None,
        register_as: str | None = None,
        privacy_tags: Mapping[str, str] | None = None,
    ) -> None:
        """Ends the parent run, and with the same status every phase that still runs.

        `artifacts`: texts by file name. The model becomes a version of the registered model `register_as` with
        `privacy_tags`, at most one per run, however often this is called.
        """
        at = _now()
        self._queue.put(
            lambda: self._store.finish(
                self._run, status, metrics or {}, artifacts or {}, model, register_as, privacy_tags or {}, at
            )
        )

    def address(self, timeout: float) -> Address | None:
        """The parent run's ids in MLflow; None if it is not written within `timeout` seconds."""
        return self._address if self._begun.wait(timeout) else None


def _now() -> int:
    return time.time_ns() // 1_000_000
