"""Interface for a sweep's cells in Prefect: each is a flow run with tasks, states and an artifact.

`flows.driver.session` makes the writer; the sweep depends on these protocols only.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

from fedcore.errors import AbandonedError, BusyError, InputError, SiloError

State = Literal["RUNNING", "COMPLETED", "FAILED", "CRASHED", "ABANDONED"]
"""Prefect has no ABANDONED type: it stores cells stopped on purpose as COMPLETED with that name."""


class CellFlowRun(Protocol):
    """The flow run of one cell, below the sweep's own."""

    @property
    def id(self) -> str:
        """The flow run's id in Prefect."""

    def task(self, name: str, key: str, within: str | None = None) -> AbstractContextManager[str]:
        """Id of a task run that lasts as long as the block. `within`: id of its parent task run."""

    def end(self, state: State, message: str | None = None) -> None:
        """Sets the flow run's final state."""

    def artifact(self, key: str, text: str) -> None:
        """Adds a Markdown text to the flow run's page, and to the page of artifacts under `key`."""


class CellFlowRuns(Protocol):
    """The flow runs of a sweep's cells. Methods raise InputError if Prefect cannot be written."""

    def begin(self, name: str, parameters: dict[str, Any], tags: list[str]) -> CellFlowRun:
        """Creates a cell's flow run in state RUNNING."""

    def write(self) -> None:
        """Writes changes to Prefect, at most about once a second."""

    def close(self) -> None:
        """Writes all remaining changes and disconnects from Prefect."""


def state_of(error: BaseException) -> State:
    """State of a run that this error ended: ABANDONED, FAILED by itself, or CRASHED with its driver."""
    if isinstance(error, AbandonedError):
        return "ABANDONED"
    return "FAILED" if isinstance(error, InputError | SiloError | BusyError) else "CRASHED"
