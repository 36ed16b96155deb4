"""The hospitals' settings are those that `fedcore tune` chooses without a record, to the last digit of its table."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedcore.data.sources.made_up.assumed import Assumptions
from fedcore.experiment.loading import load_experiment
from fedcore.experiment.tuning import default_grid, tune
from flows.commands.tune import assumption, explained

pytestmark = [pytest.mark.slow, pytest.mark.minutes]

FOLDER = Path(__file__).parents[2] / "conf" / "experiment"


@pytest.mark.parametrize("name", ["hospitals.yaml", pytest.param("hospitals-all.yaml", marks=pytest.mark.hours)])
def test_tune_writes_the_committed_values_again(name, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCORE_HOME", str(tmp_path))
    config = load_experiment(FOLDER / name)
    made = tune(config, default_grid(config), Assumptions(), 20)
    values = config.model_dump(mode="json")
    for key, value in made.best.point.items():
        section, _, own = key.partition(".")
        assert values[section][own] == value, key
    text = (FOLDER / name).read_text()
    for line in explained(Path(name), made, assumption(made, Assumptions()), 20):
        assert f"# {line}\n" in text
