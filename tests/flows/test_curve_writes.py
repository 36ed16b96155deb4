"""Curves of whole runs in MLflow: DIFF2's, and the keys of classes that once were one key."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing

import pytest

from fedcore.directed_rounding import number_up
from fedcore.experiment.config import ExperimentConfig
from fedcore.home import Home
from tests.flows.driving import run

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path, monkeypatch) -> Home:
    monkeypatch.setenv("FEDCORE_HOME", str(tmp_path / "home"))
    return Home.current().make()


def logged(home: Home, kind: str) -> tuple[dict[str, dict[int, float]], dict[str, str]]:
    """Points by key and step, and parameters, of the only run of this kind in MLflow."""
    with closing(sqlite3.connect(home.mlflow_database)) as db:
        (found,) = db.execute("SELECT run_uuid FROM tags WHERE key = 'fedcore.kind' AND value = ?", (kind,)).fetchall()
        points: dict[str, dict[int, float]] = {}
        for key, step, value in db.execute("SELECT key, step, value FROM metrics WHERE run_uuid = ?", found):
            points.setdefault(key, {})[step] = value
        return points, dict(db.execute("SELECT key, value FROM params WHERE run_uuid = ?", found))


def test_diff2s_paper_claims_at_the_end_only_and_its_curves_are_there(home):
    """With period 1 the curve was minibatch SGD's: 16.4 in round 1, 62.3 in round 12."""
    result = run(
        home,
        ExperimentConfig.model_validate(
            {
                "name": "claimed",
                "cluster": {"backend": "in-process"},
                "data": {"source": "synthetic", "silos": 2, "records": 400, "features": 3, "test_records": 40},
                "algorithm": {"name": "diff2", "rounds": 12, "period": 1},
                "privacy": {"epsilon": 3, "delta": 1e-5, "calibration": "paper"},
            }
        ),
    )
    points, params = logged(home, "phase")
    assert points["privacy/epsilon_paper_so_far"] == {12: number_up(result.epsilon_paper)}
    assert result.epsilon_paper == pytest.approx(3.0) and params["alpha"] == "9"
    assert len(points["privacy/epsilon_accounted_so_far"]) == 12
    for key in ("restart", "step_norm", "clip", "noise", "norm"):
        assert sorted(points[f"estimate/{key}"]) == list(range(1, 13))
    assert all(math.isfinite(value) and value > 0 for value in points["estimate/noise"].values())


def test_classes_that_differ_in_what_mlflow_does_not_take_have_a_curve_each(home, tmp_path):
    rows = "".join(f"{number / 60},{'<7' if number % 3 else '>7'}\n" for number in range(60))
    for name in ("one", "two", "test"):
        (tmp_path / f"{name}.csv").write_text("CD4+,outcome\n" + rows)
    result = run(
        home,
        ExperimentConfig.model_validate(
            {
                "name": "two-keys",
                "cluster": {"backend": "in-process"},
                "data": {
                    "source": "files",
                    "label": "outcome",
                    "classes": ["<7", ">7"],
                    "test": str(tmp_path / "test.csv"),
                    "silos": [{"name": name, "path": str(tmp_path / f"{name}.csv")} for name in ("one", "two")],
                    "features": {"CD4+": {"range": [0, 1]}},
                },
                "algorithm": {"name": "mbsgd", "rounds": 3},
                "privacy": {"trust": "none", "noise": "seeded"},
            }
        ),
    )
    points, params = logged(home, "experiment")
    of_classes = {key: list(value.values()) for key, value in points.items() if key.startswith("test_recall")}
    assert of_classes == {
        "test_recall/:3c:7": [pytest.approx(result.test_recall["<7"])],
        "test_recall/:3e:7": [pytest.approx(result.test_recall[">7"])],
    }
    assert "data.features.CD4_" in params  # a key of this class only: unchanged
