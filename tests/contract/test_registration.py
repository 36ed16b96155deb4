"""A method in no list: its file from docs/how-to/add-method.md and one line, in a copy of the package."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.patience import HANGS

ROOT = Path(__file__).resolve().parents[2]
LINE = "from fedcore.algorithms.heavy_ball import HeavyBall\n"
DATA = "{source: synthetic, silos: 3, records: 40, features: 4, test_records: 20, classes: 3}"


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """A copy of the packages with the worked example's method in it."""
    folder = tmp_path_factory.mktemp("registered")
    for package in ("fedcore", "tasks", "flows"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    (example, *_) = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "how-to" / "add-method.md").read_text(), re.DOTALL
    )
    (folder / "fedcore" / "algorithms" / "heavy_ball.py").write_text(example)
    registry = folder / "fedcore" / "algorithms" / "__init__.py"
    text = registry.read_text()
    before = "from fedcore.algorithms.localized_accelerated"
    registry.write_text(text.replace(before, LINE + before, 1))
    assert registry.read_text().count("\n") == text.count("\n") + 1
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "docs" / "how-to").mkdir(parents=True)
    for file in ("pyproject.toml", "docs/how-to/add-method.md"):
        shutil.copy(ROOT / file, folder / file)
    (folder / "run.yaml").write_text(
        f"data: {DATA}\nmodel: {{loss: {{name: softmax}}}}\nprivacy: {{epsilon: 4}}\n"
        "algorithm: {name: heavy-ball, rounds: 5}\ncluster: {backend: in-process}\ntracking: {mlflow: false}\n"
    )
    return folder


CALLS = """
import contextlib, io, json, sys
from flows.commands.app import main
for line in sys.stdin:
    sys.argv, out, err, code = ["fedcore", *json.loads(line)], io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def python(copy: Path, code: str, typed: str = "") -> str:
    """Output of a Python process in the copy."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "FEDCORE_HOME": str(copy / "home")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=copy,
        env=environment,
        input=typed,
        capture_output=True,
        text=True,
        timeout=HANGS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def call(copy: Path, *commands: Sequence[str]) -> list[Done]:
    """Runs `fedcore` with these arguments in the copy, one command after the other."""
    output = python(copy, CALLS, "".join(json.dumps(list(command)) + "\n" for command in commands))
    return [Done(*json.loads(line)) for line in output.splitlines()]


def test_it_is_planned_and_explained(copy):
    planned, explained = call(copy, ("plan", "run.yaml", "--json"), ("algorithms", "heavy-ball", "--json"))
    assert planned.returncode == 0, planned.stderr
    totals = json.loads(planned.stdout)["totals"]
    assert totals["rounds"] == 5 and 3.99 < totals["epsilon_accounted"] <= 4
    (shown,) = json.loads(explained.stdout)
    assert shown["keys"]["momentum"].startswith("Part of the last step")
    assert set(shown["keys"]) == set(shown["defaults"])


def test_its_traits_decide_what_it_is_given(copy):
    network = ("model.hidden=3", "model.clip=1")
    refused, hidden, multiplier, listed, nearly = call(
        copy,
        ("plan", "run.yaml", "model.loss.name=hinge", "data.classes=2"),
        ("plan", "run.yaml", *network, "model.diameter=60"),
        ("plan", "run.yaml", "privacy.epsilon=null", "privacy.noise_multiplier=3"),
        ("plan", "run.yaml", "algorithm={name: localized-accelerated}", *network),
        ("plan", "run.yaml", "algorithm.momentm=0.1"),
    )
    assert refused.returncode == 2 and "'heavy-ball' needs a smooth loss" in refused.stderr
    assert hidden.returncode == multiplier.returncode == 0
    assert "heavy-ball" in listed.stderr
    assert nearly.returncode == 2 and "did you mean momentum?" in nearly.stderr


@pytest.mark.minutes
def test_it_trains_is_audited_and_may_be_named_by_a_policy(copy):
    code = (
        "import json, sys; from pathlib import Path; from fedcore.experiment.loading import load_experiment;"
        "from fedcore.experiment.experiment import Experiment; from fedcore.home import LedgerFolders;"
        "from fedcore.federation.rounds import rounds; from fedcore.silo.policies.policy import Policy;"
        "made = Experiment.prepare(load_experiment('run.yaml'), Path('silos'));"
        "backend = made.in_process(LedgerFolders.below(Path('ledgers'))); backend.open();"
        "states = [state for _, _, state in rounds(made.context, made.method.init(made.start()), backend.ask)];"
        "Policy.model_validate({'methods': ['heavy-ball'], 'losses': ['softmax'], 'cap': {'epsilon': 1}, 'runs': 1,"
        " 'expires': '2999-01-01'});"
        "print(json.dumps([len(states), [a.releases for a in backend.accounts(made.run)]]))"
    )
    assert json.loads(python(copy, code)) == [5, [5, 5, 5]]
    (audited,) = call(copy, ("audit", "run.yaml", "--json"))
    assert audited.returncode == 0, audited.stderr
    assert json.loads(audited.stdout)["passed"] and json.loads(audited.stdout)["method"] == "heavy-ball"


@pytest.mark.minutes
@pytest.mark.slow
def test_the_method_as_printed_passes_every_contract_test(copy):
    """Runs every test of methods for this one: whole, samples, held-out records, weights, participation."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "FEDCORE_TEST_METHOD": "heavy-ball"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "", "-k", "heavy-ball", "-n0"]
    done = subprocess.run(
        [*command, "tests/contract", "--ignore", "tests/contract/test_registration.py"],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANGS,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    passed = int(re.search(r"(\d+) passed", done.stdout)[1])
    assert passed > 60 and "failed" not in done.stdout
