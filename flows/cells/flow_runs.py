"""The interface by which a sweep shows its cells in Prefect: a flow run each, with its tasks, states and artifact.

`flows.driver.session` makes the writer; the sweep depends on these protocols only.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

from fedcore.errors import AbandonedError, BusyError, InputError, SiloError

State = Literal["RUNNING", "COMPLETED", "FAILED", "CRASHED", "ABANDONED"]
"""Prefect has no ABANDONED type: cells that the sweep stopped on purpose are COMPLETED, with that name of the state."""


class CellFlowRun(Protocol):
    """The flow run of one cell, below the sweep's own."""

    @property
    def id(self) -> str:
        """The flow run's id in Prefect."""

    def task(self, name: str, key: str, within: str | None = None) -> AbstractContextManager[str]:
        """A task run for the time of the block; its id. `within`: the task run that it is a part of."""

    def end(self, state: State, message: str | None = None) -> None:
        """Sets the flow run's final state."""

    def artifact(self, key: str, text: str) -> None:
        """Adds a text in Markdown to the flow run's page, and to the page of artifacts under its key."""


class CellFlowRuns(Protocol):
    """The flow runs of a sweep's cells. Methods raise InputError if Prefect cannot be written."""

    def begin(self, name: str, parameters: dict[str, Any], tags: list[str]) -> CellFlowRun:
        """A flow run of a cell, RUNNING from now on."""

    def write(self) -> None:
        """Hands on what has changed, at most about once a second."""

    def close(self) -> None:
        """Hands on all that has changed, and lets go of Prefect."""


def state_of(error: BaseException) -> State:
    """The state of a run that this error ended: abandoned, a failure of its own, or one of its driver."""
    if isinstance(error, AbandonedError):
        return "ABANDONED"
    return "FAILED" if isinstance(error, InputError | SiloError | BusyError) else "CRASHED"
