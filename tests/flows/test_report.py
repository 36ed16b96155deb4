"""The tables that a person reads, from results made by hand."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from flows.reports.table import effort, summarise


def result(method: str, epsilon: float | None, **values: Any) -> dict[str, Any]:
    return {
        "method": method, "epsilon_target": epsilon, "epsilon_accounted": epsilon, "test_error": 0.25, "rounds": 60,
        "seconds": 1.0, "noise": "seeded", **values,
    }  # fmt: skip


def published(table: Any) -> str:
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
    text = published(shown)
    row = next(line for line in text.splitlines() if line.startswith(" accelerated"))
    assert row.split() == ["accelerated", "2", "64", "8", "8", "27,000", "10,000", "2.7"]
    assert "accelerated: Theorem 2.1, full batches" in text and "mbsgd" not in text


def test_results_of_older_code_have_no_effort():
    assert effort(summarise([result("accelerated", 2.0)])) is None
