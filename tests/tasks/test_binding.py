"""A stopped run is bound to exactly the inputs that decide its bits; messages for a run that cannot go on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedcore
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.identity import run_id
from fedcore.experiment.stored import binding
from fedcore.home import Home
from flows.driver.session import Session
from flows.launch import launch_run
from flows.runs import store_path
from tasks.run_file import read_done, read_meta
from tasks.run_store import RunStore
from tests.flows.driving import run
from tests.patience import HANGS

ROOT = Path(fedcore.__file__).resolve().parents[1]


class Killed(BaseException):
    """Simulates the end of a process within this one."""


@pytest.fixture
def home(tmp_path, monkeypatch) -> Home:
    monkeypatch.setenv("FEDCORE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return Home.current().make()


def config(**changes) -> ExperimentConfig:
    return ExperimentConfig.model_validate(
        {
            "name": "bound",
            "data": {"source": "synthetic", "silos": 2, "records": 40, "features": 3, "test_records": 20},
            "privacy": {"epsilon": 2},
            "algorithm": {"name": "mbsgd", "rounds": 6, "step": 0.5},
            "cluster": {"backend": "in-process"},
            "tracking": {"mlflow": False},
            **changes,
        }
    )


def files(folder: Path, **changes) -> ExperimentConfig:
    """Two silos in files of one folder, which are written unless they are there."""
    for seed, name in enumerate(("north", "south")):
        path = folder / f"{name}.csv"
        if not path.exists():
            X = np.random.default_rng(seed).uniform(-1, 1, size=(30, 2)).round(3)
            path.write_text("a,b,y\n" + "".join(f"{a},{b},{int(a > b)}\n" for a, b in X))
    silos = [{"name": name, "path": str(folder / f"{name}.csv")} for name in ("north", "south")]
    return config(data={"source": "files", "silos": silos, "features": ["a", "b"], "label": "y"}, **changes)


def stopped(home: Home, made: ExperimentConfig, after: int = 2) -> dict[str, str]:
    """Drives the run until so many rounds are done, and ends as a kill would; returns what its checkpoint knows."""
    session = Session(home)
    save, saved = RunStore.save, []

    def killed(self, *given, **named):
        save(self, *given, **named)
        saved.append(1)
        if len(saved) > after:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunStore, "save", killed)
        with pytest.raises(Killed):
            run(home, made, session)
    session.close()
    assert read_done(store_path(home, run_id(made))) == after
    return read_meta(store_path(home, run_id(made)))


def set_meta(home: Home, made: ExperimentConfig, **values: str | None) -> None:
    store = RunStore(store_path(home, run_id(made)))
    store.set_meta(**values)
    store.close()


def test_a_checkpoint_is_bound_to_versions_and_not_to_source_files(home, monkeypatch):
    meta = stopped(home, config())
    assert (meta["arithmetic"], meta["format"]) == (str(binding.ARITHMETIC), str(binding.FORMAT))
    monkeypatch.setattr("tasks.binding.code_version", lambda: "0.2.0+other")
    result = run(home, config())
    assert result.weights_sha256 == run(Home(home.root / "undisturbed").make(), config()).weights_sha256


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize(
    ("constant", "says"), [("ARITHMETIC", "by other formulas, or other draws"), ("FORMAT", "in another form")]
)
def test_another_version_is_named_and_what_is_left_to_do(home, monkeypatch, constant, says, durable):
    made = config(privacy={"epsilon": 2, "ledger": "sqlite" if durable else "memory"}, repetition=3)
    stopped(home, made)
    now = getattr(binding, constant)
    monkeypatch.setattr(binding, constant, 7)
    with pytest.raises(InputError) as refused:
        run(home, made)
    message = str(refused.value)
    assert (
        f"run {run_id(made)} cannot go on" in message
        and says in message
        and f"({constant.lower()} {now}, now 7)" in message
    )
    assert "repetition=4" in message and "\n" not in message
    assert (f"`fedcore budget close {run_id(made)}`" in message) is durable


def test_a_checkpoint_of_before_says_so(home):
    made = config(privacy={"epsilon": 2, "ledger": "sqlite"})
    stopped(home, made)
    set_meta(home, made, arithmetic=None, format=None, code="0.2.0+0123456789ab")
    with pytest.raises(InputError, match=r"begun by code 0\.2\.0\+0123456789ab, which .* `fedcore budget close bound-"):
        run(home, made)


def test_another_plan_of_the_same_config_is_named(home):
    stopped(home, config())
    set_meta(home, config(), plan="0" * 64)
    with pytest.raises(InputError, match=r"cannot go on: .* another plan of the same .*\(plan 0000.*repetition=1"):
        run(home, config())


@pytest.mark.parametrize("change", ["a record", "a line end", "another file"])
def test_a_silo_s_file_that_changed_stops_a_stopped_run(home, tmp_path, change):
    """With as many records, and the same plan."""
    made = files(tmp_path)
    stopped(home, made)
    path = tmp_path / "south.csv"
    text = path.read_text()
    if change == "another file":
        shutil.copy(tmp_path / "north.csv", path)
    else:
        lines = text.splitlines()
        changed = [*lines[:5], lines[6], *lines[6:]] if change == "a record" else lines
        path.write_text(("\n" if change == "a record" else "\r\n").join(changed) + "\n")
    with pytest.raises(InputError, match="cannot go on: the file of silo south does not hold the bytes"):
        run(home, made)
    path.write_text(text)  # with another time of writing
    assert run(home, made).weights_sha256 == run(Home(home.root / "undisturbed").make(), made).weights_sha256


def test_no_digest_of_a_file_can_be_looked_up_in_a_checkpoint(home, tmp_path):
    """Two runs on the same files record different digests of them; of guarded silos' files none is recorded."""
    one, two = stopped(home, files(tmp_path)), stopped(home, files(tmp_path, repetition=1))
    assert set(json.loads(one["files"])) == {"north", "south"}
    assert not set(json.loads(one["files"]).values()) & set(json.loads(two["files"]).values())


def test_other_public_files_stop_a_stopped_run_and_the_same_elsewhere_do_not(home, tmp_path):
    rng = np.random.default_rng(0)

    def written(folder: Path, rows: np.ndarray) -> Path:
        folder.mkdir(exist_ok=True)
        lines = [f"{'+1' if a > b else '-1'} 1:{a:.3f} 2:{b:.3f}\n" for a, b in rows]
        (folder / "data.txt").write_text("".join(lines))
        return folder / "data.txt"

    rows = rng.uniform(-1, 1, size=(60, 2))
    path = written(tmp_path / "here", rows)
    made = config(data={"source": "libsvm", "path": str(path), "features": 2, "silos": 2})
    stopped(home, made)
    written(tmp_path / "here", -rows)
    with pytest.raises(InputError, match=r"cannot go on: .* finds other records where its data are"):
        run(home, made)
    # The place of the data is a link now, to a copy of what they were.
    written(tmp_path / "there", rows)
    shutil.rmtree(tmp_path / "here")
    (tmp_path / "here").mkdir()
    written(tmp_path / "here", rows)
    assert run(home, made).rounds == 6


def test_another_numpy_is_said_and_refuses_nothing(home, capsys):
    from rich.console import Console

    made = config()
    stopped(home, made)
    begun = json.loads(read_meta(store_path(home, run_id(made)))["environment"])
    assert begun["numpy"] == np.__version__
    set_meta(home, made, environment=json.dumps(begun | {"numpy": "1.0"}))
    from flows.launch_notices import notify_other_environment
    from flows.runs import read_run

    notify_other_environment(home, Console(width=300), read_run(home, run_id(made)))
    assert f"numpy 1.0, here {np.__version__}" in capsys.readouterr().out
    assert run(home, made).rounds == 6


def test_a_finished_run_says_that_its_data_are_others_now(home, tmp_path, capsys):
    from rich.console import Console

    made = files(tmp_path)
    result = run(home, made)
    console = Console(width=400)
    assert launch_run(made, console) == result
    assert "changed since" not in capsys.readouterr().out
    (tmp_path / "south.csv").write_text((tmp_path / "north.csv").read_text())
    assert launch_run(made, console) == result
    assert "the file of silo south changed since then" in capsys.readouterr().out
    (tmp_path / "south.csv").unlink()
    assert launch_run(made, console) == result


DRIVER = """
import os, sys
from flows.training import train
from flows.driver.session import Session
from fedcore.experiment.loading import load_experiment
from fedcore.home import Home

def rounds(training):
    while training.phase is not None:
        training.advance()
        if (training.phase, training.round) == (1, int(sys.argv[2])):
            os._exit(9)

with Session.of_driver(Home.current().make()) as session:
    result = train(load_experiment(sys.argv[1]), session, rounds)
print(result.weights_sha256, result.code)
"""


@pytest.mark.slow
@pytest.mark.minutes
@pytest.mark.parametrize("ledger", ["memory", "sqlite"])
def test_a_comment_in_every_file_does_not_strand_a_stopped_run(tmp_path, ledger):
    """A killed run is resumed, with the same bits, by a copy of the packages that differs in comments only."""
    copy = tmp_path / "copy"
    for package in ("fedcore", "tasks", "flows"):
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__", "conf"))
    for path in copy.rglob("*.py"):
        path.write_text(f"# a comment\n{path.read_text()}\n# and another\n")
    made = config(privacy={"epsilon": 2, "ledger": ledger}).model_dump_json()
    (tmp_path / "bound.yaml").write_text(made)

    def driven(home: str, packages: Path, until: int) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "FEDCORE_HOME": str(tmp_path / home),
            "PYTHONPATH": str(packages),
            "PYTHONSAFEPATH": "1",
        }
        return subprocess.run(
            [sys.executable, "-c", DRIVER, str(tmp_path / "bound.yaml"), str(until)],
            env=environment,
            text=True,
            capture_output=True,
            timeout=HANGS,
            cwd=tmp_path,
        )

    killed = driven("home", ROOT, 4)
    assert killed.returncode == 9, killed.stderr
    resumed, undisturbed = driven("home", copy, 0), driven("undisturbed", ROOT, 0)
    assert resumed.returncode == undisturbed.returncode == 0, resumed.stderr + undisturbed.stderr
    (weights, code), (same, other) = resumed.stdout.split(), undisturbed.stdout.split()
    assert weights == same and code != other
