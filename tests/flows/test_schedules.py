"""Schedules: repetitions, charges and skipped firings by hand, and texts of the command line."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from uuid import uuid4

import pytest
from scipy.optimize import brentq
from scipy.stats import norm
from typer.testing import CliRunner

from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.sweep import SweepConfig
from flows.commands.app import app
from flows.schedules.adds import capped_firings, firing_adds
from flows.schedules.firing import Firing, next_repetition
from flows.schedules.overdue import passed_over
from flows.schedules.schedule import When

NOW = datetime.now(UTC)


def config(**keys) -> ExperimentConfig:
    """Config of two silos of 100 records each, so delta is 1e-4."""
    data = {"source": "synthetic", "silos": 2, "records": 100, "features": 3}
    algorithm = {"name": "mbsgd", "step": 1, "rounds": 5}
    return ExperimentConfig.model_validate({"privacy": {"epsilon": 1}, "data": data, "algorithm": algorithm} | keys)


def delta_of(mu: float, epsilon: float) -> float:
    """delta of mu-Gaussian DP at an epsilon: Balle and Wang 2018, Theorem 5."""
    return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


def mu_for(epsilon: float, delta: float) -> float:
    return brentq(lambda mu: delta_of(mu, epsilon) - delta, 1e-3, 50)


def epsilon_for(mu: float, delta: float) -> float:
    return brentq(lambda epsilon: delta_of(mu, epsilon) - delta, 0, 200)


@pytest.mark.parametrize("finished", [0, 1, 2, 3, 7, 8, 365])
@pytest.mark.parametrize("first", [0, 5])
def test_the_next_repetition_is_the_first_that_is_not_finished(finished, first):
    asked = []

    def done(repetition: int) -> bool:
        asked.append(repetition)
        return repetition < first + finished

    assert next_repetition(first, done) == first + finished
    assert len(asked) <= 2 * math.log2(finished + 2) + 2, "a schedule that has fired for years starts in time"


def test_a_firing_adds_what_composition_of_gaussians_adds():
    (repeated, simulated) = firing_adds([config()], repeats=True)
    ten = epsilon_for(math.sqrt(10) * mu_for(1, 1e-4), 1e-4)
    assert "adds epsilon 1 at delta 0.0001 " in repeated and "the largest of 2" in repeated
    (shown,) = [float(word.strip("().,")) for word in repeated.split("ten firings: ")[1:]]
    assert ten <= shown <= ten * 1.001
    assert "simulation" in simulated
    both = firing_adds([config(), config(privacy={"epsilon": 2})], repeats=True)[0]
    added = epsilon_for(math.hypot(mu_for(1, 1e-4), mu_for(2, 1e-4)), 1e-4)
    shown = float(both.partition("adds epsilon ")[2].split()[0])
    assert added <= shown <= added * 1.001 and "2 runs" in both
    bare = firing_adds([config(privacy={"trust": "none"})], repeats=True)[0]
    assert "NO PRIVACY" in bare


@pytest.mark.parametrize("cap", [0.5, 1, 3.7, 4, 20])
def test_a_cap_takes_as_many_firings_as_fit_below_it(cap):
    private = {"epsilon": 1, "ledger": "sqlite", "cap": {"epsilon": cap, "delta": 1e-4}}
    fits = 0
    while epsilon_for(math.sqrt(fits + 1) * mu_for(1, 1e-4), 1e-4) <= cap * (1 + 1e-9):
        fits += 1
    assert capped_firings([config(privacy=private)]) == fits
    assert any(f"take {fits} firing" in said for said in firing_adds([config(privacy=private)], repeats=True))
    assert "paused once" in firing_adds([config(privacy=private)], repeats=False)[1]


def test_a_sweep_is_repeated_as_a_whole_or_not_at_all():
    base = {"privacy": {"epsilon": 1}, "algorithm": {"name": "mbsgd"}, "orchestration": {"scheduled": "repetition"}}
    sweep = SweepConfig(name="x", base=base, grid={"seed": [0, 1]})
    assert sweep.repeats
    assert [cell.repetition for cell in sweep.repeated(3).cells()] == [3, 3]
    with pytest.raises(InputError, match="leave one out"):
        SweepConfig(name="x", base=base, grid={"repetition": [0, 1]}).repeated(1)
    mixed = SweepConfig(name="x", base=base, grid={"orchestration.scheduled": ["unfinished", "repetition"]})
    # Both configs have one run: `orchestration.scheduled` is not part of its id.
    with pytest.raises(InputError, match="same in all cells"):
        _ = mixed.repeats


def fired(schedule, seconds: float, run_count: int = 0) -> SimpleNamespace:
    """A flow run of a schedule, or of a person (None), due in some seconds from now."""
    maker = SimpleNamespace(id=schedule)
    due = NOW + timedelta(seconds=seconds)
    return SimpleNamespace(
        id=uuid4(), created_by=maker, auto_scheduled=schedule is not None, expected_start_time=due, run_count=run_count
    )


def test_of_firings_that_are_due_the_last_one_is_carried_out():
    mine, another = uuid4(), uuid4()
    late, last, ahead, other, asked, retried = (
        fired(mine, -300),
        fired(mine, -1),
        fired(mine, 9),
        fired(another, -500),
        fired(None, -400),
        fired(mine, -900, run_count=1),
    )
    over, early = passed_over([ahead, last, retried, other, asked, late], [], NOW)
    assert list(over) == [late.id] and over[late.id].startswith("missed") and f"{NOW:%F}" in over[late.id]
    assert early == {ahead.id}


def test_firings_that_come_faster_than_their_runs_end_start_no_process():
    """On a slow machine, processes that find nothing to run would take all of the time."""
    mine, another = uuid4(), uuid4()
    going, due, next_one, other = fired(mine, -40, run_count=1), fired(mine, -2), fired(mine, 8), fired(another, 8)
    over, early = passed_over([due, next_one, other], [going, fired(None, -9)], NOW)
    assert list(over) == [due.id] and over[due.id].startswith("skipped")
    assert early == {next_one.id}
    going.expected_start_time = None  # Prefect's servers may leave it out
    assert passed_over([due], [going], NOW)[0][due.id].startswith("skipped")
    assert passed_over([next_one, other], [], NOW) == ({}, set()), "a process is started before its firing is due"
    second = fired(mine, 9)
    assert passed_over([second, next_one], [], NOW) == ({}, {second.id}), "one at a time"


def firing(tags: list[str]) -> Firing:
    schedule = uuid4()
    flow_run = SimpleNamespace(id=uuid4(), created_by=SimpleNamespace(id=schedule), tags=tags, run_count=1)
    return Firing(SimpleNamespace(), flow_run, schedule)


def test_a_retry_keeps_the_repetition_of_its_firing():
    first = firing([])
    assert first.repetition(0, lambda count: count < 4) == 4
    assert "repetition:4" in first.tags
    retried = firing(first.tags)
    assert retried.repetition(0, lambda count: count < 9) == 4


@pytest.mark.parametrize("said", ["-3", "1e3", "²", "9" * 40, ""])
def test_a_repetition_that_no_firing_has_written_is_not_taken_from_a_tag(said):
    retried = firing([f"repetition:{said}"])
    assert retried.repetition(0, lambda count: count < 2) == 2


@pytest.mark.parametrize(
    ("cron", "every", "zone", "sentence"),
    [
        (None, None, "UTC", "give a time"),
        ("0 3 * * *", "6h", "UTC", "give a time"),
        ("0 3 * *", None, "UTC", "--cron '0 3 * *'"),
        ("0 3 31 2 *", None, "UTC", "--cron '0 3 31 2 *' never comes"),
        ("0 3 31 4,6,9,11 *", None, "UTC", "--cron '0 3 31 4,6,9,11 *' never comes"),
        ("61 3 * * *", None, "UTC", "--cron '61 3 * * *'"),
        ("0 3 * * *", None, "Europe/Bern", "--timezone 'Europe/Bern'"),
        (None, "6", "UTC", "--every '6'"),
        (None, "-1h", "UTC", "--every '-1h'"),
        (None, "1s", "UTC", "at least 10 s"),
    ],
)
def test_a_wrong_time_is_a_sentence(cron, every, zone, sentence):
    with pytest.raises(InputError, match=r"^.+$") as raised:
        When.of(cron, every, zone)
    assert sentence in str(raised.value)


def test_times_are_those_of_the_clock_in_the_zone():
    after = datetime(2026, 3, 28, 12, tzinfo=UTC)  # the night after it, Berlin's clocks go forward
    dates = When.of("30 4 * * *", None, "Europe/Berlin").dates(2, after)
    assert [date.astimezone(UTC).hour for date in dates] == [2, 2]
    assert [date.day for date in dates] == [29, 30]
    assert When.of(None, "90m", "UTC").interval == timedelta(minutes=90)
    first, second = When.of(None, "2d", "UTC").dates(2)
    assert second - first == timedelta(days=2)


@pytest.mark.parametrize("words", [["list"], ["pause", "x"], ["add", "CONFIG", "--every", "1h"]])
def test_without_up_there_is_a_sentence(words, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCORE_HOME", str(tmp_path / "home"))
    written = tmp_path / "mine.yaml"
    written.write_text("privacy: {epsilon: 1}\nalgorithm: {name: mbsgd}\n")
    done = CliRunner().invoke(app, ["schedule", *(str(written) if word == "CONFIG" else word for word in words)])
    assert isinstance(done.exception, InputError) and "`fedcore up`" in str(done.exception)
