"""Sentences that a command prints before, during and after a run or sweep that it starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console

from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.identity import code_version
from fedcore.experiment.result import RunResult
from fedcore.home import Home
from flows.recorded.former_ids import RecordedRuns, begins_anew
from flows.run_lock import store_path
from flows.runs import RunRecord
from flows.services.up_file import browse, status
from flows.terminal.console import Terminal
from tasks.binding import other_environment
from tasks.run_file import read_meta


def notify(console: Console | None, text: str, soft_wrap: bool = False) -> None:
    """Prints the text, if there is a console. `soft_wrap`: leaves a long line whole, as links need."""
    if console is not None:
        console.print(text, highlight=False, soft_wrap=soft_wrap)


def notify_always(console: Console | None, text: str) -> None:
    """Prints the text, without a console on standard error: for new charges, or another run's result."""
    notify(console or Terminal(stderr=True), text)


def notify_restarts(console: Console | None, stopped: Sequence[RunRecord]) -> None:
    """Prints the stopped runs of former ids, whose parameters begin anew."""
    if stopped:
        notify_always(console, begins_anew(stopped))


def notify_other_environment(home: Home, console: Console | None, record: RunRecord) -> None:
    """Prints differences from an unfinished run's environment that may change last bits of sums."""
    if record.result is None and (differs := other_environment(read_meta(store_path(home, record.run)))) is not None:
        notify(console, f"{record.run} goes on where last bits of sums may differ ({differs}): as private, other bits")


def notify_pages(
    home: Home,
    console: Console | None,
    configs: Sequence[ExperimentConfig],
    in_mlflow: Callable[[dict[str, str]], str | None],
) -> None:
    """Prints the addresses of the pages. `in_mlflow`: the runs' page in MLflow, by the addresses of the services."""
    pages, served = browse(home)
    first = "" if served else "`make up`, then "
    if any(config.tracking.mlflow for config in configs):
        notify(console, f"browse the runs in MLflow:    {first}{in_mlflow(pages) or pages['mlflow']}", True)
    notify(console, f"browse the flows in Prefect:  {first}{pages['prefect']}/runs", True)
    if not status(home).get("deployments", {"alive": True})["alive"]:
        notify(console, "the deployments of `fedcore up` ended: schedules and Retry on the page wait for `fedcore up`")


def other_code(results: Sequence[RunResult]) -> str:
    """A warning if another version of the code made the results; else empty."""
    other = {result.code for result in results} - {code_version()}
    return f"; made by code {', '.join(sorted(other))}, this is {code_version()}" if other else ""


def unfinished(home: Home, cells: list[ExperimentConfig]) -> str:
    """Sentence on the cells that are not finished, with the first one's reason."""
    runs = RecordedRuns(home)
    open_cells = [(runs.run(cell), runs.record(cell)) for cell in cells]
    ended = ("FINISHED", "ABANDONED")
    failed = [(run, record) for run, record in open_cells if record is None or record.state not in ended]
    run, record = failed[0]
    reason = record.message or record.state if record is not None else "it did not start"
    return f"{len(failed)} of {len(cells)} runs did not finish; {run}: {reason}; `fedcore resume` goes on"
