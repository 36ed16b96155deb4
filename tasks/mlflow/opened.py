"""MLflow's database, opened at its first use; finds a run by its tags before it creates one."""

from __future__ import annotations

import getpass
from functools import cached_property
from pathlib import Path

from fedcore import __version__
from tasks.mlflow.database import open_database
from tasks.mlflow.open_run import OpenRun
from tasks.mlflow.tables import MlflowTables
from tasks.tracking.run_writer import View

SOURCE = f"fedcore {__version__}"
LISTED = View(
    "fedcore",
    "fedcore",
    (
        "attributes.`Dataset`",
        "params.`algorithm.name`",
        "params.`privacy.epsilon`",
        "params.`seed`",
        "metrics.`test_error`",
        "metrics.`test_rmse`",
        "metrics.`epsilon_accounted`",
        "metrics.`rounds`",
    ),
)
"""The view of an experiment's runs that links open; a person may save another form of this view."""


class OpenedStore:
    """The database of one driver's thread. A call that raised may be repeated."""

    def __init__(self, uri: str, artifacts: Path) -> None:
        self._uri, self._artifacts = uri, artifacts
        self._experiments: dict[str, int] = {}

    @cached_property
    def tables(self) -> MlflowTables:
        return open_database(self._uri, self._artifacts)

    def doubt(self) -> None:
        """Drops the cached ids of experiments."""
        self._experiments.clear()

    def close(self) -> None:
        """Closes the database, if it was opened."""
        tables = self.__dict__.pop("tables", None)
        if tables is not None:
            tables.close()

    def find_or_create(self, experiment: str, name: str, tags: dict[str, str], at: int) -> tuple[OpenRun, bool]:
        """The run with these tags, of any experiment, and False; a new one and True if there is none."""
        found = self.tables.runs(tags)
        if found:
            return OpenRun.found(found[0]), False
        if experiment not in self._experiments:
            self._experiments[experiment] = self.tables.experiments.of(experiment, self._artifacts, LISTED)
        return self.create(self._experiments[experiment], name, tags, at), True

    def create(self, experiment: int, name: str, tags: dict[str, str], at: int) -> OpenRun:
        """A new run, RUNNING since `at`."""
        tags = {"mlflow.user": _user(), "mlflow.source.name": SOURCE, "mlflow.source.type": "LOCAL", **tags}
        return OpenRun(self.tables.create_run(experiment, name, tags, at), experiment, last={})


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # the process's user has no name
        return "unknown"
