"""Files that are hardly intended: `check` fails, `plan` and `run` warn by public facts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from fedcore.configfile.yaml_loader import Loader
from fedcore.configfile.yaml_writer import yaml_block
from flows.commands.arguments import config_text
from tests.flows.mistakes import check_mistake

ROWS = [f"{30 + k},{('male', 'female')[k % 2]},{k % 2},note" for k in range(40)]
HEADER = "age,sex,ill,note"
CONFIG = """\
name: own
data:
  source: files
  silos: [{name: north, path: north.csv}, {name: south, path: south.csv}]
  features: {age: {range: [20, 90]}, sex: {categories: [male, female]}}
  label: ill
  test: test.csv
privacy: {epsilon: 1}
algorithm: {name: mbsgd, rounds: 2}
cluster: {backend: in-process}
tracking: {mlflow: false}
"""
SECRET = "4711"


@pytest.fixture
def call(fedcore, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("north", "south", "test"):
        write(name, ROWS)
    Path("own.yaml").write_text(CONFIG)
    return fedcore


def write(name, rows):
    Path(f"{name}.csv").write_text("\n".join([HEADER, *rows]) + "\n")


def test_check_fails_if_no_cell_of_a_silo_fits_and_a_plan_does_not_show_it(call):
    write("north", [row.replace("male", f"M{SECRET}") for row in ROWS])
    code, out, err = call("check", "own.yaml")
    assert code == 2 and err == "1 of 3 files do not fit own.yaml: north\n"
    assert "north: 40 records, is hardly what was meant" in out and f"M{SECRET}" in out
    assert "south: 40 records, fits" in out
    listed = json.loads(call("check", "own.yaml", "--json")[1])
    assert listed["north"]["faults"] == [] and len(listed["north"]["doubts"]) == 1 and listed["south"]["doubts"] == []
    code, out, err = call("plan", "own.yaml")
    assert code == 0 and SECRET not in out + err and "hardly" not in out


def test_a_plan_and_a_run_warn_if_no_cell_of_the_test_file_fits(call):
    write("test", [row.replace("male", "Male") for row in ROWS])
    warning = "warning: data.test: file "
    words = "column 'sex': not one of its cells is one of its categories 'male', 'female' (for instance 'Male', '"
    code, out, _ = call("plan", "own.yaml")
    assert code == 0 and warning in out and words in " ".join(out.split())
    assert any(words in each for each in json.loads(call("plan", "own.yaml", "--json")[1])["warnings"])
    # A run warns before it begins, on standard error even if standard output is JSON.
    code, out, err = call("run", "own.yaml", "algorithm.rounds=2000000", "--json")
    assert code == 2 and err.startswith(warning) and words in err and out == ""


def test_rows_in_a_quote_fail_a_check_and_give_a_warning_for_a_test_file(call):
    rows = list(ROWS)
    rows[10], rows[30] = '40,male,0,"note', '60,male,0,note"'
    write("south", rows)
    write("test", rows)
    code, out, err = call("check", "own.yaml")
    assert code == 2 and err.endswith("south, data.test\n") and "20 lines of the file are inside of cells" in out
    assert "data.test: file" in (planned := " ".join(call("plan", "own.yaml")[1].split()))
    assert "20 lines of the file are inside of cells and look like rows of their own" in planned


def test_a_tiny_silo_is_refused_in_one_sentence_by_every_command(call):
    write("south", ROWS[:3])
    for command in ("plan", "run"):
        check_mistake(
            call, [command, "own.yaml"], "silo south: privacy.delta = 1/n^2 is 0.112 for 3 records, above 0.05"
        )
    code, out, _ = call("plan", "own.yaml", "privacy.delta=0.02")
    assert code == 0 and "delta is above 0.001 at 2 of 2 silos, up to 0.02" in " ".join(out.split())


TEXTS = ["12e4", "0o17", "0x1f", "007", "1e3", "1_0", "12:30", "yes", "null", "3.0", ".5", "plain", "é", "1,5", ""]


def test_texts_of_a_config_that_is_written_are_read_as_texts():
    """A category 12e4 in quotes came back as the number 120000 from `tune`, and from a run's record in MLflow."""
    values = {"categories": TEXTS, "numbers": [1, 0.5, 1e-300], "12e4": True, "none": None}
    for text in (config_text(values, ["a comment"]), yaml_block(values)):
        assert yaml.load(text, Loader) == values
