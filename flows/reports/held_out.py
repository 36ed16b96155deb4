"""Table of a run's held-out evaluation, by the noisy histograms that silos released."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from fedcore.experiment.result import HeldOut, Interval, RunResult
from flows.reports.table import plain_table


def held_out_table(result: RunResult) -> Table | None:
    """Table of the last evaluation with intervals, and of earlier errors; None without evaluation."""
    last = result.at_last
    if last is None:
        return None
    unit = result.unit.split()[0]
    shown = plain_table(f"held-out {unit} of the silos ({last.records}), released with noise")
    for head in ("measure", "value", "95 % interval"):
        shown.add_column(head, justify="left" if head == "measure" else "right")
    for name, interval in _rows(last):
        shown.add_row(name, f"{interval.value:.3f}", f"{interval.low:.3f} to {interval.high:.3f}")
    before = (result.held_out or ())[:-1]
    shown.caption, shown.caption_justify = f"Intervals are for noise and for the choice of {unit}.", "left"
    if before:
        errors = ", ".join(f"{each.error.value:.3f} ({each.phase})" for each in before)
        shown.caption += f" Errors of earlier evaluations, by phase of the plan: {errors}."
    return shown


def _rows(found: HeldOut) -> Iterator[tuple[str, Interval]]:
    yield "error", found.error
    yield "error, always the most frequent class", found.majority_error
    for label, interval in found.recall.items():
        yield f"recall of {label}", interval
    if found.auc is not None:
        yield "area under the ROC curve", found.auc
    for silo, interval in found.silos.items():
        yield f"error at {silo}", interval
