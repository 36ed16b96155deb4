"""`tune`: tries settings on made-up silos and writes the best ones as a config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.commands.arguments import AsJson, Config, Overrides, check_output, config_text, console, write_output
from flows.commands.typed_numbers import real, whole

if TYPE_CHECKING:
    from fedcore.data.sources.made_up.assumed import Assumptions, Made
    from fedcore.experiment.config import ExperimentConfig
    from fedcore.experiment.tuning import Tuning

_SHOWN = 10  # points of the grid in the table


def tune(
    config: Config,
    overrides: Overrides = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="file for the config with the values")] = None,
    signal: Annotated[
        float | None, typer.Option(help="share of the label's score that features explain, to 1", **real())
    ] = None,
    heterogeneity: Annotated[float | None, typer.Option(help="difference between silos; 0: none", **real())] = None,
    public: Annotated[Path | None, typer.Option(help="a public file to draw silos from, not the test file")] = None,
    grid: Annotated[list[str] | None, typer.Option(help="values of a key, KEY=[..]; may be repeated")] = None,
    simulations: Annotated[int, typer.Option(help="sets of made-up silos for each point", **whole(2, 1000))] = 20,
    as_json: AsJson = False,
) -> None:
    """Choose clip, domain, step and rounds on silos generated from public facts. Reads no silo, spends no budget."""
    from fedcore.configfile.reading import read_yaml, validated
    from fedcore.data.sources.made_up.assumed import Assumptions
    from fedcore.errors import InputError
    from fedcore.experiment.loading import load_experiment
    from fedcore.experiment.tuning import FEW, MANY, default_grid
    from fedcore.experiment.tuning import tune as tried
    from flows.terminal.trials_progress import TrialsProgress

    experiment = load_experiment(config, overrides or [])
    if output is not None:
        check_output(output, config)
    given = {"signal": signal, "heterogeneity": heterogeneity}
    assumed = validated(Assumptions, {key: value for key, value in given.items() if value is not None}, "tune")
    chosen_grid = default_grid(experiment) | _grid(grid or [])
    if public is not None and given != {"signal": None, "heterogeneity": None}:
        raise InputError("--signal and --heterogeneity describe silos without --public: leave them out")
    if experiment.released_curvature is not None:
        raise InputError(
            "algorithm.smoothness = released: simulated silos do not release their curvature; tune with worst-case or "
            "a public number"
        )
    records = None if public is None else _public_records(experiment, public)
    with TrialsProgress(None if as_json else console) as progress:
        made = tried(experiment, chosen_grid, assumed, simulations, public=records, after=progress.after)
    basis = assumption(made, assumed) if public is None else _drawn_from(made, public)
    if experiment.released is not None:
        basis += " In each simulation the silos released centres and scales of their columns, with the planned noise."
    if as_json:
        source = {"assumed": assumed.model_dump()} if public is None else {"public": str(public)}
        print(json.dumps(_as_json(made, chosen_grid, simulations) | source, indent=2))
    else:
        from flows.reports.table import plain_table

        few = "" if made.tried <= MANY else f", after {min(FEW, simulations)} of all {made.tried} points of the grid"
        table = plain_table(f"{simulations} simulations{few}")
        keys = list(made.best.point)
        for head in (*(key.rpartition(".")[2] for key in keys), "error", "+-"):
            table.add_column(head, justify="right")
        for trial in made.trials[:_SHOWN]:
            table.add_row(*(str(trial.point[k]) for k in keys), f"{trial.error:.4f}", f"{trial.uncertainty:.4f}")
        console.print(table)
        console.print(f"Silos were {basis}", highlight=False)
    if output is not None:
        write_output(output, _written(config, read_yaml(config, overrides or []), made, basis, simulations))
        if not as_json:
            console.print(f"written to {output}; next: `fedcore plan {output}`", highlight=False, soft_wrap=True)


def _grid(texts: list[str]) -> dict[str, list[Any]]:
    """Values by key. Raises InputError that names a text without a list of values."""
    from fedcore.configfile.reading import value_of
    from fedcore.errors import InputError

    found: dict[str, list[Any]] = {}
    for text in texts:
        key, _, value = text.partition("=")
        try:
            values = value_of(value, f"--grid {text}")
        except InputError as error:
            raise InputError(f"{error}; write KEY=[value, value], for instance algorithm.step=[1, 2, 4]") from None
        if not isinstance(values, list) or not values:
            raise InputError(f"--grid {text}: write KEY=[value, value], for instance algorithm.step=[1, 2, 4]")
        found[key] = values
    return found


_FREE = "Tuning read no silo and spent no budget."


def assumption(made: Tuning, assumed: Assumptions) -> str:
    """Sentences on the generated silos and the assumptions behind them."""
    return (
        "generated from numbers of records and schema. Assumptions, not read from data: features explain "
        f"{assumed.signal:g} of the variance of the label's score; heterogeneity is {assumed.heterogeneity:g}. Columns "
        f"have correlation {assumed.correlation:g}, and {assumed.missing:g} of the values is missing where the schema "
        f"expects it. Without a model the generated silos have error {made.baseline:.3f}. {_FREE}"
    )


def _public_records(config: ExperimentConfig, path: Path) -> Made:
    """The records of a public file with the config's columns. Raises InputError for another source of data."""
    from fedcore.data.file_sources import file_sources, public_source
    from fedcore.errors import InputError
    from fedcore.experiment.simulated.resampled import public_records

    if config.data.source != "files" or config.data.described is None:
        raise InputError(
            "--public takes a file with the columns of data.source = files and its schema; the config has none"
        )
    try:
        first, *_ = file_sources(config.data.model_copy(update={"test": str(path)}), config.model)
    except InputError as error:
        raise InputError(str(error).replace("data.test", "--public", 1)) from None
    return public_records(public_source(first, str(path), "--public"))


def _drawn_from(made: Tuning, path: Path) -> str:
    return (
        f"drawn with replacement from two thirds of {path}. The rest of it is their test data, so all are alike. "
        f"Without a model they have error {made.baseline:.3f}. {_FREE}"
    )


def _as_json(made: Tuning, grid: dict[str, list[Any]], simulations: int) -> dict[str, Any]:
    return {
        "chosen": made.best.point,
        "error": made.best.error,
        "baseline": made.baseline,
        "simulations": simulations,
        "grid": grid,
        "trials": [{"point": t.point, "error": t.error, "uncertainty": t.uncertainty} for t in made.trials],
    }


def explained(config: Path, made: Tuning, basis: str, simulations: int) -> list[str]:
    """Comment above a config: the source of its values, and the best points of the grid."""
    import textwrap

    origin = (
        f"Written by `fedcore tune {config.name}`: settings with the least mean error over {simulations} sets of "
        f"silos, {basis}"
    )
    heads = [key.rpartition(".")[2] for key in made.best.point]
    rows = [[*(str(t.point[k]) for k in t.point), f"{t.error:.4f}"] for t in made.trials[:_SHOWN]]
    return [
        *textwrap.wrap(origin, 98),
        *(" ".join(f"{cell:>9}" for cell in row) for row in ([*heads, "error"], *rows)),
    ]


def _written(config: Path, values: dict[str, Any], made: Tuning, basis: str, simulations: int) -> str:
    """Text of the config with the chosen values, below a comment on their source."""
    from fedcore.configfile.reading import put

    for key, value in made.best.point.items():
        put(values, key.split("."), value, "tune")
    return config_text(values, explained(config, made, basis, simulations))
