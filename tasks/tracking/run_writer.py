"""The interface of a tracking store, which writes runs and sweeps and finds them again.

`tasks.tracking_stores` makes a store; no other module names an implementation. Every method of a writer may be repeated
after a failure that left it half done; rows that the store already has are not written twice. Times (`at`, `timestamp`)
are milliseconds since 1970. Any method may raise the store's own errors; `TrackingStore.is_final` classifies them.
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
"""Gives the final status of the run or sweep of this id, and locks it for the block; gives None if a driver has it."""
MISSING = "fedcore.missing"
"""Tag of a finished run whose driver ended before the store had all its rows."""


def cell_tag(sweep: str) -> str:
    """The tag, with the value yes, of all cells of a sweep: a run may be a cell of several."""
    return f"fedcore.cell_of.{sweep}"


class Address(NamedTuple):
    """The store's ids of a run and of its experiment."""

    experiment: int
    id: str


class FoundRun(NamedTuple):
    """A run in the store. `params`: the keys of its parameters."""

    id: str
    experiment: int
    status: str
    tags: dict[str, str]
    params: set[str]


class View(NamedTuple):
    """A saved view of an experiment's runs: a filter and columns.

    `key`: names the view in a link, `viewStateShareKey=key`; `name`: in the page's list of saved views. `columns`:
    for instance "metrics.`test_error`". `filter`: in MLflow's language; "" for all runs.
    """

    key: str
    name: str
    columns: tuple[str, ...]
    filter: str = ""


class DatasetInput(NamedTuple):
    """A run's data for the page, public facts only.

    `digest`: of the version, at most 36 characters; `profile`: numbers by name; `columns`: names of the features, or
    () if there are too many.
    """

    name: str
    digest: str
    profile: dict[str, int | str]
    columns: tuple[str, ...] = ()


class Row(NamedTuple):
    """Values of one round of a run's phase. `timestamp`: the time at which they were measured.

    `step`: the round within the phase; `position`: within the run, None for rows that the run's own curve leaves out.
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
        """Opens the parent run, RUNNING again if it had ended. An existing parameter keeps its value."""

    def begin_phase(self, run: str, index: int, params: Mapping[str, Any], at: int) -> None:
        """Opens the child run of a phase; one that is FINISHED stays as it is."""

    def write_rows(self, rows: list[Row]) -> None:
        """Appends points to phases and to their runs, without those at steps that a key already has."""

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
    """Writes the summary run of the sweep that was begun last, and registers its best cell."""

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
        """The first run with these tags; None if there is none, or the store is missing or not readable."""

    def close_stale(self, left: LeftBehind) -> list[str]:
        """Ends every RUNNING run without a driver, with the status that `left` gives; returns fedcore's ids."""

    def doubt(self) -> None:
        """Drops everything cached from the store: a call failed, and may or may not have taken effect."""

    def is_final(self, error: Exception) -> bool:
        """True if another attempt cannot succeed: the entry is wrong, not the store unreachable."""

    def settle(self) -> None:
        """Returns when all written rows are on disk."""

    def close(self) -> None:
        """Closes the store, if it was opened."""
