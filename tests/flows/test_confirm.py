"""A run of a billion rounds: planned in seconds, and started only after a confirmation of its size."""

import json
import resource
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import fedcore
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import make_plan
from fedcore.experiment.identity import run_id
from fedcore.home import Home
from fedcore.planning.size import MOST_LEDGER_BYTES, MOST_ROUNDS, Size
from flows import confirm, launch, runs
from flows.commands import run
from flows.commands.app import app
from tests.flows.results import made_result

BILLION = 10**9
BASE = {
    "data": {"source": "synthetic", "silos": 3, "records": 40, "features": 4},
    "privacy": {"epsilon": 2},
    "algorithm": {"name": "mbsgd", "rounds": BILLION, "step": 1},
}
METHODS = {
    "full batches": {"name": "mbsgd", "rounds": BILLION, "step": 1},
    "shards": {"name": "localized-mbsgd", "rounds": BILLION // 2, "lam": 0.1, "step": 1},
    "differences": {"name": "diff2", "rounds": BILLION, "period": 10, "step": 0.1},
    "samples": {"name": "mbsgd", "rounds": BILLION, "step": 1, "batch": 10},
    "local steps": {"name": "scaffold", "rounds": BILLION, "local_steps": 10, "sampling_rate": 0.2},
}


@pytest.fixture
def cli(fedcore, monkeypatch, tmp_path):
    """The command line in an empty folder, with its output on one line."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        code, out, err = fedcore(*arguments)
        return code, " ".join(out.split()), " ".join(err.split())

    return call


def written(folder, **sections):
    (folder / "huge.yaml").write_text(json.dumps(BASE | sections))
    return "huge.yaml"


@pytest.mark.parametrize("method", METHODS)
def test_a_billion_rounds_are_planned_or_refused_in_seconds_and_in_no_memory(cli, tmp_path, method):
    path = written(tmp_path, algorithm=METHODS[method])
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    code, out, err = cli("plan", path)
    assert time.process_time() - began < 10  # measured: less than 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KB
    if method in ("samples", "local steps"):
        assert code == 2 and "a phase has at most 1048576 answers about samples of the records" in err
        return
    rounds = make_plan(ExperimentConfig.model_validate(BASE | {"algorithm": METHODS[method]})).rounds
    assert code == 0 and rounds >= BILLION
    assert f"this would take {rounds:,} rounds" in out and "asks for --yes before it begins" in out


def test_a_plan_has_its_size_in_json(cli, tmp_path):
    path = written(tmp_path)
    _, out, _ = cli("plan", path, "privacy.ledger=sqlite", "algorithm.rounds=1000", "--json")
    # By hand: 3 silos send and receive 5 numbers (with the bias) in each round.
    assert json.loads(out)["size"] == {
        "rounds": 1000,
        "floats_up": 15_000,
        "floats_down": 15_000,
        "releases": 3000,
        "ledger_bytes": 3000 * (400 + 8 * 5),
        "file_bytes": 1000 * 6500 + 3000 * 160,
        "asks": False,
    }


@pytest.mark.parametrize("command", ["run", "sweep", "schedule add"])
def test_nobody_begins_it_without_yes_and_nothing_is_written(cli, tmp_path, command):
    path = written(tmp_path)
    more = {"run": [], "sweep": ["seed=0,1"], "schedule add": ["--every", "1d"]}[command]
    code, out, err = cli(*command.split(), path, *more)
    count = 2 if command == "sweep" else 1
    assert code == 2 and out == ""
    assert f"this would take {count * BILLION:,} rounds, {count * 1.5e10:.3g} numbers sent by silos" in err
    assert "ledgers in memory" in err and "no run of this kind has finished here" in err
    assert err.endswith("Give --yes to start it all the same; nothing was written")
    assert [each.name for each in tmp_path.iterdir()] == ["huge.yaml"]


@pytest.mark.minutes
def test_without_a_terminal_it_ends_at_once(tmp_path):
    """Standard input that never ends and never has data."""
    path = written(tmp_path)
    began = subprocess.Popen(
        [sys.executable, "-P", "-m", "flows.commands.app", "run", path, "privacy.ledger=sqlite"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert began.wait(120) == 2
        assert "1.32 TB of ledgers" in began.stderr.read().replace("\n", " ")
    finally:
        began.kill()
    assert [each.name for each in tmp_path.iterdir()] == ["huge.yaml"]


@pytest.mark.parametrize(
    ("sections", "large"),
    [
        ({"rounds": MOST_ROUNDS}, False),
        ({"rounds": MOST_ROUNDS + 1}, True),
        ({"rounds": MOST_LEDGER_BYTES // (3 * 440)}, True),
    ],
)
def test_the_bound_is_at_the_documented_size(sections, large):
    algorithm = BASE["algorithm"] | sections
    config = ExperimentConfig.model_validate(BASE | {"algorithm": algorithm})
    assert confirm.size_of(config).large == large


def test_ledgers_alone_can_be_too_large():
    data = BASE["data"] | {"silos": 300}
    algorithm = BASE["algorithm"] | {"rounds": 100_000}
    config = ExperimentConfig.model_validate(BASE | {"data": data, "algorithm": algorithm})
    assert not confirm.size_of(config).large
    durable = config.model_copy(update={"privacy": config.privacy.model_copy(update={"ledger": "sqlite"})})
    size = confirm.size_of(durable)
    assert size.ledger_bytes == 100_000 * 300 * 440 and size.large
    assert sum([size, size], Size()).ledger_bytes == 2 * size.ledger_bytes


def test_a_confirmed_run_needs_no_second_one_and_a_sweep_is_the_sum_of_its_cells(tmp_path, monkeypatch):
    home = Home(tmp_path)
    half = BASE | {"algorithm": BASE["algorithm"] | {"rounds": MOST_ROUNDS // 2 + 1}}
    cells = [ExperimentConfig.model_validate(half | {"seed": seed}) for seed in (0, 1)]
    confirm.refuse_unless(False, home, cells[:1])
    confirm.refuse_unless(True, home, cells)
    with pytest.raises(InputError, match=r"this would take at most 1,000,002 rounds"):
        confirm.refuse_unless(False, home, cells, at_most=True)
    begun = {run_id(cells[0])}
    monkeypatch.setattr(confirm, "read_meta", lambda path: {"state": "KILLED"} if path.parent.name in begun else {})
    assert confirm.not_begun(home, [*cells, cells[1]]) == cells[1:]


def test_the_time_is_that_of_the_newest_run_of_this_kind(monkeypatch, tmp_path):
    config = ExperimentConfig.model_validate(BASE)

    class Record:
        def __init__(self, run, seconds, **changes):
            self.run, self.config = run, config.model_copy(update=changes)
            self.result = None if seconds is None else made_result(seconds=seconds, rounds=100)

    other = config.model_copy(update={"privacy": config.privacy.model_copy(update={"ledger": "sqlite"})})
    records = [Record("old", 9.0), Record("new", 0.5), Record("begun", None), Record("other", 7.0)]
    records[-1].config = other
    monkeypatch.setattr(confirm, "all_runs", lambda home: (records, []))
    # 5 ms a round: 5 million seconds.
    assert confirm.large(Home(tmp_path), [config]).endswith("about 57.9 days at the 5 ms a round of new")
    texts = ["1.5 minutes", "2 hours", "3 days", "31.7 years"]
    assert [confirm._long(each) for each in (90, 7200, 3 * 86400, 1e9)] == texts


def test_from_python_too():
    silos, huge = {"a": ([[0.1], [0.2], [0.3]] * 2, [0, 1, 0] * 2)}, {"name": "mbsgd", "rounds": BILLION}
    with pytest.raises(InputError, match=r"this would take 1,000,000,000 rounds.* give yes=True to begin"):
        fedcore.train(silos, epsilon=1, algorithm=huge)
    assert fedcore.plan(silos, epsilon=1, algorithm=huge).rounds == BILLION


def test_yes_is_passed_on(monkeypatch, tmp_path):
    confirmed = []
    monkeypatch.setattr(launch, "refuse_unless", lambda yes, *_: confirmed.append(yes))
    for name in ("check", "check_all"):
        monkeypatch.setattr(launch, name, lambda *_: (_ for _ in ()).throw(InputError("as far as this")))
    monkeypatch.setenv("FEDCORE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path)
    for arguments in (["run", path], ["run", path, "--yes"], ["sweep", path, "seed=0,1", "--yes"]):
        assert isinstance(CliRunner().invoke(app, arguments).exception, InputError)
    assert confirmed == [False, True, True]


def test_resume_does_not_ask(monkeypatch, tmp_path):
    confirmed = []
    monkeypatch.setattr(launch, "launch_run", lambda *_, yes: confirmed.append(yes))
    monkeypatch.setattr(runs, "find", lambda *_: ("run", "run"))
    monkeypatch.setattr(runs, "read_run", lambda *_: SimpleNamespace(config=None, sweep=None, result=None))
    monkeypatch.setattr("flows.recorded.former_ids.refuse_former", lambda _: None)
    monkeypatch.setattr(run, "show_run", lambda *_: None)
    monkeypatch.setattr(run, "warn", lambda *_: None)
    assert CliRunner().invoke(app, ["resume", "run"]).exit_code == 0
    assert confirmed == [True]
