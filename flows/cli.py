"""The command line. Engines are imported by the commands that need them: `plan` and `--help` stay quick."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

# Before NumPy is loaded: many BLAS threads per process fight for the cores.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import typer
from rich.console import Console

from fedcore.errors import BusyError, InputError, SiloError
from flows.audit_commands import audit
from flows.budget_commands import app as budget
from flows.policy_commands import app as policy
from flows.privacy_commands import app as privacy

app = typer.Typer(
    name="fedcore",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Private federated learning without a trusted server: every vector that leaves a silo is differentially "
    "private for each of its records. Start with `fedcore plan conf/experiment/digits.yaml`, then `fedcore run` it.",
)
app.add_typer(privacy)
app.add_typer(budget)
app.add_typer(policy)
app.command()(audit)
console = Console()
errors = Console(stderr=True)

STOPPED = 130
"""Exit code of a command that Ctrl-C or SIGTERM ended."""

Config = Annotated[Path, typer.Argument(help="YAML file, for instance conf/experiment/digits.yaml")]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="values over the file's, for instance privacy.epsilon=2 seed=1")
]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON on standard output and nothing else")]


@app.command()
def run(config: Config, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Train one model. The same parameters are the same run: a stopped one goes on, a finished one is shown."""
    from fedcore.experiment.loading import load_experiment
    from flows.launch import launch_run

    experiment = load_experiment(config, overrides or [])
    _show_run(launch_run(experiment, console if not as_json else None), as_json)


@app.command()
def sweep(config: Config, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Run every cell of a sweep that is not finished, then print its table and draw its plot."""
    from fedcore.experiment.sweep import load_sweep
    from flows.launch import launch_sweep

    loaded = load_sweep(config, overrides or [])
    loaded.cells(str(config))
    _show_sweep(launch_sweep(loaded, console if not as_json else None), as_json)


@app.command()
def reproduce(
    paper: Annotated[str, typer.Argument(help="a folder of conf/paper, for instance localized")],
    overrides: Overrides = None,
    figure: Annotated[list[str] | None, typer.Option(help="only this figure of it; may be given several times")] = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Run the sweeps behind a paper's figures, from wherever they were stopped, and draw tables and plots."""
    from fedcore.home import Home
    from flows.launch import launch_sweep
    from flows.reproduction import draw, load_reproduction

    home, drawn = Home.current(), {}
    figures, left_out = load_reproduction(paper, home, overrides or [], figure or [])
    for shown, loaded in figures:
        outcome = launch_sweep(loaded, console if not as_json else None)
        folder = draw(home, paper, shown, loaded.cells(), outcome["results"])
        drawn[shown.name] = {"folder": str(folder), "sweep": outcome["sweep"], "statement": outcome["statement"]}
        if not as_json:
            over_epsilon = shown.table is None and not shown.curves
            what = ": test error, mean and half width of its 95 % interval" if over_epsilon else ""
            console.print(f"\n{shown.title}{what}\n", highlight=False)
            console.print((folder / "table.md").read_text(), highlight=False, markup=False, soft_wrap=True)
            console.print(outcome["statement"], highlight=False, markup=False)
            console.print(f"plot and tables: {folder}", highlight=False, markup=False, soft_wrap=True)
    if left_out is not None:
        (errors if as_json else console).print(left_out, highlight=False, markup=False, soft_wrap=True)
    if as_json:
        print(json.dumps(drawn, indent=2))


@app.command()
def plan(config: Config, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Show every phase, its noise and its epsilon (target, accounted, paper). Touches no data but public sizes."""
    from fedcore.experiment.experiment import make_plan
    from fedcore.experiment.identity import run_id
    from fedcore.experiment.loading import load_experiment
    from fedcore.experiment.statistics import make_statistics_plan, plan_as_json
    from flows.report import plain_table

    experiment = load_experiment(config, overrides or [])
    made = make_plan(experiment)
    before = make_statistics_plan(experiment)
    values = {"run": run_id(experiment), "method": experiment.algorithm.name, **plan_as_json(made, before)}
    if as_json:
        print(json.dumps(values, indent=2))
        return
    title = f"{values['run']}: {experiment.algorithm.title}"
    table = plain_table(title)
    for head in ("phase", "n", "rounds", "batch", "lam", "radius", "clip", "sigma", "target", "accounted", "paper"):
        table.add_column(head, justify="right")
    first = [] if before is None else [("moments", phase) for phase in values["statistics"]["phases"]]
    for name, phase in first + [(str(phase["index"]), phase) for phase in values["phases"]]:
        table.add_row(
            name, str(phase["n"]), str(phase["rounds"]), f"{phase['batch']:.6g}",
            *(_number(phase[key]) for key in ("lam", "radius", "clip", "sigma")),
            *(_number(phase[f"epsilon_{key}"]) for key in ("target", "accounted", "paper")),
        )  # fmt: skip
    console.print(table)
    totals = values["totals"]
    console.print(
        f"{totals['silos']} silos, {totals['participants']} of them in a round, {totals['rounds']} rounds; whole run: "
        f"epsilon target {_number(totals['epsilon_target'])}, accounted {_number(totals['epsilon_accounted'])}, "
        f"paper {_number(totals['epsilon_paper'])}, delta at most {totals['delta']:.3g} (n and sigma: smallest silo).",
        highlight=False,
    )
    if (target := totals["epsilon_target"]) is not None and totals["epsilon_accounted"] > target * (1 + 1e-9):
        console.print(
            f"accounted is above the target: the paper's formula asks for too little noise for epsilon {target:g}.",
            highlight=False,
        )
    if (drawn := totals.get("epsilon_honest_draw")) is not None:
        console.print(
            f"honest-draw {drawn:.4g}: on average over honest draws of who takes part, before they are made; a silo "
            "that is drawn more often spends more, and nothing relies on it.",
            highlight=False,
        )
    for name, epsilon in totals.get("epsilon_papers", {}).items():
        console.print(f"{name} claims {epsilon:.4g} for this noise: to compare, nothing relies on it.", highlight=False)
    if (theorem := totals["theorem"]) is not None:
        console.print(
            f"{totals['rounds']:,} rounds and {totals['gradient_evaluations']:,.0f} gradients of records are planned; "
            f"{theorem['source']}, names {theorem['rounds']:,.0f} and {theorem['gradient_evaluations']:,.0f}, but for "
            "constants and logarithms.",
            highlight=False,
        )
    if before is not None:
        console.print(
            f"moments: before training each silo releases {before.problem.dim:,} numbers, once for all runs that share "
            f"them, at epsilon {_number(totals['epsilon_statistics'])}; training spends "
            f"{_number(totals['epsilon_training'])}, and the whole run's accounted epsilon is both composed. "
            f"Directions of variance below about {_number(values['statistics']['eigenvalue_noise'])} will be noise "
            f"(images are cut to squared norm {_number(before.phases[0].record_bound ** 2)}).",
            highlight=False,
        )


@app.command()
def resume(
    id: Annotated[str, typer.Argument(help="run or sweep id, or the beginning of one")], as_json: AsJson = False
) -> None:
    """Go on with a run or sweep after any stop. Finished rounds are not run again; the bits are the same."""
    from fedcore.home import Home
    from flows.launch import launch_run, launch_sweep
    from flows.runs import find, read_run

    home = Home.current()
    name, kind = find(home, id)
    if kind == "sweep":
        from flows.sweep_files import load_saved

        _show_sweep(launch_sweep(load_saved(home, name), console if not as_json else None), as_json)
        return
    record = read_run(home, name)
    if record is None:
        raise InputError(f"run {name} stopped before its first checkpoint; start it again with `fedcore run CONFIG`")
    _show_run(launch_run(record.config, console if not as_json else None, sweep=record.sweep), as_json)


@app.command()
def runs(as_json: AsJson = False) -> None:
    """List runs with their state, and sweeps. A run that was RUNNING when its driver went is KILLED: resume it."""
    from fedcore.home import Home
    from flows.runs import all_runs
    from flows.sweep_files import all_sweeps

    home = Home.current()
    records, older = all_runs(home)
    if as_json:
        fields = ("run", "state", "phase", "round", "rounds", "sweep", "message")
        print(json.dumps([{name: getattr(record, name) for name in fields} for record in records], indent=2))
        return
    from flows.report import plain_table

    table = plain_table()
    for head in ("run", "state", "epsilon", "seed", "next", "error", "message"):
        table.add_column(head, no_wrap=head != "message", overflow="fold")
    for record in records:
        result = record.result or {}
        table.add_row(
            record.run, record.state, record.config.privacy.level.removeprefix("epsilon "), str(record.config.seed),
            "-" if record.result or record.phase is None else f"{record.phase}.{record.round}",
            _number(result.get("test_error")), record.message or record.config.algorithm.name,
        )  # fmt: skip
    console.print(table if records else "no runs yet; try `fedcore run conf/experiment/digits.yaml`")
    for sweep, done, cells in all_sweeps(home):
        console.print(f"sweep {sweep}: {done} of {cells} cells finished", highlight=False)
    if older:
        console.print(f"{len(older)} runs of an older schema, which this version does not read", highlight=False)


@app.command()
def report(
    id: Annotated[str, typer.Argument(help="run or sweep id, or the beginning of one")], as_json: AsJson = False
) -> None:
    """Print the table of a run or sweep (finished cells only); of a sweep, draw its plot again."""
    from fedcore.home import Home
    from flows.report import write_report
    from flows.runs import find, read_run
    from flows.sweep_files import finished_results, load_saved, sweep_outcome

    home = Home.current()
    name, kind = find(home, id)
    if kind == "sweep":
        saved = load_saved(home, name)
        results = finished_results(home, saved)
        if results:
            write_report(home, name, results)
        _show_sweep(sweep_outcome(home, saved, results), as_json)
        return
    record = read_run(home, name)
    if record is None or record.result is None:
        state = "no checkpoint" if record is None else record.state
        raise InputError(f"run {name} has no result yet ({state}); `fedcore resume {name}` goes on with it")
    _show_run(record.result, as_json)


@app.command()
def algorithms(as_json: AsJson = False) -> None:
    """List the methods, where they come from, and their hyperparameters with defaults."""
    from fedcore.algorithms import ALGORITHMS

    if as_json:
        listed = [
            {"name": name, "title": method.title, "source": method.source, "defaults": _defaults(method)}
            for name, method in ALGORITHMS.items()
        ]
        print(json.dumps(listed, indent=2))
        return
    for name, method in ALGORITHMS.items():
        console.print(f"[bold]{name}[/bold]: {method.title}", highlight=False)
        console.print(f"  from {method.source}", highlight=False)
        for key, value in _defaults(method).items():
            console.print(f"  algorithm.{key} = {'null' if value is None else value}", highlight=False)


@app.command()
def up(workers: Annotated[int | None, typer.Option(help="Dask workers; default: one per core")] = None) -> None:
    """Start Prefect, MLflow and Dask on this machine, kept until `fedcore down`; runs started meanwhile use them."""
    from fedcore.home import Home
    from flows.services import up as start

    with console.status("starting Prefect, MLflow, Dask and the deployments"):
        started = start(Home.current(), workers)
    console.print("already up" if started.already else "up; `fedcore down` ends it")
    for name, address in started.addresses.items():
        console.print(f"  {name:12} {address.removesuffix('/api')}", highlight=False)


@app.command()
def down() -> None:
    """End what `fedcore up` started."""
    from fedcore.home import Home
    from flows.services import down as stop

    ended = stop(Home.current())
    console.print(f"ended: {', '.join(ended)}" if ended else "nothing was up")


def main() -> None:
    """Runs the command line. Exit codes: 1 an audit alarmed, 2 mend the input, 3 a silo or run failed, 75 busy, 130
    stopped.
    """
    codes = {InputError: 2, SiloError: 3, BusyError: 75}
    code = 0
    try:
        app()
    except tuple(codes) as error:
        errors.print(str(error), style="red", highlight=False, markup=False, soft_wrap=True)
        code = next(code for kind, code in codes.items() if isinstance(error, kind))
    except KeyboardInterrupt:
        code = STOPPED
    except SystemExit as end:
        code = int(end.code or 0)
    except Exception:
        if not _was_stopped():
            raise
        code = STOPPED
    if code == STOPPED:  # typer makes a silent exit of Ctrl-C
        errors.print("stopped; `fedcore runs` lists what can be resumed", style="yellow")
    launch = sys.modules.get("flows.launch")
    if launch is not None and launch.server_lost:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _was_stopped() -> bool:
    drive = sys.modules.get("flows.drive")
    return drive is not None and drive.stopped_by() is not None


def _show_run(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(result, indent=2))
        return
    from flows.report import effort, summarise, table

    lines = summarise([result])
    console.print(table(lines, result["run"]))
    if (compared := effort(lines)) is not None:
        console.print(compared)


def _show_sweep(outcome: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(outcome, indent=2))
        return
    from flows.report import effort, summarise, table

    lines = summarise(outcome["results"])
    console.print(table(lines, outcome["sweep"]))
    if (compared := effort(lines)) is not None:
        console.print(compared)
    console.print(outcome["statement"], highlight=False)
    if outcome.get("plot"):
        console.print(f"plot: {outcome['plot']}", highlight=False, soft_wrap=True)


def _defaults(method: Any) -> dict[str, Any]:
    values = method()
    return {field.name: getattr(values, field.name) for field in dataclasses.fields(method) if field.name != "name"}


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


if __name__ == "__main__":
    main()
