"""docs/tutorials/own-files.md: its script and commands run in order, and print what it shows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from sklearn import datasets
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedcore.home import Home
from flows.services.machine import down
from tests.patience import HANGS

pytestmark = [pytest.mark.slow, pytest.mark.minutes]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorials" / "own-files.md").read_text()
BLOCK = re.compile(r"^```(py|bash|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def follow(folder: Path) -> list[tuple[str, str]]:
    """Runs the page's blocks in the folder; returns each shown output with the printed one."""
    environment = {name: value for name, value in os.environ.items() if name != "FEDCORE_HOME"} | {"COLUMNS": "100"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    printed, pairs = "", []
    for kind, text in BLOCK.findall(PAGE):
        if kind == "text" and text.startswith("features:"):
            config = folder / "experiment.yaml"
            values = yaml.safe_load(config.read_text())
            ranges = yaml.safe_load(text)["features"]
            assert ranges.keys() == values["data"]["features"].keys()
            values["data"]["features"] = ranges
            values.setdefault("privacy", {})["epsilon"] = 4
            config.write_text(yaml.safe_dump(values, sort_keys=False))
        elif kind == "text":
            pairs.append((text, printed))
        else:
            (folder / "make_files.py").write_text(text) if kind == "py" else None
            command = ["python", "make_files.py"] if kind == "py" else ["bash", "-ec", text]
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=6 * HANGS, check=False
            )
            assert done.returncode == 0, (text, done.stdout[-2000:], done.stderr[-2000:])
            printed = done.stdout.replace(f"{folder}/", "")
    return pairs


def table(text: str) -> tuple[list[str], list[str]]:
    """The head of the table in a text, and its row without the seconds."""
    found = [line.split() for line in text.splitlines()]
    (head,) = [words for words in found if words[:2] == ["method", "epsilon"]]
    (row,) = [words for words in found if words[:1] == ["mbsgd"]]
    return head, row[:-1]


def test_the_page_is_what_its_commands_print(tmp_path):
    """The error of one run of 114 records, which two processors may round to another by one of them."""
    try:
        checked, advised, trained = follow(tmp_path)
    finally:
        down(Home(tmp_path / ".fedcore"))
    for shown, printed in (checked, advised):
        for part in " ".join(shown.split()).split(" ... "):
            assert part in " ".join(printed.split())
    (head, shown_row), (printed_head, row) = map(table, trained)
    assert head == printed_head and shown_row[:3] + shown_row[4:] == row[:3] + row[4:]
    assert abs(float(shown_row[3]) - float(row[3])) < 0.01, f"it is {row[3]}"
    (found,) = (tmp_path / ".fedcore").glob("runs/*/result.json")
    result, answer = json.loads(found.read_text()), json.loads((tmp_path / "answer.json").read_text())
    X, y = datasets.load_breast_cancer(return_X_y=True)
    rest, public, learned, truth = train_test_split(X[:, :10], y, test_size=0.2, random_state=0)
    assert result["epsilon_accounted"] <= 4.0001
    wrong = [bool(said) != bool(true) for said, true in zip(answer["predictions"], truth, strict=True)]
    assert sum(wrong) / len(truth) == pytest.approx(result["test_error"])
    majority = 1.0 - truth.mean()
    central = 1.0 - make_pipeline(StandardScaler(), LogisticRegression()).fit(rest, learned).score(public, truth)
    assert result["majority_error"] == pytest.approx(majority)
    assert f"an error of {majority:.3f}" in PAGE and f"has {central:.3f}" in PAGE
