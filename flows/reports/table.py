"""What a run or sweep came to: a table of means over seeds, and test error against epsilon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from fedcore.experiment.patience import PatienceConfig
from fedcore.experiment.result import RunResult
from fedcore.home import Home
from fedcore.upward import rounded_up
from flows.reports.baseline import constant_answer, measure, shown_error, without_a_model
from flows.reports.lines import Line, summarise
from tasks.result_file import jsonable, write_atomically


@dataclass(frozen=True)
class Report:
    lines: tuple[Line, ...]
    columns: dict[str, list[Any]]
    plot: Path | None


def plain_table(title: str | None = None) -> Table:
    """An empty table that spends no width on lines, for terminals of 80 columns."""
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)


def table(lines: Sequence[Line], title: str) -> Table:
    """The lines as a terminal table."""
    shown = plain_table(title)
    noise = "; ".join(dict.fromkeys(line.noise for line in lines))
    # Of records nothing is said: that is what epsilon is for unless the config says otherwise.
    units = [unit for unit in dict.fromkeys(line.unit for line in lines) if unit != "records"]
    whose = "".join(f", for {unit}" for unit in units)
    largest = max((line.shuffled for line in lines if line.shuffled is not None), default=None)
    shuffled = "" if largest is None else (
        f" Of shuffled runs epsilon is towards who sees permuted batches only, at most {rounded_up(largest, 5)}; "
        "accounted is without a shuffler, and charged."
    )  # fmt: skip
    caption = f"epsilon is per run{whose}; {noise}.{shuffled}{without_a_model(lines)}"
    shown.caption, shown.caption_justify = caption, "left"
    by_silo = any(line.silo_mean is not None for line in lines)  # in place of seconds: a terminal has 80 columns
    for head, justify in (
        ("method", "left"), ("epsilon", "right"), ("accounted", "right"), (measure(lines), "right"),
        ("spread", "right"), ("runs", "right"), ("rounds", "right"), ("by silo" if by_silo else "seconds", "right"),
    ):  # fmt: skip
        shown.add_column(head, justify=justify)  # type: ignore[arg-type]
    previous = None
    for line in lines:
        if previous not in (None, line.method):
            shown.add_section()
        previous = line.method
        shown.add_row(
            line.method,
            line.level,
            rounded_up(line.accounted, 5),
            shown_error(line, line.error),
            shown_error(line, line.spread),
            str(line.runs),
            str(line.rounds),
            shown_error(line, line.silo_mean) if by_silo else f"{line.seconds:.2f}",
        )
    return shown


def effort(lines: Sequence[Line]) -> Table | None:
    """Rounds and gradient evaluations, counted, as multiples of what the theorems name; None if none has a theorem."""
    compared = [(line, line.theorem) for line in lines if line.theorem is not None]
    if not compared:
        return None
    shown = plain_table("rounds and gradients against the theorems' orders (constants and logarithms dropped)")
    for head in ("method", "epsilon", "rounds", "order", "ratio", "gradients", "order", "ratio"):
        shown.add_column(head, justify="left" if head == "method" else "right")
    for line, theorem in compared:
        cells = []
        for counted, order in ((line.rounds, theorem.rounds), (line.gradients, theorem.gradient_evaluations)):
            cells += [f"{counted:,}", f"{order:,.0f}", f"{counted / order:.2g}"]
        shown.add_row(line.method, line.level, *cells)
    sources = {f"{line.method}: {theorem.source}": None for line, theorem in compared}
    shown.caption, shown.caption_justify = "; ".join(sources), "left"
    return shown


def plot_path(home: Home, sweep: str) -> Path:
    return home.sweeps / sweep / "plot.png"


def write_report(
    home: Home, sweep: str, results: Sequence[RunResult], patience: PatienceConfig | None = None
) -> Report:
    """Writes report.json and, where there are test errors, plot.png into the sweep's folder. `patience`: by which the
    results were chosen, which the plot says too."""
    lines = summarise(results)
    columns: dict[str, list[Any]] = {
        field: [getattr(line, field) for line in lines] for field in Line.__dataclass_fields__
    }
    columns["theorem"] = [line.theorem and line.theorem.as_json() for line in lines]
    folder = home.sweeps / sweep
    write_atomically(folder / "report.json", jsonable(columns))
    has_curve = any(line.error is not None and line.place is not None for line in lines)
    path = plot_path(home, sweep)
    if has_curve:
        plot(lines, path, None if patience is None else patience.statement)
    return Report(lines, columns, path if has_curve else None)


def plot(lines: Sequence[Line], path: Path, title: str | None = None, axis: str | None = None) -> None:
    """Draws mean error with its standard deviation against epsilon, or another `axis`, one curve per method."""
    from matplotlib.figure import Figure  # without pyplot, which is for windows and takes half a second

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    epsilons = sorted({line.place for line in lines if line.place is not None})
    for index, method in enumerate(dict.fromkeys(line.method for line in lines)):
        mine = [line for line in lines if line.method == method and line.error is not None]
        curve = [line for line in mine if line.place is not None]
        colour = f"C{index}"
        if curve:
            # A small shift keeps bars of different methods apart.
            x = [float(line.place or 0) * 1.02 ** (index - 1.5) for line in curve]
            axes.errorbar(
                x, [line.error or 0.0 for line in curve], [line.spread or 0.0 for line in curve],
                marker="o", capsize=3, color=colour, label=method,
            )  # fmt: skip
        for line in mine:
            if line.place is None:
                axes.axhline(line.error or 0.0, color=colour, linestyle=":", label=f"{method}, no privacy")
    alone = [line.baseline for line in lines if line.baseline is not None]
    if alone:
        level, said = sum(alone) / len(alone), constant_answer(lines[0])
        axes.axhline(level, color="grey", linestyle="--", linewidth=1, label=f"always {said}")
    axes.set_xscale("log")
    axes.set_xticks(epsilons, [f"{epsilon:.3g}" for epsilon in epsilons])
    axes.minorticks_off()
    whose = " or ".join(dict.fromkeys("record" if line.unit == "records" else "person" for line in lines))
    axes.set_xlabel(axis or f"epsilon of the run, per {whose or 'record'} of each silo (replace-one)")
    axes.set_ylabel(f"{measure(lines)} (mean, standard deviation over seeds)")
    axes.set_ylim(bottom=0)
    if title is not None:
        axes.set_title(title, fontsize="medium", wrap=True)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=130)
