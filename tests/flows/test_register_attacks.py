"""Attempts at a second account for the same records: by a copy, link, manifest, home, older ledger or clock.

Each uses real files and commands, against a policy of cap 2 at a silo that has spent it.
"""

from __future__ import annotations

import json
import os
import pty
import shutil
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import yaml
from mlflow import MlflowClient
from typer.testing import CliRunner

from fedcore.errors import InputError, SiloError
from fedcore.experiment.experiment import Experiment
from fedcore.experiment.loading import load_experiment
from fedcore.federation.in_process import InProcess
from fedcore.federation.rounds import rounds
from fedcore.home import Home
from fedcore.silo.opening import open_site
from flows.commands.accounts.budget import app
from tests.policies import write_policy

FEATURES = ("age", "dose", "mass")
ROOT = Path(__file__).resolve().parents[2]


class Operator:
    """Operator of one silo, ash, in a CSV file; stores the answer to a second run."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self._patch = folder, patch
        policy = write_policy(folder / "policies", cap={"epsilon": 2, "delta": 1e-5})
        patch.setenv("FEDCORE_POLICIES", str(policy.parent))
        self.at_home("home")
        rng = np.random.default_rng(3)
        X = rng.standard_normal((60, 3))
        self.table = pa.table({**dict(zip(FEATURES, X.T, strict=True)), "ill": (X[:, 0] > 0).astype(int)})
        self.file = folder / "ash.csv"
        pa.csv.write_csv(self.table, self.file)
        self.answered: list[tuple[str, str]] = []

    def at_home(self, name: str) -> None:
        self._patch.setenv("FEDCORE_HOME", str(self.folder / name))
        self.home = Home.current().make()

    def config(self, file: Path | None = None, silo: str = "ash", **changes: object) -> Path:
        values = {
            "data": {
                "source": "files",
                "silos": [{"name": silo, "path": str(file or self.file)}],
                "label": "ill",
                "features": list(FEATURES),
                "classes": [0, 1],
            },
            "privacy": {"epsilon": 1.9, "delta": 1e-5, "ledger": "sqlite", "noise": "guarded"},
            "algorithm": {"name": "mbsgd", "rounds": 3},
            **changes,
        }
        path = self.folder / "config.yaml"
        path.write_text(yaml.safe_dump(values))
        return path

    def run(self, config: Path, count: int = 3, clock: datetime | None = None) -> None:
        made = Experiment.prepare(load_experiment(config), self.home.silos)
        spec = made.site_spec([source.name for source in made.dataset.sources], self.home.ledger_folders)
        backend = InProcess(open_site(spec, lambda: clock or datetime.now(UTC)), made.agreement)
        try:
            backend.open()
            loop = rounds(made.context, made.config.algorithm.init(made.start()), backend.ask)
            for _ in range(count):
                next(loop)
            self.answered.append((made.run, str(config)))
            (self.account,) = backend.accounts(made.run)
            backend.close_run(made.run)
        finally:
            backend.close()

    def command(self, *arguments: str) -> str:
        return CliRunner().invoke(app, list(arguments), catch_exceptions=False).output

    def refused(self, config: Path, code: str = "register") -> str:
        with pytest.raises(SiloError) as caught:
            self.run(config)
        assert caught.value.code == code, caught.value
        assert len(self.answered) == 1
        return caught.value.sentence

    @property
    def ledger(self) -> Path:
        (path,) = self.home.ledgers.glob("*/ash.sqlite")
        return path


@pytest.fixture
def operator(tmp_path, monkeypatch, register_folder) -> Operator:
    """An operator whose silo has an account and has spent it, so that a second run is refused."""
    made = Operator(tmp_path, monkeypatch)
    first = made.config()
    with pytest.raises(SiloError, match="fedcore budget register --new CONFIG ash"):
        made.run(first)
    with pytest.raises(InputError, match="--new"):
        made.command("register", str(first))
    assert "has an account from here on" in made.command("register", "--new", str(first))
    made.run(first)
    assert "over all runs" in made.refused(made.config(repetition=1), "policy")
    return made


def test_a_copy_or_a_link_of_the_file_is_no_new_account(operator):
    """Issue 40, attacks a and b."""
    copy, link = operator.folder / "copy.csv", operator.folder / "link.csv"
    shutil.copy(operator.file, copy)
    os.link(operator.file, link)
    for other in (copy, link):
        config = operator.config(other, repetition=1)
        assert "get no second account" in operator.refused(config)
        for new in ((), ("--new",)):
            with pytest.raises(InputError, match="they get no second account"):
                operator.command("register", *new, str(config))
    operator.refused(operator.config(repetition=1), "policy")


@pytest.mark.parametrize("silo", ["birch", "Ash", "ASH"])
def test_another_name_is_no_new_account(operator, silo):
    config = operator.config(silo=silo, repetition=1)
    operator.refused(config)
    with pytest.raises(InputError, match=r"files of both names may be one|which has their account"):
        operator.command("register", "--new", str(config))


def test_an_edited_version_is_no_new_account(operator):
    """Issue 40, attack c: the manifest has no MAC."""
    (manifest,) = operator.home.silos.glob("files/ash/*/manifest.json")
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"version": "0" * 32}))
    assert "get no second account" in operator.refused(operator.config(repetition=1))


def test_another_home_is_no_new_account(operator):
    """Issue 40, attack d, also with the manifest of the first home."""
    silos = operator.home.silos
    operator.at_home("elsewhere")
    assert "get no second account" in operator.refused(operator.config(repetition=1))
    shutil.rmtree(operator.home.silos)
    shutil.copytree(silos, operator.home.silos)
    assert "by its register, not" in operator.refused(operator.config(repetition=1))
    with pytest.raises(InputError, match="another one, at"):
        operator.command("register", str(operator.config()))


def test_an_empty_older_ledger_is_not_migrated_over_a_newer_one(operator):
    """Issue 40, attack e: also if anchor and key were removed with the ledger."""
    path, anchors = operator.ledger, operator.home.anchors / operator.ledger.parent.name
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    older(path)
    key = (anchors / "ash.key").read_bytes()
    with pytest.raises(InputError, match="nothing is migrated"):
        operator.command("migrate", "ash")
    assert (anchors / "ash.key").read_bytes() == key
    for name in ("ash.key", "ash.anchor"):
        (anchors / name).unlink()
    with pytest.raises(InputError, match="nothing is migrated"):
        operator.command("migrate", "ash")
    operator.refused(operator.config(repetition=1), "ledger-lost")
    path.unlink()
    operator.refused(operator.config(repetition=1), "ledger-lost")
    assert "given up" in operator.command("reconcile", "ash")
    operator.refused(operator.config(repetition=1), "ledger-lost")


def test_an_older_ledger_is_not_migrated_where_there_is_a_key_without_a_register(operator, monkeypatch, tmp_path):
    path = operator.ledger
    monkeypatch.setenv("FEDCORE_REGISTER", str(tmp_path / "none"))
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    older(path)
    with pytest.raises(InputError, match="which no older version made"):
        operator.command("migrate", "ash")


def older(path: Path) -> None:
    db = sqlite3.connect(path)
    db.executescript(
        "CREATE TABLE runs (run TEXT, plan TEXT, key BLOB, mu_squared REAL, epsilon REAL, delta REAL);"
        "CREATE TABLE releases (id INTEGER, run TEXT, phase INTEGER, round INTEGER, query_digest BLOB, start INTEGER, "
        "stop INTEGER, sensitivity REAL, sigma REAL, payload_digest BLOB, payload BLOB); PRAGMA user_version = 2;"
    )
    db.close()


ENCODINGS = {
    "sorted": lambda table: table.sort_by("dose"),
    "columns in another order": lambda table: table.select(["ill", "mass", "age", "dose"]),
    "one column renamed": lambda table: table.rename_columns(["years", "dose", "mass", "ill"]),
    "single precision": lambda table: table.set_column(1, "dose", table.column("dose").cast(pa.float32())),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_the_same_records_written_in_another_way_are_no_new_account(operator, encoding, form):
    other = operator.folder / f"other.{form}"
    table = ENCODINGS[encoding](operator.table)
    (pa.csv.write_csv if form == "csv" else pa.parquet.write_table)(table, other)
    config = operator.config(other, "birch")
    with pytest.raises(InputError, match="which has their account"):
        values = yaml.safe_load(config.read_text())
        values["data"]["features"] = [name for name in table.column_names if name != "ill"]
        config.write_text(yaml.safe_dump(values))
        operator.command("register", "--new", str(config))


def test_changed_records_share_the_account_unless_declared_at_the_prompt(operator):
    """One row more: a new version at another path, and the old file changed in place."""
    more = operator.folder / "more.csv"
    text = operator.file.read_text()
    more.write_text(text + "0.5,0.5,0.5,1\n")
    config = operator.config(more, repetition=1)
    assert "fedcore budget register" in operator.refused(config)
    assert "shares the silo's account" in operator.command("register", str(config))  # no terminal: no declaration
    assert "over all runs" in operator.refused(config, "policy")
    operator.file.write_text(text + "0.25,0.5,0.5,1\n")
    config = operator.config(repetition=1)
    assert "its records are not those that were registered" in operator.refused(config)
    assert "its records have changed, and share the account" in operator.command("register", str(config))
    operator.refused(config, "policy")
    (account, _) = json.loads(operator.command("show", "ash", "--json"))
    assert len(account["account"]["data_versions"]) == 2 and account["account"]["declared"] == []


@pytest.mark.minutes
@pytest.mark.slow
def test_disjoint_persons_are_declared_at_a_terminal_and_shown(operator):
    more = operator.folder / "more.csv"
    more.write_text(operator.file.read_text() + "0.5,0.5,0.5,1\n")
    config = operator.config(more, repetition=1)
    parent, child = pty.openpty()
    os.write(parent, b"disjoint ash\n")
    done = subprocess.run(
        [sys.executable, "-m", "flows.commands.app", "budget", "register", str(config)],
        cwd=ROOT,
        stdin=child,
        stdout=child,
        stderr=subprocess.PIPE,
        timeout=300,
    )
    os.close(child)
    os.close(parent)
    assert done.returncode == 0, done.stderr
    assert not operator.account.disjoint
    run = [sys.executable, "-m", "flows.commands.app", "run", str(config)]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    (model,) = operator.home.runs.glob("*/model.json")
    client = MlflowClient(operator.home.mlflow_uri, operator.home.mlflow_uri)
    (version,) = client.search_model_versions()
    made = client.get_run(version.run_id)
    for statement in (json.loads(model.read_text()), version.tags, made.data.tags):
        assert "persons are disjoint: those of other data versions of ash" in statement["privacy.statement"]
    assert "are declared to be in no earlier version" in operator.command("show")
    (account, _) = json.loads(operator.command("show", "--json"))
    assert account["account"]["declared"][0]["declared"].startswith("persons of data version")


def test_a_ledger_that_is_restored_with_its_anchor_is_found_by_the_register(operator):
    """Ledger and anchor fit each other; only the register has the later entries."""
    path, anchors = operator.ledger, operator.home.anchors / operator.ledger.parent.name
    write_policy(operator.folder / "policies", cap={"epsilon": 3.0, "delta": 1e-5})
    saved = [(place, place.read_bytes()) for place in (path, anchors / "ash.anchor", anchors / "ash.key")]
    operator.run(operator.config(repetition=2))
    operator.answered.pop()
    for place, data in saved:
        place.write_bytes(data)
    assert "fedcore budget reconcile ash" in operator.refused(operator.config(repetition=1), "ledger-lost")
    result = CliRunner().invoke(app, ["verify"])
    assert result.exit_code == 1 and "older copy" in result.output
    operator.command("reconcile", "ash")
    assert CliRunner().invoke(app, ["verify"]).exit_code == 0
    operator.refused(operator.config(repetition=1), "policy")  # lost entries are charged
    write_policy(operator.folder / "policies")
    operator.refused(operator.config(repetition=2), "closed")  # and not answered a second time


def test_a_register_that_is_restored_is_behind_what_anchors_prove(operator, register_folder):
    saved = {place: place.read_bytes() for place in register_folder.iterdir()}
    head = json.loads(operator.command("show", "--json"))[0]["account"]["head"]
    write_policy(operator.folder / "policies", cap={"epsilon": 3.0, "delta": 1e-5})
    operator.run(operator.config(repetition=2))
    operator.answered.pop()
    later = json.loads(operator.command("show", "--json"))[0]["account"]["head"]
    assert CliRunner().invoke(app, ["verify", "--head", head]).exit_code == 0
    for place, data in saved.items():
        place.write_bytes(data)
    operator.refused(operator.config(repetition=1), "ledger-lost")
    result = CliRunner().invoke(app, ["verify", "--head", later])
    assert result.exit_code == 1 and "never had the head" in result.output and "restored from before" in result.output
    operator.command("reconcile", "ash")
    operator.refused(operator.config(repetition=1), "policy")


def test_a_simulated_ledger_of_a_registered_silo_is_not_opened_beside_it(operator, monkeypatch, tmp_path):
    (tmp_path / "none").mkdir()
    monkeypatch.setenv("FEDCORE_POLICIES", str(tmp_path / "none"))
    operator.at_home("elsewhere")
    seeded = {"privacy": {"epsilon": 1.9, "delta": 1e-5, "ledger": "sqlite"}}
    operator.refused(operator.config(**seeded))
    operator.refused(operator.config(silo="birch", **seeded))


def test_a_register_that_lost_its_key_or_its_folder_answers_nothing(operator, register_folder):
    (register_folder / "register.key").rename(register_folder / "kept")
    operator.refused(operator.config(repetition=1), "register-damaged")
    (register_folder / "kept").rename(register_folder / "register.key")
    os.chmod(register_folder, 0o777)
    assert "chmod 700" in operator.refused(operator.config(repetition=1), "register-damaged")
    shutil.rmtree(register_folder)
    assert "has no account in the register" in operator.refused(operator.config(repetition=1))


def test_a_moved_home_is_registered_and_a_copied_one_is_not(operator):
    copied = operator.folder / "copied"
    shutil.copytree(operator.home.root, copied)
    operator.home.root.rename(operator.folder / "moved")
    operator.at_home("moved")
    assert "by its register, not" in operator.refused(operator.config(repetition=1))
    assert "its ledger is" in operator.command("register", str(operator.config()))
    operator.refused(operator.config(repetition=1), "policy")
    operator.at_home("copied")
    operator.refused(operator.config(repetition=1))


def test_ledgers_of_before_are_taken_over_with_their_charges(operator, monkeypatch, tmp_path):
    """The ledger was made before there were registers."""
    monkeypatch.setenv("FEDCORE_REGISTER", str(tmp_path / "another"))
    assert "with 1 run(s) of 1 ledger(s)" in operator.command("register", "--new", str(operator.config()))
    operator.refused(operator.config(repetition=1), "policy")


# Time


def at(days: float) -> datetime:
    return datetime.now(UTC) + timedelta(days=days)


def test_a_clock_that_is_set_back_does_not_bring_an_expired_policy_back(tmp_path, monkeypatch, register_folder):
    made = Operator(tmp_path, monkeypatch)
    end = (datetime.now(UTC) + timedelta(hours=3)).isoformat()
    write_policy(tmp_path / "policies", expires=end)
    made.command("register", "--new", str(made.config()))
    made.run(made.config(), clock=at(0))
    later = made.config(repetition=1)
    for moment in (at(0.2), at(0), at(-100)):  # expired; set back; set back further
        with pytest.raises(SiloError, match="nothing new after expires"):
            made.run(later, clock=moment)
    assert "latest recorded time" in made.command("clock", "ash")
    made.command("clock", "ash", "--confirm")
    made.run(later)
    assert "its clock was set from" in made.command("show", "ash")


def test_a_jump_of_more_than_a_day_is_recorded_once_it_is_confirmed(tmp_path, monkeypatch, register_folder):
    made = Operator(tmp_path, monkeypatch)
    write_policy(tmp_path / "policies", expires=at(30).isoformat())
    made.command("register", "--new", str(made.config()))
    made.run(made.config(), clock=at(10))
    before = json.loads(made.command("clock", "ash", "--json"))
    assert before["ahead"] > before["latest"]
    later = made.config(repetition=1)
    with pytest.raises(SiloError, match="fedcore budget clock ash") as caught:
        made.run(later, clock=at(0))
    assert caught.value.code == "clock"
    made.run(later, clock=at(11))
    with pytest.raises(SiloError, match="nothing new after expires"):
        made.run(made.config(repetition=2), clock=at(31))
    with pytest.raises(SiloError, match="fedcore budget clock ash"):
        made.run(made.config(repetition=2), clock=at(0))
    made.command("clock", "ash", "--confirm")
    made.run(made.config(repetition=2), clock=at(0))
