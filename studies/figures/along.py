"""Error during runs against rounds, numbers sent and gradient evaluations, at one epsilon.

A run's noise is calibrated to all its rounds. So a point before the end is the error of stopping there, with the noise
of the whole run.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path

from fedcore.directed_rounding import in_full
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.result import RunResult
from fedcore.home import Home
from fedcore.printable import in_drawing
from flows.reports.colours import colours
from flows.reports.table import markdown_table
from flows.runs import store_path
from studies.figures.least_loss import gap, least_loss
from studies.figures.points import Metric
from tasks.result_file import jsonable, write_atomically
from tasks.run_file import read_rows

AXES = {"rounds": "round", "floats": "numbers sent by all silos", "gradients": "gradient evaluations of all silos"}
_SERIES: Mapping[Metric, tuple[str, str]] = {
    "test error": ("test/error", "test error"),
    "relative RMSE": ("test/loss", "test loss"),
    "excess loss": ("simulation/train_loss", "excess loss, not private"),
}


@dataclass(frozen=True)
class CostCurve:
    """A method's error at one epsilon, after each round that all its runs evaluated: means over the runs.

    `seconds`: mean duration of a whole run, on this machine.
    """

    method: str
    rounds: tuple[float, ...]
    floats: tuple[float, ...]
    gradients: tuple[float, ...]
    errors: tuple[float, ...]
    seconds: float
    runs: int


def cost_curves(
    home: Home, metric: Metric, epsilon: float, cells: Sequence[ExperimentConfig], results: Sequence[RunResult]
) -> list[CostCurve]:
    """Curves of the methods that have runs at this epsilon, in the order of the cells, from finished runs' metrics."""
    groups: dict[str, list[dict[int, tuple[float, float, float]]]] = {}
    seconds: dict[str, list[float]] = {}
    least: dict[str, float] = {}
    key = _SERIES[metric][0]
    for cell, result in zip(cells, results, strict=True):
        if cell.privacy.epsilon != epsilon:
            continue
        rows = [values for _, _, values in read_rows(store_path(home, result.run))]
        spent = accumulate(values["gradient_evaluations"] for values in rows)
        optimum = least_loss(home, cell, least) if metric == "excess loss" else None
        groups.setdefault(result.method, []).append(
            {
                at: (
                    values["communication/floats_up"],
                    gradients,
                    values[key] if optimum is None else gap(cell, values[key], optimum),
                )
                for at, (values, gradients) in enumerate(zip(rows, spent, strict=True), 1)
                if key in values
            }
        )
        seconds.setdefault(result.method, []).append(result.seconds)
    found = []
    for method, runs in groups.items():
        shared = sorted(set.intersection(*(set(run) for run in runs)))
        floats, gradients, errors = (
            tuple(statistics.fmean(run[at][place] for run in runs) for at in shared) for place in range(3)
        )
        whole = statistics.fmean(seconds[method])
        found.append(CostCurve(method, tuple(map(float, shared)), floats, gradients, errors, whole, len(runs)))
    return found


def draw_cost_curves(folder: Path, metric: Metric, epsilon: float, title: str, made: Sequence[CostCurve]) -> str:
    """Writes along-<epsilon>.png and .json into the folder; returns the costs of whole runs as a Markdown table."""
    name = f"along-{in_full(epsilon)}"
    _plot(folder / f"{name}.png", _SERIES[metric][1], f"{title}; epsilon {in_full(epsilon)}", made)
    write_atomically(folder / f"{name}.json", jsonable([asdict(curve) for curve in made]))
    columns = {"method": [curve.method for curve in made]}
    for axis, head in AXES.items():
        columns[head] = [f"{getattr(curve, axis)[-1]:,.0f}" if curve.rounds else "-" for curve in made]
    columns["seconds"] = [f"{curve.seconds:.2f}" for curve in made]
    columns[_SERIES[metric][1]] = [f"{curve.errors[-1]:.4g}" if curve.errors else "-" for curve in made]
    return f"Whole runs at epsilon {in_full(epsilon)}:\n\n{markdown_table(columns)}"


def _plot(path: Path, measure: str, title: str, made: Sequence[CostCurve]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn, panels = pyplot.subplots(1, len(AXES), figsize=(14.5, 4.2), layout="constrained", sharey=True)
    drawn_in = colours(curve.method for curve in made)
    for panel, (axis, head) in zip(panels, AXES.items(), strict=True):
        for curve in made:
            label = in_drawing(curve.method)
            colour = drawn_in[curve.method]
            panel.plot(getattr(curve, axis), curve.errors, color=colour, label=label, marker=".", markersize=3)
        panel.set_xlabel(head)
        panel.set_xscale("log")
        panel.grid(alpha=0.3)
        if "loss" in measure:
            panel.set_yscale("log")
    panels[0].set_ylabel(measure)
    handles, labels = panels[0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside right center", fontsize="small")
    drawn.suptitle(in_drawing(title), fontsize="medium")
    drawn.savefig(path, dpi=120)
    pyplot.close(drawn)
