"""The shipped advice table: its rows are those of the five-way figures, with the facts of the configs."""

from __future__ import annotations

from fedcore.advice.shipped import advice_rows
from fedcore.advice.table import Facts
from fedcore.experiment.config import ExperimentConfig
from fedcore.home import Home
from studies.study import load_study


def test_facts_of_the_rows_are_those_of_their_figures(tmp_path):
    """MNIST's four are left out without its files."""
    table = advice_rows()
    drawn, left_out = load_study("five-way", Home(tmp_path), ["privacy.epsilon=1"])
    others = {row.figure for row in table} - {figure.name for figure, _ in drawn}
    assert left_out is not None and len(drawn) == 20
    assert others == {"mnist", "mnist-half", "mnist-alike", "mnist-alike-half"}
    for figure, sweep in drawn:
        values = sweep.cells()[0].model_dump(mode="json")
        rows = [row for row in table if row.figure == figure.name]
        assert [row.facts.epsilon for row in rows] == list(figure.grid["privacy.epsilon"])
        for row in rows:
            privacy = values["privacy"] | {"epsilon": row.facts.epsilon}
            assert row.facts == Facts.of(ExperimentConfig.model_validate(values | {"privacy": privacy})), figure.name
