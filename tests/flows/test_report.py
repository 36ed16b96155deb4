"""Tables of reports, from results made by hand."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from fedcore.experiment.result import RunResult
from flows.reports.baseline import shortfalls
from flows.reports.lines import summarise
from flows.reports.table import effort, table
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


def test_a_table_shows_constant_answers_and_models_that_are_no_better():
    lines = summarise(
        [
            result("mbsgd", 1.0, test_error=0.41, majority_error=0.40, test_auc=0.5),
            result("mbsgd", 1.0, test_error=0.43, majority_error=0.42, test_auc=0.6, seed=1),
            result("mbsgd", 4.0, test_error=0.1, majority_error=0.40, test_auc=0.9),
        ]
    )
    assert [line.auc for line in lines] == [0.55, 0.9]
    text = " ".join(printed(table(lines, "a")).split())
    assert "Always answering the most frequent class: test error 0.400 to 0.410." in text
    assert shortfalls(lines) == [
        "mbsgd at epsilon 1 is no better than always answering the most frequent class: test error 0.420, without a "
        "model 0.410."
    ]


def test_a_table_without_test_data_names_the_unknown_quality():
    assert shortfalls(summarise([result("mbsgd", 1.0, test_error=None)])) == [
        "No test data: data.test names no public file, and evaluation holds no records out, so the quality of "
        "these models is unknown."
    ]


def test_real_labels_have_a_table_in_their_own_units():
    lines = summarise([result("mbsgd", 1.0, test_error=None, test_rmse=1234.56, mean_rmse=1000.0)])
    text = " ".join(printed(table(lines, "a")).split())
    assert "test RMSE" in text and " 1235 " in text and "Always answering the mean: test RMSE 1000." in text
    assert shortfalls(lines) == [
        "mbsgd at epsilon 1 is no better than always answering the mean: test RMSE 1235, without a model 1000."
    ]
