"""Comparison of a table's errors with a constant answer: the most frequent class, or the mean."""

from __future__ import annotations

from collections.abc import Sequence

from flows.reports.lines import Line

_OF_NUMBERS = ("test RMSE", "relative RMSE")


def shortfalls(lines: Sequence[Line]) -> list[str]:
    """Sentences on lines that are no better than a constant answer, or on missing test data."""
    if lines and all(line.error is None for line in lines):
        return [
            "No test data: data.test names no public file, and evaluation holds no records out, so the quality of "
            "these models is unknown."
        ]
    return [
        f"{line.name} at epsilon {line.level} is no better than always answering {constant_answer(line)}: "
        f"{line.measure} {shown_error(line, line.error)}, without a model {shown_error(line, line.baseline)}."
        for line in lines
        if line.error is not None and line.baseline is not None and line.error >= line.baseline
    ]


def measure(lines: Sequence[Line]) -> str:
    """The head of the column of errors."""
    return " / ".join(dict.fromkeys(line.measure for line in lines)) or "test error"


def constant_answer(line: Line) -> str:
    """The constant answer that a line is compared with, in words."""
    return "the mean" if line.measure in _OF_NUMBERS else "the most frequent class"


def shown_error(line: Line, value: float | None) -> str:
    """An error of the line's kind as text."""
    if value is None:
        return "-"
    return f"{value:.4g}" if line.measure == "test RMSE" else f"{value:.3f}"


def without_a_model(lines: Sequence[Line]) -> str:
    """Sentences below a table on the errors of constant answers; a range if seeds differ."""
    known = {(line.measure, constant_answer(line)) for line in lines if line.baseline is not None}
    text = ""
    for measure, constant in sorted(known):
        mine = [line for line in lines if line.baseline is not None and line.measure == measure]
        ends = dict.fromkeys(shown_error(mine[0], of(line.baseline or 0.0 for line in mine)) for of in (min, max))
        text += f" Always answering {constant}: {measure} {' to '.join(ends)}."
    silo = next((line for line in lines if line.silo_mean_baseline is not None), None)
    if silo is not None:
        text += " By silo: the mean of the silos' errors; always answering the most frequent class of each: "
        text += f"{silo.silo_mean_baseline:.3f}."
    return text
