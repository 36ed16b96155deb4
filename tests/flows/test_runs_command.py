"""`fedcore runs`: listed runs, their times, and unbroken rows on a narrow terminal."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from typer.testing import CliRunner

from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.identity import SCHEMA, run_id
from fedcore.home import Home
from flows.commands import runs as command
from flows.commands.app import app
from flows.runs import store_path
from tasks.run_store import RunStore
from tests.flows.results import made_result

BEGAN = datetime(2026, 11, 25, 12, 0, tzinfo=UTC)


def put(home: Home, at: int, state: str = "FINISHED", sweep: str | None = None, message: str = "", **keys: Any) -> str:
    """Writes a run as its driver leaves it, begun `at` hours after noon."""
    values = {"name": "hospital-study", "privacy": {"epsilon": 2}, "algorithm": {"name": "mbsgd"}} | keys
    config = ExperimentConfig.model_validate(values)
    run = run_id(config)
    store_path(home, run).parent.mkdir(parents=True)
    store = RunStore(store_path(home, run))
    began = (BEGAN + timedelta(hours=at)).isoformat()
    store.set_meta(
        parameters=config.model_dump_json(),
        schema=SCHEMA,
        state=state,
        rounds=4,
        began=began,
        sweep=sweep,
        message=message,
    )
    if state == "FINISHED":
        store.set_meta(result=made_result(run=run, seconds=61.5 * (at + 1)).model_dump_json())
    store.close()
    return run


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCORE_HOME", str(tmp_path))
    monkeypatch.setenv("TZ", "UTC")
    return Home(tmp_path).make()


@pytest.fixture
def three(home):
    """Three runs, of which the second one was started first."""
    return [
        put(home, 2),
        put(home, 1, seed=1, sweep="study-0123456789ab", data={"source": "synthetic"}),
        put(home, 3, "FAILED", message="silo x: it could not answer", algorithm={"name": "fedsgd"}),
    ]


def listed(*words: str) -> str:
    done = CliRunner().invoke(app, ["runs", *words])
    assert done.exit_code == 0, done.output
    return done.output


def runs_of(*words: str) -> list[str]:
    return [each["run"] for each in json.loads(listed(*words, "--json"))]


def test_the_newest_is_last_with_its_start_and_duration(three):
    first, second, third = three
    assert runs_of() == [second, first, third]
    listed_runs = {each["run"]: each for each in json.loads(listed("--json"))}
    assert listed_runs[first]["began"] == "2026-11-25T14:00:00+00:00" and listed_runs[first]["seconds"] == 61.5 * 3
    assert (listed_runs[second]["data"], listed_runs[second]["sweep"]) == ("synthetic", "study-0123456789ab")
    assert listed_runs[third]["method"] == "fedsgd"
    assert listed_runs[third]["seconds"] is None and listed_runs[third]["message"] == "silo x: it could not answer"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("--state", "failed"), [2]),
        (("--state", "FINISHED"), [1, 0]),
        (("--state", "Failed"), [2]),
        (("--method", "fedsgd"), [2]),
        (("--data", "synthetic"), [1]),
        (("--sweep", "study"), [1]),
        (("--last", "2"), [0, 2]),
        (("hospital",), [1, 0, 2]),
        (("other",), []),
        (("--data", "digits", "--last", "1"), [2]),
    ],
)
def test_filters(three, words, shown):
    assert runs_of(*words) == [three[index] for index in shown]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_no_row_is_broken_and_no_error_is_cut(three, monkeypatch, width):
    monkeypatch.setattr(command.console, "_width", width)
    lines = listed().splitlines()
    rows = [line for line in lines if line.startswith(" hospital-study")]
    assert [row.split()[0] for row in rows] == [three[1], three[0], three[2]]
    assert all("0.25" in row for row in rows[:2]) and max(map(len, rows)) <= width
    assert f"{three[2]}: silo x: it could not answer" in " ".join(lines)


def test_a_run_without_a_date_of_its_own_has_that_of_its_folder(home):
    run = put(home, 0)
    store = RunStore(store_path(home, run))
    store.set_meta(began=None)
    store.close()
    (listed_runs,) = json.loads(listed("--json"))
    assert abs(datetime.fromisoformat(listed_runs["began"]) - datetime.now(UTC)) < timedelta(hours=1)


def test_an_unknown_state_is_refused(home):
    from fedcore.errors import InputError

    done = CliRunner().invoke(app, ["runs", "--state", "gone"])
    assert isinstance(done.exception, InputError) and "--state gone must be one of RUNNING" in str(done.exception)


def test_nothing_found_is_not_nothing_there(home):
    assert "no runs yet" in listed()
    put(home, 0)
    assert "no such run" in listed("--method", "fedsgd")


@pytest.mark.parametrize("count, sentence", [(1, "1 run of an older schema"), (2, "2 runs of an older schema")])
def test_runs_of_an_older_schema_are_counted_in_words_that_fit(home, count, sentence):
    for seed in range(count):
        run = put(home, 1, seed=seed)
        store = RunStore(store_path(home, run))
        store.set_meta(schema=1)
        store.close()
    assert sentence in listed()
