"""A full disk still shows what is finished: a run, a sweep, their lists, and the same command once more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.identity import SCHEMA, run_id
from fedcore.experiment.sweep import SweepConfig, load_sweep
from fedcore.home import Home
from flows.runs import store_path
from flows.sweep_files import save_sweep, sweep_id
from tasks.run_store import RunStore
from tests.flows.mistakes import SMALL, files
from tests.flows.results import made_result
from tests.patience import HANGS

SCRIPT = Path(__file__).with_name("full_disk.py")
SEEDS = "seed=0,1"


def kept(home: Home, config: ExperimentConfig) -> str:
    """A run's folder as it is when all is over; returns its id."""
    run = run_id(config)
    result = made_result(run=run, seed=config.seed, method="mbsgd", test_error=0.25, rounds=4)
    with closing(RunStore(store_path(home, run))) as store:
        store.set_meta(
            state="FINISHED",
            parameters=config.model_dump_json(),
            rounds=4,
            schema=SCHEMA,
            tracked="1",
            began=datetime.now(UTC).isoformat(),
            result=result.model_dump_json(),
        )
    return run


@pytest.fixture
def sweep(tmp_path) -> SweepConfig:
    """A finished sweep of two cells in `home`, of the experiment small.yaml."""
    (tmp_path / "small.yaml").write_text(SMALL)
    made = load_sweep(tmp_path / "small.yaml", [SEEDS])
    home = Home(tmp_path / "home").make()
    for cell in made.cells():
        kept(home, cell)
    (home.sweeps / sweep_id(made)).mkdir(parents=True)
    save_sweep(home, made)
    return made


def on_full_disk(folder: Path, *commands: list[str]) -> list[tuple[int, str, str]]:
    """Exit code and output of each of these commands, in order, on a full disk."""
    code = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "FEDCORE_HOME": str(folder / "home")}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), json.dumps(commands)],
        capture_output=True,
        text=True,
        timeout=HANGS,
        env=code,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return [tuple(each) for each in json.loads(done.stdout)]


@pytest.mark.minutes
def test_a_full_disk_shows_a_finished_run_and_starts_none(tmp_path, sweep):
    run, other = (run_id(cell) for cell in sweep.cells())
    shown = [["report", run], ["run", "small.yaml"], ["resume", run], ["report", other, "--json"]]
    listed = [["runs"], ["runs", "--json"]]
    before = files(tmp_path)
    *found, (code, _, refused) = on_full_disk(tmp_path, *shown, *listed, ["run", "small.yaml", "seed=2"])
    assert [(code, err) for code, _, err in found] == [(0, "")] * 6
    reported, again, resumed, printed, table, listing = (out for _, out, _ in found)
    for out in (reported, again, resumed):
        assert run in out and "0.25" in out
    assert "is finished" in again and json.loads(printed)["run"] == other
    assert run in table and other in table and "FINISHED" in table
    assert {each["run"]: each["error"] for each in json.loads(listing)} == {run: 0.25, other: 0.25}
    assert code == 2 and refused.count("\n") == 1 and f"run folder {tmp_path / 'home'}: cannot be written" in refused
    assert lasting(files(tmp_path)) == lasting(before)


@pytest.mark.minutes
def test_a_full_disk_shows_a_finished_sweep_whose_plot_cannot_be_drawn(tmp_path, sweep):
    before = files(tmp_path)
    shown, again = on_full_disk(tmp_path, ["report", sweep_id(sweep)], ["sweep", "small.yaml", SEEDS])
    assert shown[0] == again[0] == 0
    for out in (shown[1], again[1]):
        assert "mbsgd" in out and "0.25" in out
    assert shown[2].startswith("not drawn again: ") and "cannot be written" in shown[2] and shown[2].count("\n") == 1
    assert again[2] == "" and lasting(files(tmp_path)) == lasting(before)


@pytest.mark.minutes
def test_a_full_disk_shows_a_sweep_that_was_never_kept_but_whose_cells_are_there(tmp_path, sweep):
    folder = tmp_path / "home" / "sweeps" / sweep_id(sweep)
    (folder / "sweep.json").unlink()
    folder.rmdir()
    ((code, out, err),) = on_full_disk(tmp_path, ["sweep", "small.yaml", SEEDS])
    assert (code, err) == (0, "") and "0.25" in out
    assert "the sweep is not stored: run folder" in out and not folder.exists()


def lasting(found: dict[str, bytes | None]) -> dict[str, bytes | None]:
    """The folder is unchanged except for an empty log, which SQLite makes when it reads and the next writer removes."""
    assert not any(content for name, content in found.items() if name.endswith("-wal"))
    return {name: content for name, content in found.items() if not name.endswith(("-shm", "-wal"))}
