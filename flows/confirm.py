"""Asks for confirmation before a large run starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import make_plan
from fedcore.home import Home
from fedcore.planning.size import Size
from flows.recorded.former_ids import RecordedRuns
from flows.runs import all_runs, store_path
from tasks.run_file import read_meta


class Measured(NamedTuple):
    """Seconds per round that a finished run of this home took."""

    run: str
    seconds: float


def refuse_unless(yes: bool, home: Home, cells: Sequence[ExperimentConfig], at_most: bool = False) -> None:
    """Raises InputError without `yes` if these runs are large in sum. Reads the home, writes nothing.

    `at_most`: patience may end some runs early, so the size is an upper bound.
    """
    if not yes and (sentence := large(home, cells)) is not None:
        most = "at most " * at_most
        raise InputError(f"this would take {most}{sentence}. Give --yes to start it all the same; nothing was written")


def not_begun(
    home: Home, cells: Sequence[ExperimentConfig], runs: RecordedRuns | None = None
) -> list[ExperimentConfig]:
    """Configs of the runs that need a confirmation: a run that was begun, from anywhere, needs none."""
    runs = runs or RecordedRuns(home)
    new = {runs.run(cell): cell for cell in cells}
    return [cell for run, cell in new.items() if not read_meta(store_path(home, run))]


def large(home: Home, cells: Sequence[ExperimentConfig]) -> str | None:
    """Size and estimated time of these runs in sum, in words; None if they are not large."""
    sizes = [size_of(cell) for cell in cells]
    size = sum(sizes, Size())
    if not size.large:
        return None
    known = measured(home)
    times = [known.get(_kind(cell)) for cell in cells]
    took = [each.rounds * time.seconds for each, time in zip(sizes, times, strict=True) if time is not None]
    if len(took) < len(cells):
        return f"{size.words}; the time is unknown, since no run of this kind has finished here"
    runs = ", ".join(dict.fromkeys(time.run for time in times if time is not None))
    return f"{size.words}; about {_long(sum(took))} at the {1000 * sum(took) / size.rounds:.3g} ms a round of {runs}"


def size_of(cell: ExperimentConfig) -> Size:
    return Size.of(make_plan(cell), cell.privacy.ledger == "sqlite")


def measured(home: Home) -> dict[tuple[str, ...], Measured]:
    """Seconds per round of the newest finished run of each kind."""
    records, _ = all_runs(home)
    done = [(record, record.result) for record in records if record.result is not None and record.result.rounds]
    return {_kind(record.config): Measured(record.run, result.seconds / result.rounds) for record, result in done}


def _kind(config: ExperimentConfig) -> tuple[str, ...]:
    """The keys on which the time of a round depends most: method, data, ledger and backend."""
    return (config.algorithm.name, config.data.model_dump_json(), config.privacy.ledger, config.cluster.backend)


def _long(seconds: float) -> str:
    for unit, of in (("years", 365.25 * 86400), ("days", 86400.0), ("hours", 3600.0)):
        if seconds >= 2 * of:
            return f"{seconds / of:,.3g} {unit}"
    return f"{seconds / 60:.3g} minutes"
