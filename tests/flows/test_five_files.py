"""From a person's CSV files to predictions by commands only: init, check, run, mlflow models predict.

The files are scikit-learn's tables: diabetes (a number) and wine (three classes). The tutorial's test has two classes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from sklearn import datasets
from sklearn.model_selection import train_test_split

from tests.patience import HANGS

pytestmark = [pytest.mark.slow, pytest.mark.minutes]

DIABETES = {
    "age": [20, 80],
    "bmi": [18, 40],
    "bp": [60, 130],
    "s1": [100, 300],
    "s2": [40, 200],
    "s3": [20, 90],
    "s4": [2, 8],
    "s5": [3.5, 6],
    "s6": [60, 120],
}
WINE = {
    "alcohol": [11, 15],
    "malic_acid": [0.5, 5.5],
    "ash": [1.5, 3],
    "alcalinity_of_ash": [10, 30],
    "magnesium": [70, 150],
    "total_phenols": [1, 4],
    "flavanoids": [0, 4.5],
    "nonflavanoid_phenols": [0.1, 0.7],
    "proanthocyanins": [0.3, 3.5],
    "color_intensity": [1, 12],
    "hue": [0.4, 1.6],
    "od280/od315_of_diluted_wines": [1.2, 4],
    "proline": [250, 1600],
}


def fedcore(folder: Path, *words: str, code: int = 0) -> str:
    done = subprocess.run(
        [Path(sys.executable).with_name("fedcore"), *words],
        cwd=folder,
        env=os.environ | {"FEDCORE_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        timeout=3 * HANGS,
    )
    assert done.returncode == code and "Traceback" not in done.stderr, (words, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout + done.stderr


def write(folder: Path, table: Any, columns: list[str], label: str, silos: int) -> pd.DataFrame:
    """Writes a CSV file per silo and public.csv, and returns the public records."""
    frame = pd.concat([table.data[columns], table.target.rename(label)], axis=1)
    train, test = train_test_split(frame, test_size=0.2, random_state=0)
    for k, part in enumerate(np.array_split(np.arange(len(train)), silos)):
        train.iloc[part].to_csv(folder / f"clinic-{k}.csv", index=False)
    test.to_csv(folder / "public.csv", index=False)
    return test


def fill(path: Path, ranges: dict[str, list[float]], more: dict[str, Any]) -> None:
    """Fills in the config, as a person does with an editor."""
    values = yaml.safe_load(path.read_text())
    assert set(values["data"]["features"]) >= set(ranges)
    values["data"]["features"].update({name: {"range": ends} for name, ends in ranges.items()})
    for section, keys in more.items():
        values.setdefault(section, {}).update(keys)
    path.write_text(yaml.safe_dump(values, sort_keys=False))


def predictions(folder: Path, name: str, test: pd.DataFrame, label: str) -> list[Any]:
    """Predictions of the served model for the public records without their label."""
    test.drop(columns=label).to_csv(folder / "ask.csv", index=False)
    subprocess.run(
        [
            sys.executable,
            "-m",
            "mlflow",
            "models",
            "predict",
            "-m",
            f"models:/{name}/1",
            "-i",
            "ask.csv",
            "-t",
            "csv",
            "-o",
            "answer.json",
            "--env-manager",
            "local",
        ],
        check=True,
        cwd=folder,
        timeout=3 * HANGS,
        capture_output=True,
        env=os.environ | {"MLFLOW_TRACKING_URI": f"sqlite:///{folder}/home/mlflow.db"},
    )
    return json.loads((folder / "answer.json").read_text())["predictions"]


def result_of(folder: Path) -> dict[str, Any]:
    (found,) = (folder / "home").glob("runs/*/result.json")
    return json.loads(found.read_text())


def test_a_number_as_label_is_predicted_in_its_own_units(tmp_path):
    table = datasets.load_diabetes(as_frame=True, scaled=False)
    test = write(tmp_path, table, [*DIABETES, "sex"], "progression", 4)
    fedcore(tmp_path, "init", ".", "--label", "progression")
    assert "needs one of range" in fedcore(tmp_path, "check", "experiment.yaml", code=2)
    more = {
        "data": {"classes": None, "label_range": [25, 350]},
        "model": {"loss": {"name": "huber"}, "clip": 0.25},
        "algorithm": {"step": 8.0, "rounds": 40, "average": "last"},
        "privacy": {"epsilon": 4.0},
    }
    fill(tmp_path / "experiment.yaml", {**DIABETES, "sex": [1, 2]}, more)
    fedcore(tmp_path, "check", "experiment.yaml")
    output = " ".join(fedcore(tmp_path, "run", "experiment.yaml").split())
    result = result_of(tmp_path)
    off = np.array(predictions(tmp_path, "own-data", test, "progression")) - test["progression"].to_numpy()
    assert result["test_rmse"] == pytest.approx(np.sqrt(np.mean(off**2)))
    assert result["mean_rmse"] == pytest.approx(test["progression"].std(ddof=0))
    assert "test RMSE" in output and result["variance_explained"] > 0.1


@pytest.mark.hours
def test_three_classes(tmp_path):
    test = write(tmp_path, datasets.load_wine(as_frame=True), list(WINE), "cultivar", 3)
    fedcore(tmp_path, "init", ".")
    more = {
        "data": {"classes": [0, 1, 2]},
        "model": {"loss": {"name": "softmax"}, "clip": 0.25},
        "algorithm": {"step": 8.0, "rounds": 40, "average": "last"},
        "privacy": {"epsilon": 4.0},
    }
    fill(tmp_path / "experiment.yaml", WINE, more)
    fedcore(tmp_path, "check", "experiment.yaml")
    fedcore(tmp_path, "run", "experiment.yaml")
    result = result_of(tmp_path)
    assert result["test_error"] < result["majority_error"] and set(result["test_recall"]) == {"0", "1", "2"}
    wrong = np.mean(np.array(predictions(tmp_path, "own-data", test, "cultivar")) != test["cultivar"].to_numpy())
    assert wrong == pytest.approx(result["test_error"])
