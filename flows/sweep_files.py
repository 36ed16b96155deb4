"""A sweep on disk: its id, its saved config, and the results of its finished cells. Imports no engine."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from fedcore.bounded_file import read_within
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import make_plan
from fedcore.experiment.identity import SCHEMA, canonical, check_schema, run_id
from fedcore.experiment.result import RunResult
from fedcore.experiment.statistics import statistics_id
from fedcore.experiment.stored.configs import loaded_sweep, stored_sweep
from fedcore.experiment.sweep import SweepConfig
from fedcore.home import Home
from flows.ladders import ladder_states, tried_cells, with_choice
from flows.recorded.charged_plans import UnknownTotalError
from flows.recorded.former_ids import RecordedRuns
from flows.recorded.former_runs import FormerRuns
from flows.reports.settings import settings
from flows.reports.silo_totals import SiloTotal, totals_as_json, totals_sentence
from flows.reports.sweep_outcome import SweepOutcome
from flows.reports.table import cells_path, plot_path
from flows.runs import is_begun, read_result, statistics_path
from flows.sweep_budget import planned_totals, sweep_totals
from tasks.result_file import jsonable, write_atomically


def sweep_id(config: SweepConfig) -> str:
    """The sweep's name and 12 hex digits of the SHA-256 of its cells' parameters and patience."""
    chosen = [] if config.patience is None else [config.patience.model_dump_json()]
    cells = json.dumps([canonical(cell) for cell in config.cells()] + chosen)
    return f"{config.name}-{hashlib.sha256(cells.encode()).hexdigest()[:12]}"


def recorded_runs(home: Home, sweep: str, config: SweepConfig, found: FormerRuns | None = None) -> RecordedRuns:
    """Lookup of the runs of a saved sweep's cells, by former ids if the sweep has one.

    `found`: a search that several sweeps share.
    """
    return RecordedRuns(home, None if sweep_id(config) == sweep else sweep, found)


def saved_id(config: SweepConfig, runs: RecordedRuns | None) -> str:
    """Id of the sweep's folder in the home, which may be a former one."""
    return sweep_id(config) if runs is None or runs.former_sweep is None else runs.former_sweep


def refuse_former_sweep(home: Home, config: SweepConfig, runs: RecordedRuns) -> None:
    """Raises InputError for an unfinished sweep of a former id, which cannot be resumed."""
    if (sweep := runs.former_sweep) is None:
        return
    done, most, counted = progress(home, config, runs)
    raise InputError(
        f"sweep {sweep} cannot go on: its id is of other paths than those of its data now, which make it "
        f"{sweep_id(config)} (paths as they were typed, as ids had them before, or data that were moved); {done} of "
        f"{most} {counted}: `fedcore report {sweep}` shows them, and `fedcore sweep CONFIG` keeps them and begins the "
        "others anew, at charges of their own"
    )


def save_sweep(home: Home, config: SweepConfig, flow_run: str | None = None) -> None:
    """Writes the sweep's config, with `begun_earlier` and its flow run, for `resume` and `report`."""
    earlier = begun_earlier(home, config)
    saved = {"schema": SCHEMA, "sweep": stored_sweep(config, home.anchor), "earlier": earlier, "flow_run": flow_run}
    write_atomically(home.sweeps / sweep_id(config) / "sweep.json", jsonable(saved))


def begun_earlier(home: Home, config: SweepConfig, runs: RecordedRuns | None = None) -> list[str]:
    """Runs of the sweep, and releases for them, that were begun before the sweep was saved first.

    A person may have added the other cells after a look at these. Without a file, all begun runs and releases.
    """
    with contextlib.suppress(OSError, ValueError):
        saved = json.loads(read_within(home.sweeps / saved_id(config, runs) / "sweep.json"))
        earlier = saved.get("earlier") if isinstance(saved, dict) else None
        if isinstance(earlier, list) and all(isinstance(each, str) for each in earlier):
            return earlier
    cells, runs = config.cells(), runs or RecordedRuns(home)
    releases = {statistics_id(cell) for cell in cells if cell.released is not None}
    found = [run for run in map(runs.run, cells) if is_begun(home, run)]
    return found + sorted(each for each in releases if statistics_path(home, each).exists())


def all_totals(
    home: Home, config: SweepConfig, results: Sequence[RunResult], runs: RecordedRuns | None = None
) -> list[SiloTotal]:
    """The silos' accounts over the sweep. `results`: of its finished cells.

    By one plan if all cells were in the sweep before the first answer. By mu^2 of the begun cells if some were added
    later, or patience chooses among full batches.
    """
    runs = runs or RecordedRuns(home)
    if not begun_earlier(home, config, runs) and (config.patience is None or _samples(config)):
        return planned_totals(home, config.cells(), results, config.patience is not None, runs)
    return sweep_totals(home, tried_cells(home, config, runs), results, runs)


def totals_or_reason(
    home: Home, config: SweepConfig, results: Sequence[RunResult], runs: RecordedRuns | None = None
) -> tuple[list[SiloTotal], str]:
    """`all_totals` and a sentence on them; if they are unknown, [] and the reason."""
    try:
        totals = all_totals(home, config, results, runs)
    except UnknownTotalError as unknown:
        return [], str(unknown)
    return totals, totals_sentence(totals)


def _samples(config: SweepConfig) -> bool:
    plans = {id(plan): plan for plan in map(make_plan, config.cells())}.values()
    return any(event.sampling != "full" for plan in plans for event in plan.charged_events(plan.problem.silos[0].name))


def write_ladders(home: Home, config: SweepConfig, runs: RecordedRuns | None = None) -> None:
    """Writes ladders.json into the folder of a sweep with patience."""
    if config.patience is None:
        return
    saved = {
        "patience": config.patience.model_dump(mode="json"),
        "statement": config.patience.statement,
        "ladders": [ladder.as_json() for ladder in ladder_states(home, config, runs)],
    }
    write_atomically(home.sweeps / saved_id(config, runs) / "ladders.json", jsonable(saved))


def load_saved(home: Home, sweep: str) -> SweepConfig:
    """Config of a saved sweep. Raises InputError if its file is gone or damaged, or of an older schema."""
    path = home.sweeps / sweep / "sweep.json"
    try:
        saved = json.loads(read_within(path))
        schema, config = saved.get("schema"), saved.get("sweep")
    except (OSError, ValueError, AttributeError):
        raise _damaged(sweep, path) from None
    check_schema(f"sweep {sweep}", schema)
    try:
        return loaded_sweep(config, home.anchor)
    except ValueError:
        raise _damaged(sweep, path) from None


def driven_by(home: Home, sweep: str) -> str | None:
    """Id of the flow run that drove a saved sweep last; None if no file names one."""
    with contextlib.suppress(OSError, ValueError):
        saved = json.loads(read_within(home.sweeps / sweep / "sweep.json"))
        flow_run = saved.get("flow_run") if isinstance(saved, dict) else None
        return flow_run if isinstance(flow_run, str) else None
    return None


def _damaged(sweep: str, path: Path) -> InputError:
    return InputError(f"sweep {sweep}: {path} is missing or damaged; start it again with `fedcore sweep`")


def finished_results(home: Home, config: SweepConfig, runs: RecordedRuns | None = None) -> list[RunResult]:
    """Results of the finished cells, in order of the cells; with patience, of the chosen ones."""
    runs = runs or RecordedRuns(home)
    found = [runs.run(cell) for cell in config.cells()]
    if config.patience is not None:
        chosen = {ladder.chosen.run for ladder in ladder_states(home, config, runs) if ladder.chosen is not None}
        found = [run for run in found if run in chosen]
    results = (read_result(home, run) for run in found)
    return with_choice(config, [result for result in results if result is not None])


def all_complete(home: Home, cells: Sequence[ExperimentConfig], runs: RecordedRuns | None = None) -> bool:
    """True if every cell is finished and MLflow has all of it."""
    return all(map((runs or RecordedRuns(home)).is_done, cells))


def is_complete(home: Home, config: SweepConfig, runs: RecordedRuns | None = None) -> bool:
    """True if all cells are finished (with patience, ladders decided) and MLflow has all of it."""
    if config.patience is not None:
        return all(ladder.complete for ladder in ladder_states(home, config, runs))
    return all_complete(home, config.cells(), runs)


def is_decided(home: Home, config: SweepConfig, runs: RecordedRuns | None = None) -> bool:
    """True if no cell is left to run, even if MLflow lacks some of them."""
    done, most, _ = progress(home, config, runs)
    return done == most


def is_over(home: Home, config: SweepConfig) -> bool:
    """True if no cell can be resumed: `is_complete`, except for cells stopped under former ids."""
    runs, cells = RecordedRuns(home), config.cells()
    if config.patience is None:
        return all(map(runs.is_over, cells))
    stopped = {run_id(record.config) for record in runs.stopped(cells)}
    found = ladder_states(home, config, runs)
    return all(
        ladder.complete or any(rung.state == "open" and rung.run in stopped for rung in ladder.rungs)
        for ladder in found
    )


def progress(home: Home, config: SweepConfig, runs: RecordedRuns | None = None) -> tuple[int, int, str]:
    """Number done, number of all, and the unit: finished cells, or with patience decided ladders."""
    if config.patience is not None:
        found = ladder_states(home, config, runs)
        return sum(ladder.decided for ladder in found), len(found), "ladders decided"
    return len(finished_results(home, config, runs)), len(config.cells()), "cells finished"


def all_sweeps(home: Home) -> list[tuple[str, int, int, str]]:
    """Every saved sweep with its `progress`, without those that cannot be read or judged."""
    sweeps = sorted(path.name for path in home.sweeps.iterdir()) if home.sweeps.is_dir() else []
    found: list[tuple[str, int, int, str]] = []
    former = FormerRuns(home)
    for sweep in sweeps:
        with contextlib.suppress(InputError):
            config = load_saved(home, sweep)
            runs = recorded_runs(home, sweep, config, former)
            done, most, counted = progress(home, config, runs)
            if runs.former_sweep is not None:
                counted += f"; its data make it {sweep_id(config)} now, so it cannot go on under this id"
            found.append((sweep, done, most, counted))
    return found


def sweep_outcome(
    home: Home, config: SweepConfig, results: Sequence[RunResult], runs: RecordedRuns | None = None
) -> SweepOutcome:
    """Outcome of a sweep with these finished results. Raises InputError without a result and a decided ladder."""
    runs = runs or RecordedRuns(home)
    sweep, ladders = saved_id(config, runs), tuple(ladder_states(home, config, runs))
    if not results and not any(ladder.decided for ladder in ladders):
        raise InputError(f"sweep {sweep} has no finished cell yet")
    cells = config.cells()
    totals, statement = totals_or_reason(home, config, results, runs)
    plot, table = (str(path) if path.exists() else None for path in (plot_path(home, sweep), cells_path(home, sweep)))
    return SweepOutcome(
        sweep,
        len(cells),
        list(results),
        totals_as_json(totals),
        statement,
        plot,
        table,
        settings(config, runs.run),
        config.patience,
        ladders,
    )
