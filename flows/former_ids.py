"""Runs and sweeps whose ids are of other paths than those of their data now.

Ids of fedcore 0.2 were of paths as they were typed; an id of now changes where data are moved, or a link replaces them.
A run of a former id is found again by its parameters. A finished one stands for the run of these parameters, which is
not charged again. A stopped one cannot go on: noise follows from the id.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.identity import run_id
from fedcore.experiment.kept.binding import ways_on
from fedcore.home import Home
from fedcore.paths import path_keys
from flows.run_lock import store_path
from flows.runs import RunRecord, read_run
from tasks.run_file import read_meta

_ENDED = ("FINISHED", "ABANDONED")


class KeptRuns:
    """Which runs of a home are those of configs' parameters, by their ids of now or by former ones.

    Runs of former ids are looked for once, where a config with paths has no run of its own: no new ones come.
    """

    def __init__(self, home: Home, former_sweep: str | None = None) -> None:
        """`former_sweep`: the former id of a kept sweep whose cells are meant: there runs of former ids come first."""
        self._home, self._former_sweep = home, former_sweep
        self._found: dict[str, dict[str, RunRecord]] = {}

    @property
    def former_sweep(self) -> str | None:
        return self._former_sweep

    def run(self, config: ExperimentConfig) -> str:
        """The id of the run that stands for the config: one that has ended under a former id, else that of now."""
        former = self.former(config)
        if former is None or (self._former_sweep is None and former.state not in _ENDED):
            return run_id(config)
        return former.run

    def runs(self, cells: Iterable[ExperimentConfig]) -> dict[str, str]:
        """`run` of each cell, by its id of now."""
        return {run_id(cell): self.run(cell) for cell in cells}

    def record(self, config: ExperimentConfig) -> RunRecord | None:
        """The record of `run`; None if there is none. Raises InputError as `read_run`."""
        return read_run(self._home, self.run(config))

    def former(self, config: ExperimentConfig) -> RunRecord | None:
        """The run of these parameters under a former id, one that has ended before others; None if there is none, or
        the run was begun under its id of now."""
        if not has_paths(config):
            return None
        run = run_id(config)
        if self._former_sweep is None and "parameters" in read_meta(store_path(self._home, run)):
            return None
        if config.name not in self._found:
            self._found[config.name] = self._of_name(config.name)
        return self._found[config.name].get(run)

    def is_done(self, config: ExperimentConfig) -> bool:
        """Whether the run of these parameters is finished, and MLflow has all of it."""
        record = self.record(config)
        return record is not None and record.complete

    def is_over(self, config: ExperimentConfig) -> bool:
        """Whether nothing is left that could go on: `is_done`, or the run was stopped under a former id."""
        former = self.former(config)
        return self.is_done(config) or (former is not None and former.state not in _ENDED)

    def stopped(self, cells: Iterable[ExperimentConfig]) -> list[RunRecord]:
        """Runs of the cells that were stopped under former ids, and were not begun anew."""
        found = [former for cell in cells if (former := self.former(cell)) is not None]
        return [record for record in found if record.state not in _ENDED]

    def _of_name(self, name: str) -> dict[str, RunRecord]:
        found: dict[str, RunRecord] = {}
        for folder in sorted(self._home.runs.glob(f"{name}-*")):
            try:
                record = read_run(self._home, folder.name)
            except InputError:  # of another schema, or damaged
                continue
            if record is None or (now := run_id(record.config)) == record.run:
                continue
            if now not in found or (found[now].state not in _ENDED and record.state in _ENDED):
                found[now] = record
        return found


def refuse_former(record: RunRecord) -> None:
    """Raises InputError for a run that would go on under another id than its own."""
    if (sentence := former_sentence(record)) is not None:
        raise InputError(sentence)


def former_sentence(record: RunRecord) -> str | None:
    """Why an unfinished run cannot go on under its id, and what is left to do; None if it is its id of now."""
    if (now := run_id(record.config)) == record.run:
        return None
    ways = ways_on(record.run, record.config.repetition, record.config.privacy.ledger == "sqlite")
    return (
        f"run {record.run} cannot go on: its id is of other paths than those of its data now, which make it {now} "
        f"(paths as they were typed, as ids had them before, or data that were moved); {ways}"
    )


def begins_anew(stopped: Sequence[RunRecord]) -> str:
    """Says of runs that were stopped under former ids that their parameters are begun anew, and what that costs."""
    first = stopped[0]
    durable = any(record.config.privacy.ledger == "sqlite" for record in stopped)
    cost = (
        "each at a charge of its own beside what the former one was charged; `fedcore budget close RUN` gives back "
        "what that did not spend"
        if durable else "with other noise; ledgers in memory keep no account of them"
    )  # fmt: skip
    more = f" and {len(stopped) - 1} more" if len(stopped) > 1 else ""
    return (
        f"{first.run}{more} of the same parameters stopped under ids that fedcore gave before, and cannot go on: they "
        f"begin anew, {cost}"
    )


def has_paths(config: ExperimentConfig) -> bool:
    data = {key.split(".")[1] for key in path_keys(ExperimentConfig) if key.startswith("data.")}
    return any(getattr(config.data, key, None) is not None for key in data & type(config.data).model_fields.keys())
