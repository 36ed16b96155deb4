"""Whole runs on public tables that come with scikit-learn, and figures that need a table's files."""

from __future__ import annotations

import pytest
import yaml

from fedcore.configfile.reading import validated
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.home import Home
from studies import study
from studies.study import load_study
from tests.fedcore.data.test_tables import made
from tests.flows.driving import run

MODELS = {
    "diabetes": {"loss": {"name": "squared"}, "clip": 3, "feature_bound": 9.11},
    "breast-cancer": {"feature_bound": 27.4},
    "digits": {"loss": {"name": "softmax"}, "feature_bound": 16.03},
}
STEPS = {"diabetes": 0.05, "breast-cancer": 0.05, "digits": 0.02}


@pytest.mark.parametrize("table", MODELS)
def test_a_run_without_files_learns_and_costs_what_was_planned(table, tmp_path):
    values = {
        "data": {"source": "tables", "table": table, "silos": 4},
        "model": {**MODELS[table], "diameter": 40},
        "algorithm": {"name": "mbsgd", "rounds": 30, "step": STEPS[table], "average": "last"},
        "privacy": {"epsilon": 50},
        "cluster": {"backend": "in-process"},
        "tracking": {"mlflow": False, "evaluate_every": 100},
    }
    home = Home(tmp_path).make()
    result = run(home, validated(ExperimentConfig, values, "test"))
    assert 40 < result.epsilon_accounted <= 50
    if table == "diabetes":
        # Least squares without privacy has about 0.7 of the mean's error on such splits.
        assert result.relative_rmse < 0.85
    else:
        assert result.test_error < 0.5 * result.majority_error


def paper(folder, records: str) -> None:
    """A paper of one figure, of this table, and one that needs no file."""
    base = {"model": {"loss": {"name": "squared"}, "clip": 1}, "privacy": {"epsilon": 1}}
    variant = {"set": {"algorithm": {"name": "mbsgd", "rounds": 2}}, "grid": {"seed": [0]}}
    sweep = {"name": "tiny", "base": {**base, "data": {"source": "tables", "silos": 2}}, "variants": [variant]}
    figures = [
        {"name": "from-file", "title": "A", "sweep": "tiny.yaml", "records": records},
        {"name": "bundled", "title": "B", "sweep": "tiny.yaml"},
    ]
    (folder / "own").mkdir()
    (folder / "own" / "tiny.yaml").write_text(yaml.safe_dump(sweep))
    (folder / "own" / "figures.yaml").write_text(
        yaml.safe_dump({"title": "Own", "paper": "none", "minutes": 1, "figures": figures})
    )


def test_a_figure_of_a_table_is_left_out_without_its_files_and_drawn_from_the_homes_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "STUDIES", tmp_path)
    paper(tmp_path, "gas-turbine")
    home = Home(tmp_path / "home")
    drawn, left_out = load_study("own", home)
    assert [figure.name for figure, _ in drawn] == ["bundled"]
    assert left_out.startswith("left out: from-file; data.folder = ") and "needs gas-turbine.csv; or gt_20" in left_out
    with pytest.raises(InputError, match=r"table gas-turbine needs gas-turbine\.csv"):
        load_study("own", home, [], ["from-file"])
    for folder, overrides in ((home.root / "gas-turbine", []), (tmp_path / "in", [f"data.folder={tmp_path / 'in'}"])):
        made(folder, "gas-turbine", 40)
        drawn, left_out = load_study("own", home, overrides, ["from-file"])
        (cell,) = drawn[0][1].cells()
        assert left_out is None and (cell.data.source, cell.data.table) == ("tables", "gas-turbine")
        assert cell.data.folder == str(folder) and cell.data.silos == 2
