"""The tables that a person reads, from results made by hand."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from fedcore.experiment.result import RunResult
from flows.reports.table import effort, summarise
from tests.flows.results import made_result


def result(method: str, epsilon: float | None, **values: Any) -> RunResult:
    return made_result(method=method, epsilon_target=epsilon, epsilon_accounted=epsilon, **{"rounds": 60, **values})


def printed(table: Any) -> str:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


def test_effort_is_a_multiple_of_the_theorem_of_each_method():
    theorem = {"source": "Theorem 2.1, full batches", "rounds": 8.0, "gradient_evaluations": 10_000.0}
    lines = summarise(
        [
            result("accelerated", 2.0, gradient_evaluations=26_000, theorem=theorem),
            result("accelerated", 2.0, gradient_evaluations=27_000, theorem=theorem, rounds=64),
            result("mbsgd", None, gradient_evaluations=1, theorem=None),
        ]
    )
    shown = effort(lines)
    assert shown is not None
    text = printed(shown)
    row = next(line for line in text.splitlines() if line.startswith(" accelerated"))
    assert row.split() == ["accelerated", "2", "64", "8", "8", "27,000", "10,000", "2.7"]
    assert "accelerated: Theorem 2.1, full batches" in text and "mbsgd" not in text


def test_a_method_without_a_theorem_has_no_effort():
    assert effort(summarise([result("accelerated", 2.0)])) is None
