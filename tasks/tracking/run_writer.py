"""The interface of a tracking store: what is written of runs and sweeps, and how runs are found again.

`tasks.tracking_stores` makes a store; no other module names an implementation. Every method of a writer may be repeated
after a failure that left it half done: rows that the store has already are not written twice. Times (`at`, `timestamp`)
are milliseconds since 1970. Any method may raise what the store raises; `TrackingStore.is_final` classifies it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from fedcore.experiment.served.phase_model import PhaseModel

Status = Literal["FINISHED", "FAILED", "KILLED"]
Table = Mapping[str, Sequence[Any]]
"""Columns by name."""
Kind = Literal["run", "sweep"]
LeftBehind = Callable[[Kind, str], AbstractContextManager[Status | None]]
"""How a run or sweep of this id ended, and keeps drivers from it for the block; None if one has it."""
MISSING = "fedcore.missing"
"""Tag of a finished run whose driver ended before all of it was in the store."""


def cell_tag(sweep: str) -> str:
    """The tag, with the value yes, of all cells of a sweep: a run may be a cell of several."""
    return f"fedcore.cell_of.{sweep}"


class Address(NamedTuple):
    """The store's ids of a run and of its experiment."""

    experiment: int
    id: str


class FoundRun(NamedTuple):
    """A run as it is in the store. `params`: the keys of its parameters."""

    id: str
    experiment: int
    status: str
    tags: dict[str, str]
    params: set[str]


class View(NamedTuple):
    """A way to list an experiment's runs: which of them, in which columns.

    `key`: by which a link names it, `viewStateShareKey=key`; `name`: in the page's list of saved views. `columns`:
    for instance "metrics.`test_error`". `filter`: in MLflow's language; "" for all runs.
    """

    key: str
    name: str
    columns: tuple[str, ...]
    filter: str = ""


class DatasetInput(NamedTuple):
    """A run's data as the page shows them, public facts only.

    `digest`: of the version, at most 36 characters; `profile`: numbers by name; `columns`: names of the features, ()
    for too many.
    """

    name: str
    digest: str
    profile: dict[str, int | str]
    columns: tuple[str, ...] = ()


class Row(NamedTuple):
    """Values of one round of a run's phase, with the time at which they were known.

    `step`: the round of the phase; `position`: of the run, None for rows that its own curve does not have.
    """

    run: str
    phase: int
    step: int
    values: dict[str, float]
    timestamp: int
    position: int | None = None


class RunWriter(Protocol):
    """Writes parameters, metrics, tags and models of runs: a parent run each, with a child run for each phase.

    `run`: fedcore's id. Methods other than `begin` raise LookupError for a run that was not begun.
    """

    def begin(
        self,
        run_id: str,
        experiment: str,
        name: str,
        params: Mapping[str, Any],
        tags: Mapping[str, str],
        data: DatasetInput | None,
        at: int,
    ) -> Address:
        """Opens the parent run, RUNNING again if it had ended. A parameter that is there keeps its value."""

    def begin_phase(self, run: str, index: int, params: Mapping[str, Any], at: int) -> None:
        """Opens the child run of a phase; one that is FINISHED stays as it is."""

    def write_rows(self, rows: list[Row]) -> None:
        """Appends points to phases, and to their runs; those at steps that a key has already are left out."""

    def end_phase(self, run: str, index: int, metrics: Mapping[str, float], model: PhaseModel | None, at: int) -> None:
        """Writes final values and the model of a phase, then sets its run to FINISHED."""

    def set_tags(self, run: str, tags: Mapping[str, str]) -> None:
        """Sets tags of the parent run."""

    def finish(
        self,
        run: str,
        status: Status,
        metrics: Mapping[str, float],
        artifacts: Mapping[str, str],
        model: PhaseModel | None,
        register_as: str | None,
        privacy_tags: Mapping[str, str],
        at: int,
    ) -> None:
        """Ends the parent run, and with the same status every phase that still runs; `artifacts`: texts by file name.

        The model becomes a version of the registered model `register_as`, at most one per run.
        """


class SweepWriter(Protocol):
    """Writes the summary run of one sweep, which was begun last, and the best of its cells."""

    def begin(
        self, sweep_id: str, name: str, params: Mapping[str, Any], view: View, cells: Sequence[str], at: int
    ) -> None:
        """Opens the summary run in the experiment `name`; `cells` that the store has get the sweep's `cell_tag`."""

    def finish(
        self,
        status: Status,
        tables: Mapping[str, Table],
        files: tuple[Path, ...],
        totals: Mapping[str, float],
        note: str,
        view: View,
        at: int,
    ) -> None:
        """Ends the summary run with tables by the names of their files, other files, totals and a note."""

    def register_best(self, run: str, name: str, tags: Mapping[str, str]) -> None:
        """Makes the model of a finished run a version of the registered model `name`, with the alias `best`."""


class TrackingStore(RunWriter, Protocol):
    """A store of one driver's thread. Making one opens nothing; the first call does."""

    @property
    def sweep(self) -> SweepWriter:
        """The writer of the sweep around the runs."""

    def find(self, tags: Mapping[str, str]) -> FoundRun | None:
        """The first run with these tags; None if there is none, or the store is not there, or not readable."""

    def close_stale(self, left: LeftBehind) -> list[str]:
        """Ends every run that is RUNNING without a driver as `left` finds that it ended; returns fedcore's ids."""

    def doubt(self) -> None:
        """Forgets what is known of the store: a call failed, and may have had its effect, or none."""

    def is_final(self, error: Exception) -> bool:
        """True if another attempt cannot succeed: a mistake in an entry, not a store that is away."""

    def settle(self) -> None:
        """Returns when all that was written is on disk."""

    def close(self) -> None:
        """Lets go of the store, if it was opened."""
