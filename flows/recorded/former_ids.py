"""Runs and sweeps under former ids: ids made from other paths than those of their data now.

Ids of fedcore 0.2 contained paths as typed; today's ids change when data are moved or a link replaces them. A run of a
former id is found by its parameters. A finished one stands for the run of the same parameters and data, which is not
charged again; if other data are in their place, it is another run. A stopped one cannot be resumed: noise depends on
the id.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.identity import run_id
from fedcore.experiment.stored.binding import ways_on
from fedcore.home import Home
from fedcore.paths import path_keys
from flows.recorded.former_runs import FormerRuns
from flows.run_lock import store_path
from flows.runs import RunRecord, read_run
from tasks.run_file import read_meta

_ENDED = ("FINISHED", "ABANDONED")
UNDER_FORMER = "under former ids (of paths as they were typed, or of where data were then)"


class RecordedRuns:
    """Lookup of the runs of a home by configs' parameters, under their present ids or former ones.

    Former ids are searched once, for a config with paths and without a run of its own: no new ones appear.
    """

    def __init__(self, home: Home, former_sweep: str | None = None, found: FormerRuns | None = None) -> None:
        """`found`: a search that other lookups share.

        `former_sweep`: former id of a saved sweep. For its cells, runs of former ids come first, whatever their data.
        """
        self._home, self._former_sweep = home, former_sweep
        self._found = FormerRuns(home) if found is None else found
        self._chosen: dict[str, RunRecord | None] = {}

    @property
    def former_sweep(self) -> str | None:
        return self._former_sweep

    def run(self, config: ExperimentConfig) -> str:
        """Id of the config's run: one that has ended under a former id, else the present id."""
        former = self.former(config)
        if former is None or (self._former_sweep is None and former.state not in _ENDED):
            return run_id(config)
        return former.run

    def runs(self, cells: Iterable[ExperimentConfig]) -> dict[str, str]:
        """`run` of each cell, by its present id."""
        return {run_id(cell): self.run(cell) for cell in cells}

    def record(self, config: ExperimentConfig) -> RunRecord | None:
        """Record of `run`; None if there is none. Raises InputError as `read_run`."""
        return read_run(self._home, self.run(config))

    def former(self, config: ExperimentConfig) -> RunRecord | None:
        """Run of these parameters under a former id, preferably an ended one.

        None if there is none, or the run was begun under its present id. A run on other data than today's counts only
        for the cells of a former sweep.
        """
        if not has_paths(config):
            return None
        run = run_id(config)
        if self._former_sweep is None and "parameters" in read_meta(store_path(self._home, run)):
            return None
        if run not in self._chosen:
            found = self._found.of(config)
            if self._former_sweep is None:
                found = [record for record in found if self._found.data(config, record) != "other"]
                found.sort(key=lambda record: (record.state not in _ENDED, self._found.data(config, record) != "same"))
            else:
                sweeps = (self._former_sweep, None)
                found.sort(
                    key=lambda record: (
                        sweeps.index(record.sweep) if record.sweep in sweeps else len(sweeps),
                        record.state not in _ENDED,
                    )
                )
            self._chosen[run] = found[0] if found else None
        return self._chosen[run]

    def is_done(self, config: ExperimentConfig) -> bool:
        """True if the run of these parameters is finished and MLflow has all of it."""
        record = self.record(config)
        return record is not None and record.complete

    def is_over(self, config: ExperimentConfig) -> bool:
        """True if nothing can be resumed: `is_done`, or the run was stopped under a former id."""
        former = self.former(config)
        return self.is_done(config) or (former is not None and former.state not in _ENDED)

    def stopped(self, cells: Iterable[ExperimentConfig]) -> list[RunRecord]:
        """Runs of the cells that were stopped under former ids, and were not begun anew."""
        found = [former for cell in cells if (former := self.former(cell)) is not None]
        return [record for record in found if record.state not in _ENDED]

    def taken_over(self, cells: Sequence[ExperimentConfig]) -> str | None:
        """Sentence on the number of cells that have ended under former ids; None without one."""
        ended = [cell for cell in cells if (former := self.former(cell)) is not None and former.state in _ENDED]
        if not ended:
            return None
        return f"{len(ended)} of {len(cells)} cells ended {UNDER_FORMER}: none is run again{self.doubt(ended)}"

    def doubt(self, cells: Sequence[ExperimentConfig]) -> str:
        """End of a sentence on runs of former ids that may be of other data; empty without one."""
        found = [(cell, self.former(cell)) for cell in cells]
        unknown = [each for cell, each in found if each is not None and self._found.data(cell, each) == "unknown"]
        if not unknown:
            return ""
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        return (
            f"; {unknown[0].run}{more} may be of other data than those that are there now: set repetition to another "
            "number if so"
        )


def refuse_former(record: RunRecord) -> None:
    """Raises InputError for a run of a former id, which cannot be resumed."""
    if (sentence := former_sentence(record)) is not None:
        raise InputError(sentence)


def former_sentence(record: RunRecord) -> str | None:
    """Sentence on why a run of a former id cannot be resumed, and what to do; None for a present id."""
    if (now := run_id(record.config)) == record.run:
        return None
    ways = ways_on(record.run, record.config.repetition, record.config.privacy.ledger == "sqlite")
    return (
        f"run {record.run} cannot go on: its id is of other paths than those of its data now, which make it {now} "
        f"(paths as they were typed, as ids had them before, or data that were moved); {ways}"
    )


def begins_anew(stopped: Sequence[RunRecord]) -> str:
    """Sentence on runs stopped under former ids: their parameters begin anew, at what cost."""
    first = stopped[0]
    durable = any(record.config.privacy.ledger == "sqlite" for record in stopped)
    cost = (
        "each at a charge of its own beside what the former one was charged; `fedcore budget close RUN` gives back "
        "what that did not spend"
        if durable
        else "with other noise; ledgers in memory keep no account of them"
    )
    more = f" and {len(stopped) - 1} more" if len(stopped) > 1 else ""
    return f"{first.run}{more} of the same parameters stopped {UNDER_FORMER}, and cannot go on: they begin anew, {cost}"


def has_paths(config: ExperimentConfig) -> bool:
    data = {key.split(".")[1] for key in path_keys(ExperimentConfig) if key.startswith("data.")}
    return any(getattr(config.data, key, None) is not None for key in data & type(config.data).model_fields.keys())
