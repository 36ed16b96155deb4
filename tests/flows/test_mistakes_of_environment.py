"""Mistakes in the environment of a run: home, disk, ids, policies, services. Each gives a sentence, changes no file."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flows.mistakes import HEADER, ROWS, SMALL, check_mistake, instead

POLICY = "methods: [mbsgd]\nlosses: [logistic]\ncap: {epsilon: 8}\nruns: 20\nexpires: 2030-12-31\n"
AT_TIMES = ["schedule", "add", "small.yaml", "--every", "1h"]

COMMANDS = [
    (["report", "nothing"], ["'nothing'", "fedcore runs"]),
    (["resume", "nothing"], ["'nothing'", "fedcore runs"]),
    (["retry", "nothing"], ["'nothing'", "fedcore runs"]),
    (["report", "small"], ["2 ids", "small-0123456789ab", "small-ba9876543210"]),
    (["runs", "--state", "DONE"], ["--state DONE", "FINISHED"]),
    (["budget", "show", "ash"], ["'ash'", "privacy.ledger = sqlite"]),
    (["budget", "close", "nothing"], ["ledger", "privacy.ledger = sqlite"]),
    (["policy", "check", "nowhere.yaml"], ["no policy nowhere.yaml", "conf/policy/hospital.yaml"]),
    (["schedule", "list"], ["fedcore up", "not up"]),
    ([*AT_TIMES[:3]], ["--cron", "--every"]),
    (AT_TIMES, ["fedcore up", "not up"]),
    (
        ["run", "small.yaml", "cluster={backend: dask, address: 'tcp://127.0.0.1:9', insecure: true, deadline: 1}"],
        ["cluster.address = tcp://127.0.0.1:9", "within 1 s", "fedcore up"],
    ),
    (
        [
            "run",
            "small.yaml",
            "privacy={trust: shuffler, epsilon: 2, ledger: sqlite}",
            "shuffler={address: 'http://127.0.0.1:9', minimum: 2}",
        ],
        ["shuffler.address = http://127.0.0.1:9", "fedcore shuffler"],
    ),
    (
        ["run", "small.yaml", "privacy.noise=guarded", "privacy.ledger=sqlite"],
        ["silo silo-000", "no policy", "silo-000.yaml", "conf/policy/hospital.yaml"],
    ),
    (
        ["run", "small.yaml", "data={source: mnist, folder: nowhere}"],
        ["data.folder = ", "/nowhere: ", "train-images-idx3-ubyte", "nothing is downloaded"],
    ),
    (["init", "nowhere"], ["no folder nowhere"]),
    (["init", "files", "--label", "sick"], ["no column 'sick'", "'age', 'dose', 'ill'", "--label"]),
    (["init", "files", "--output", "nowhere/own.yaml"], ["--output nowhere/own.yaml", "cannot be written"]),
    (["tune", "small.yaml", "--output", "nowhere/tuned.yaml"], ["--output nowhere/tuned.yaml", "cannot be written"]),
]

POLICIES = [
    ("[mbsgd]", "[mbgsd]", ["methods", "'mbgsd'", "did you mean mbsgd?"]),
    ("{epsilon: 8}", "8", ["cap = 8", "section"]),
    ("2030-12-31", "tomorrow", ["expires = 'tomorrow'", "2027-01-31"]),
    ("runs: 20\n", "", ["runs is missing"]),
]

NEED_A_FOLDER = [
    ["run", "small.yaml"],
    ["sweep", "small.yaml", "seed=0,1"],
    ["runs"],
    ["report", "small"],
    ["resume", "small"],
    ["budget", "show"],
    ["up"],
    ["down"],
]
WRITE = [["run", "small.yaml"], ["sweep", "small.yaml", "seed=0,1"], ["up"]]


@pytest.fixture
def call(fedcore, tmp_path, monkeypatch):
    """The command line in a folder with the small experiment, a silo's file and a home full of damaged files."""
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(SMALL)
    Path("files").mkdir()
    Path("files/north.csv").write_text(HEADER + ROWS)
    Path("home").mkdir(mode=0o700)  # a home that others can read would be closed, with a notice
    for name in ("small-0123456789ab", "small-ba9876543210"):
        Path("home/runs", name).mkdir(parents=True)
    return fedcore


@pytest.fixture
def full_disk() -> Iterator[None]:
    """Lets no file of this process grow by a single byte."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize(("arguments", "texts"), COMMANDS, ids=lambda value: " ".join(value)[:50])
def test_what_is_not_there_is_a_sentence(call, arguments, texts):
    check_mistake(call, arguments, *texts)


@pytest.mark.parametrize(("right", "wrong", "texts"), POLICIES)
def test_a_policy_that_is_wrong_is_a_sentence_for_its_operator(call, right, wrong, texts):
    Path("policy.yaml").write_text(instead(POLICY, right, wrong))
    check_mistake(call, ["policy", "check", "policy.yaml"], "policy.yaml", *texts)


def test_a_run_shows_that_a_wrong_policy_cannot_be_read(call, monkeypatch):
    monkeypatch.setenv("FEDCORE_POLICIES", str(Path("policies").absolute()))
    check_mistake(call, ["run", "small.yaml"], "silo silo-000", "fedcore policy show silo-000")  # no such folder
    Path("policies").mkdir()
    Path("policies/default.yaml").write_text(instead(POLICY, "epsilon: 8", "epsilon: -8"))
    sentence = check_mistake(call, ["run", "small.yaml"], "silo silo-000", "fedcore policy show silo-000")
    assert "-8" not in sentence
    check_mistake(call, ["policy", "show", "silo-000"], "default.yaml", "cap.epsilon = -8")


@pytest.mark.parametrize("arguments", NEED_A_FOLDER, ids=" ".join)
def test_a_home_that_is_a_file_is_a_sentence(call, monkeypatch, arguments):
    Path("taken").write_text("")
    for home in ("taken", "taken/home"):
        monkeypatch.setenv("FEDCORE_HOME", home)
        check_mistake(
            call, arguments, f"{Path(home).absolute()}", f"{Path('taken').absolute()} is a file", "FEDCORE_HOME"
        )


@pytest.mark.parametrize("home", ["home", "new/home"])
@pytest.mark.parametrize("arguments", WRITE, ids=" ".join)
def test_a_home_that_cannot_be_written_is_a_sentence(call, monkeypatch, full_disk, arguments, home):
    monkeypatch.setenv("FEDCORE_HOME", home)
    check_mistake(call, arguments, f"run folder {Path(home).absolute()}", "cannot be written", "space", "FEDCORE_HOME")


@pytest.mark.parametrize(
    "arguments", [["conf", "copy", "experiment/digits.yaml", "mine.yaml"], ["init", "files", "--output", "mine.yaml"]]
)
def test_a_file_that_cannot_be_written_whole_is_not_written(call, full_disk, arguments):
    check_mistake(call, arguments, "mine.yaml cannot be written")


def test_a_damaged_checkpoint_is_a_sentence(call):
    _, out, _ = call("plan", "small.yaml", "--json")
    run = Path("home/runs", out.partition('"run": "')[2].partition('"')[0])
    run.mkdir()
    check_mistake(call, ["report", run.name], f"run {run.name}", "no result", "fedcore run CONFIG")
    (run / "checkpoint.sqlite").write_bytes(b"no database" * 500)
    for arguments in (["run", "small.yaml"], ["report", run.name], ["resume", run.name], ["retry", run.name]):
        check_mistake(
            call, arguments, f"run {run.name}", str(run / "checkpoint.sqlite"), "damaged", "fedcore run CONFIG"
        )
    assert f"run {run.name}: its checkpoint is damaged" in call("runs")[1]


@pytest.mark.parametrize("content", [None, "{", '{"schema": 1}'])
def test_a_damaged_sweep_is_a_sentence(call, content):
    folder = Path("home/sweeps/both-0123456789ab")
    folder.mkdir(parents=True)
    if content is not None:
        (folder / "sweep.json").write_text(content)
    for command in ("report", "resume"):
        check_mistake(call, [command, "both"], f"sweep {folder.name}")
