"""The commands of the studies: `list`, `run`, `compare`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from fedcore.errors import InputError
from flows.commands.arguments import AsJson, Overrides, Yes, console, errors

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Studies of the methods: reproductions of papers and comparisons. Each is a folder of studies/conf.",
)

Name = Annotated[str, typer.Argument(help="a study, as `list` names it")]
Figures = Annotated[list[str] | None, typer.Option("--figure", help="only this figure; may be given several times")]


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """Name, paper, subject, expected minutes and publication of each study."""
    from studies.results.publication import Published
    from studies.study import registered

    found = [
        {
            "name": name,
            "paper": study.paper,
            "title": study.title,
            "figures": [figure.name for figure in study.figures],
            "minutes": study.minutes,
            "published": Published(name).results.exists(),
        }
        for name, study in registered().items()
    ]
    if as_json:
        print(json.dumps(found, indent=2))
        return
    for each in found:
        console.print(str(each["name"]), style="bold", highlight=False)
        published = "published" if each["published"] else "not published"
        line = f"  {each['title']} ({each['paper']}); about {each['minutes']} minutes; {published}"
        console.print(line, highlight=False, markup=False)


@app.command()
def run(
    name: Name,
    overrides: Overrides = None,
    figure: Figures = None,
    publish: Annotated[
        bool, typer.Option("--publish", help="write results, provenance and plots into studies/published")
    ] = False,
    as_json: AsJson = False,
    yes: Yes = False,
) -> None:
    """Run the sweeps behind a study's figures, from wherever they were stopped, and draw tables and plots."""
    from fedcore.home import Home
    from studies.figures.overview import write_overview
    from studies.results.provenance import read_provenance
    from studies.results.publication import Published, committed, publish_advice
    from studies.results.publication import publish as write_published
    from studies.running import run_figures
    from studies.study import load_study, read_study

    home, study = Home.current(), read_study(name)
    if publish and overrides:
        raise InputError("--publish is for the study as it is registered: leave the overrides out")
    commit = committed() if publish else ""
    figures, left_out = load_study(name, home, overrides or [], figure or [])
    made = []
    for drawn in run_figures(home, name, figures, overrides or [], None if as_json else console, yes):
        made.append(drawn)
        if not as_json:
            _show(drawn)
        overview = write_overview(drawn.folder.parent)
        if not as_json and overview is not None:
            console.print(f"all figures so far: {overview}", highlight=False, markup=False, soft_wrap=True)
    if publish:
        files = Published(name)
        write_published(home, name, study, made, commit, files)
        if study.advice:
            names = [each.figure.name for each in made]
            publish_advice(home.reproductions / name, names, read_provenance(files.provenance))
        if not as_json:
            console.print(f"published: {files.results}", highlight=False, markup=False, soft_wrap=True)
    if left_out is not None:
        (errors if as_json else console).print(left_out, highlight=False, markup=False, soft_wrap=True)
    if as_json:
        print(json.dumps({drawn.figure.name: _as_json(drawn) for drawn in made}, indent=2))


@app.command()
def compare(
    name: Name,
    figure: Figures = None,
    trials: Annotated[int, typer.Option(min=1, help="published trials of each figure to run again")] = 2,
    as_json: AsJson = False,
) -> None:
    """Run some published trials again and hold them against the published numbers, to the printed digit. Exit code 1
    if any differs."""
    from fedcore.home import Home
    from studies.results.comparison import comparable, compare_figure
    from studies.results.provenance import read_provenance
    from studies.results.publication import Published
    from studies.results.results_file import read_results
    from studies.study import load_study, read_study

    read_study(name)
    home, files = Home.current(), Published(name)
    if not files.results.exists():
        raise InputError(f"study {name} is not published; `python -m studies run {name} --publish` publishes it")
    rows, provenance = read_results(files.results), read_provenance(files.provenance)
    compared = comparable(name, provenance, rows, figure or [])
    figures, left_out = load_study(name, home, (), compared if figure else ())
    figures = [(each, sweep) for each, sweep in figures if each.name in compared]
    count, differ = 0, list[Any]()
    for each, sweep in figures:
        made, found = compare_figure(each, sweep, rows, trials, files, None if as_json else console)
        count, differ = count + made, differ + found
    if not as_json:
        _print([difference.sentence for difference in differ])
        _print([f"{name}: {count} values of {len(figures)} figures made again, {len(differ)} differ"])
    if left_out is not None:
        errors.print(left_out, highlight=False, markup=False, soft_wrap=True)
    if as_json:
        report = {"figures": [each.name for each, _ in figures], "values": count}
        print(json.dumps(report | {"differences": [each.sentence for each in differ]}, indent=2))
    if not count:
        raise InputError(f"study {name}: no value could be made again")
    if differ:
        raise typer.Exit(1)


def _print(sentences: Sequence[str]) -> None:
    for sentence in sentences:
        console.print(sentence, highlight=False, markup=False, soft_wrap=True)


def _show(drawn: Any) -> None:
    """Prints a figure's tables and its statement."""
    from flows.commands.show import show_ladders

    figure, folder = drawn.figure, drawn.folder
    over_epsilon = figure.table is None and not figure.curves
    measure = f": {figure.points.metric}, mean and half width of its 95 % interval" if over_epsilon else ""
    console.print(f"\n{figure.title}{measure}\n", highlight=False)
    _print([(folder / "table.md").read_text()])
    if (folder / "along.md").exists() and figure.along:
        _print([(folder / "along.md").read_text()])
    show_ladders(drawn.outcome)
    _print([drawn.outcome.statement, f"plot and tables: {folder}"])


def _as_json(drawn: Any) -> dict[str, Any]:
    outcome = drawn.outcome
    report = {"folder": str(drawn.folder), "sweep": outcome.sweep, "statement": outcome.statement}
    return report | {key: value for key, value in outcome.as_json().items() if key in ("patience", "ladders")}
