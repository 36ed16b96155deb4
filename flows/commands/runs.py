"""`runs`: lists the runs of this home with their states, methods, data and times."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedcore.errors import InputError

if TYPE_CHECKING:
    from flows.runs import RunRecord

from flows.commands.arguments import AsJson, console, number
from flows.commands.typed_numbers import whole

STATES = ("RUNNING", "FINISHED", "FAILED", "KILLED", "ABANDONED")
_LEAST_NEEDED = ("seed", "sweep", "data", "next", "took", "method", "epsilon", "began")


def runs(
    beginning: Annotated[str, typer.Argument(help="beginning of the ids to list; all without it")] = "",
    state: Annotated[str | None, typer.Option(help=f"one of {', '.join(STATES)}")] = None,
    method: Annotated[str | None, typer.Option(help="only runs of this method, as mbsgd")] = None,
    data: Annotated[str | None, typer.Option(help="only runs on this source of data, as digits")] = None,
    sweep: Annotated[str | None, typer.Option(help="only cells of the sweep whose id begins so")] = None,
    last: Annotated[int | None, typer.Option(help="only this many, the newest", **whole(1))] = None,
    as_json: AsJson = False,
) -> None:
    """List runs with their states, the newest last, and sweeps. KILLED: the run's driver ended; resume the run."""
    from fedcore.home import Home
    from flows.runs import all_runs, damaged_runs
    from flows.sweep_files import all_sweeps

    wanted = None if state is None else state.upper()
    if wanted not in (None, *STATES):
        raise InputError(f"--state {state} must be one of {', '.join(STATES)}")
    home = Home.current()
    records, older = all_runs(home)
    found = [
        record
        for record in sorted(records, key=lambda record: record.began)
        if record.run.startswith(beginning)
        and wanted in (None, record.state)
        and method in (None, record.config.algorithm.name)
        and data in (None, record.config.data.source)
        and (sweep is None or (record.sweep or "").startswith(sweep))
    ]
    found = found[-last:] if last is not None else found
    if as_json:
        print(json.dumps([_as_json(record) for record in found], indent=2))
        return
    _show(found, bool(records))
    if any(each is not None for each in (state, method, data, last)) or beginning:
        return
    for name, done, most, units in all_sweeps(home):
        if name.startswith(sweep or ""):
            console.print(f"sweep {name}: {done} of {most} {units}", highlight=False)
    for name in damaged_runs(home, {record.run for record in records}):
        console.print(f"run {name}: its checkpoint is damaged", highlight=False)
    if older:
        count = "1 run" if len(older) == 1 else f"{len(older)} runs"
        console.print(f"{count} of an older schema, which this version does not read", highlight=False)


def _as_json(record: RunRecord) -> dict[str, Any]:
    fields = ("run", "state", "phase", "round", "rounds", "sweep", "message")
    config, result = record.config, record.result
    return {name: getattr(record, name) for name in fields} | {
        "method": config.algorithm.name,
        "data": config.data.source,
        "epsilon": config.privacy.epsilon,
        "seed": config.seed,
        "began": record.began.isoformat(timespec="seconds"),
        "seconds": None if result is None else result.seconds,
        "error": None if result is None else result.error,
    }


def _show(records: Sequence[RunRecord], there_are_others: bool) -> None:
    if not records:
        nothing = "no such run" if there_are_others else "no runs yet; try `fedcore run conf/experiment/digits.yaml`"
        console.print(nothing, highlight=False)
        return
    from flows.recorded.former_ids import former_sentence
    from flows.reports.table import fitting, plain_table

    results = [record.result for record in records]
    columns: dict[str, list[str]] = {
        "run": [record.run for record in records],
        "state": [str(record.state) for record in records],
        "method": [record.config.algorithm.name for record in records],
        "epsilon": [record.config.privacy.level.removeprefix("epsilon ") for record in records],
        "seed": [str(record.config.seed) for record in records],
        "data": [record.config.data.source for record in records],
        "next": ["-" if r.result or r.phase is None else f"{r.phase}.{r.round}" for r in records],
        "error": [number(None if result is None else result.error) for result in results],
        "began": [_date(record.began) for record in records],
        "took": ["-" if result is None else _duration(result.seconds) for result in results],
        "sweep": [(record.sweep or "-").rpartition("-")[2] for record in records],
    }
    if not any(record.sweep for record in records):
        del columns["sweep"]
    if all(each == "-" for each in columns["next"]):
        del columns["next"]
    table = plain_table()
    shown = fitting(columns, _LEAST_NEEDED, console.width)
    for head in shown:
        table.add_column(head, no_wrap=True, justify="right" if head in ("error", "took", "seed") else "left")
    for index in range(len(records)):
        table.add_row(*(cells[index] for cells in shown.values()))
    console.print(table)
    for record in records:
        if record.message:
            console.print(f"{record.run}: {record.message}", highlight=False, markup=False)
        if record.state in ("FAILED", "KILLED") and (sentence := former_sentence(record)) is not None:
            console.print(sentence, highlight=False, markup=False)


def _date(began: datetime) -> str:
    """Month, day and time in this machine's time zone; the date with its year for another year."""
    local = began.astimezone()
    return f"{local:%m-%d %H:%M}" if local.year == datetime.now().astimezone().year else f"{local:%Y-%m-%d}"


def _duration(seconds: float) -> str:
    """Duration of training as text, in seconds, minutes or hours."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
