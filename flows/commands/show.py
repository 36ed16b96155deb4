"""`report`, `algorithms`: results of a run or sweep, and the list of methods."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.padding import Padding
from rich.text import Text

from fedcore.directed_rounding import in_full, shown_up
from fedcore.errors import InputError

if TYPE_CHECKING:
    from fedcore.experiment.result import RunResult
    from flows.reports.sweep_outcome import SweepOutcome

from flows.commands.arguments import AsJson, console, errors


def report(
    id: Annotated[str, typer.Argument(help="run or sweep id, or the beginning of one")], as_json: AsJson = False
) -> None:
    """Print the table of a run or sweep (finished cells only), and draw a sweep's plot again."""
    from fedcore.home import Home
    from flows.recorded.former_ids import refuse_former
    from flows.reports.settings import settings
    from flows.reports.table import write_report
    from flows.runs import find, read_run, refuse_if_damaged
    from flows.sweep_files import finished_results, load_saved, recorded_runs, sweep_outcome, write_ladders

    home = Home.current()
    name, kind = find(home, id)
    if kind == "sweep":
        saved = load_saved(home, name)
        runs = recorded_runs(home, name, saved)
        results = finished_results(home, saved, runs)
        try:
            if results:
                write_report(home, name, results, saved.patience, settings(saved, runs.run))
            write_ladders(home, saved, runs)
        except InputError as error:  # a full disk: the results are shown nevertheless
            errors.print(f"not drawn again: {error}", style="yellow", highlight=False, markup=False, soft_wrap=True)
        show_sweep(sweep_outcome(home, saved, results, runs), as_json)
        return
    record = read_run(home, name)
    if record is not None and record.abandoned is not None:
        raise InputError(record.abandoned.refusal)
    if record is None:
        refuse_if_damaged(home, name)
        raise InputError(f"run {name} has no result yet, nor a checkpoint; `fedcore run CONFIG` starts it again")
    if record.result is None:
        refuse_former(record)
        raise InputError(f"run {name} has no result yet ({record.state}); `fedcore resume {name}` goes on with it")
    show_run(record.result, as_json)


def algorithms(
    name: Annotated[str | None, typer.Argument(help="a method: its keys, with meaning, unit and default")] = None,
    as_json: AsJson = False,
) -> None:
    """List the methods with their sources; of one, every key with its meaning, unit and default."""
    from fedcore.algorithms import ALGORITHMS
    from fedcore.hyperparameters import descriptions

    if name is not None and name not in ALGORITHMS:
        close = difflib.get_close_matches(name, ALGORITHMS, 1)
        hint = f"did you mean {close[0]}?" if close else "`fedcore algorithms` lists them"
        raise InputError(f"{name!r} is no method; {hint}")
    chosen = ALGORITHMS if name is None else {name: ALGORITHMS[name]}
    if as_json:
        listed = [
            {
                "name": each,
                "title": method.title,
                "source": method.source,
                "defaults": _defaults(method),
                "keys": descriptions(method),
            }
            for each, method in chosen.items()
        ]
        print(json.dumps(listed, indent=2))
        return
    for each, method in chosen.items():
        console.print(Text.assemble((each, "bold"), f": {method.title}"))
        console.print(f"  from {method.source}", highlight=False)
        meanings = descriptions(method)
        for key, value in _defaults(method).items():
            console.print(f"  algorithm.{key} = {'null' if value is None else value}", highlight=False, markup=False)
            if name is not None:
                console.print(Padding(Text(meanings[key]), (0, 0, 0, 6)))


def show_run(result: RunResult, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result.as_json(), indent=2))
        return
    from fedcore.experiment.result import shortfall
    from flows.reports.held_out import held_out_table

    _show_lines([result], result.run)
    if result.epsilon_whole_silo is not None:
        console.print(
            f"Whole silo, all of its {result.unit.split()[0]} replaced: epsilon target "
            f"{in_full(result.epsilon_whole_silo_target)}, accounted {shown_up(result.epsilon_whole_silo)}, delta "
            f"{shown_up(result.delta_whole_silo, 3)}.",
            highlight=False,
        )
    if (evaluated := held_out_table(result)) is not None:
        console.print(evaluated)
        if result.measure == "held-out error" and (short := shortfall(result)) is not None:
            console.print(f"The model is {short}.", highlight=False)


def _show_lines(
    results: Iterable[RunResult], title: str, settings: Mapping[str, Mapping[str, Any]] | None = None
) -> None:
    from flows.reports.baseline import shortfalls
    from flows.reports.lines import summarise
    from flows.reports.table import effort, table

    lines = summarise(results, settings)
    console.print(table(lines, title, console.width))
    for sentence in shortfalls(lines):
        console.print(sentence, highlight=False, markup=False)
    if (compared := effort(lines)) is not None:
        console.print(compared)


def show_sweep(outcome: SweepOutcome, as_json: bool) -> None:
    if as_json:
        print(json.dumps(outcome.as_json(), indent=2))
        return
    if outcome.results:
        _show_lines(outcome.results, outcome.sweep, outcome.settings)
    show_ladders(outcome)
    console.print(outcome.statement, highlight=False)
    if outcome.plot is not None:
        console.print(f"plot: {outcome.plot}", highlight=False, soft_wrap=True)
    if outcome.table is not None:
        console.print(f"cells: {outcome.table}", highlight=False, soft_wrap=True)


def show_ladders(outcome: SweepOutcome) -> None:
    """Prints the values that patience has chosen, abandoned and not tried, if the sweep has one."""
    if outcome.patience is None:
        return
    from flows.reports.ladders import ladder_table, without_a_survivor

    console.print(ladder_table(outcome.ladders, outcome.patience))
    if (lost := without_a_survivor(outcome.ladders)) is not None:
        console.print(lost, highlight=False, markup=False)


def _defaults(method: Any) -> dict[str, Any]:
    values = method()
    return {field.name: getattr(values, field.name) for field in dataclasses.fields(method) if field.name != "name"}
