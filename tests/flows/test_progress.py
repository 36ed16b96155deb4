"""Progress of long commands: bars on a terminal, a line a minute elsewhere, earlier rounds counted."""

import io
from contextlib import closing

import numpy as np
import pytest
from rich.console import Console

from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.identity import run_id
from fedcore.home import Home
from fedcore.optim.sgd import SgdState
from flows.runs import store_path
from flows.terminal.progress import RunsProgress
from tasks.run_store import MetricRow, RunStore


def cells(count: int) -> list[ExperimentConfig]:
    """Runs of 10 rounds."""
    base = {"privacy": {"epsilon": 1}, "algorithm": {"name": "mbsgd", "rounds": 10}}
    return [ExperimentConfig.model_validate(base | {"seed": seed}) for seed in range(count)]


def finish_rounds(home: Home, cell: ExperimentConfig, first: int, last: int) -> None:
    with closing(RunStore(store_path(home, run_id(cell)))) as store:
        for at in range(first, last + 1):
            store.save(SgdState.start(np.zeros(1)), None, MetricRow(1, at, {}), [], None)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_file_gets_a_line_a_minute_with_the_time_that_is_left(tmp_path, clock):
    """By hand: 10 of 30 rounds are done at the start. Silos are open after 5 s, then 4 rounds take 56 s, so the 16 left
    take 224 s."""
    home, (first, second, third), text = Home(tmp_path), cells(3), io.StringIO()
    finish_rounds(home, first, 1, 10)
    result, lines = Console(file=io.StringIO()), Console(file=text, width=40)
    with RunsProgress(result, home, [first, second, third], clock, lines) as progress:
        progress.show_note("starting the Prefect server")
        clock.now += 5
        progress.took(run_id(second), 0, 10)
        for done in (1, 2, 3):
            clock.now += 17
            progress.took(run_id(second), done, 10)
        assert text.getvalue() == ""
        clock.now += 5
        progress.took(run_id(second), 4, 10)
        for done in range(5, 11):
            clock.now += 9.5
            progress.took(run_id(second), done, 10)
        progress.took(run_id(third), 0, 10)
        assert text.getvalue() == "1 of 3 runs, 14 of 30 rounds after 0:01:01, about 0:03:44 left\n"
        clock.now += 3
        progress.took(run_id(third), 1, 10)
    # 11 rounds in 116 s, 9 are left: 95 s.
    assert text.getvalue().splitlines()[1:] == ["2 of 3 runs, 21 of 30 rounds after 0:02:01, about 0:01:35 left"]
    assert result.file.getvalue() == ""


def test_a_sweep_that_may_end_early_shows_upper_bounds(tmp_path, clock):
    home, (first, second), text = Home(tmp_path), cells(2), io.StringIO()
    lines = Console(file=text, width=40)
    with RunsProgress(Console(file=io.StringIO()), home, [first, second], clock, lines, at_most=True) as progress:
        progress.took(run_id(first), 0, 10)
        for done in (1, 2, 3, 4, 5):
            clock.now += 12
            progress.took(run_id(first), done, 10)
    assert text.getvalue() == "0 of at most 2 runs, 5 of at most 20 rounds after 0:01:00, at most 0:03:00 left\n"
    bars = Console(file=text, force_terminal=True, width=120)
    with RunsProgress(bars, home, [first, second], clock, at_most=True) as progress:
        progress.took(run_id(first), 6, 10)
    assert "runs, at most" in text.getvalue() and "rounds, at most" in text.getvalue()


def test_a_terminal_gets_bars_and_a_command_without_console_nothing(tmp_path, clock, capfd):
    home, (first, second), text = Home(tmp_path), cells(2), io.StringIO()
    finish_rounds(home, first, 1, 10)
    with RunsProgress(Console(file=text, force_terminal=True, width=120), home, [first, second], clock) as progress:
        clock.now += 1000
        progress.took(run_id(second), 3, 10)
    shown = text.getvalue()
    assert "1/2" in shown and "13/20" in shown and run_id(second) in shown and "rounds after" not in shown
    with RunsProgress(None, home, [first, second], clock) as progress:
        progress.show_note("starting")
        progress.took(run_id(second), 4, 10)
    assert capfd.readouterr() == ("", "")


def test_what_was_done_before_is_no_time_of_the_rounds_that_are_left(tmp_path, clock):
    """By hand: a run is resumed at 6 of 10 rounds after 50 s of opening silos, then a round takes 10 s.

    The progress had read 2 rounds, since the run's last driver worked on meanwhile.
    """
    home, (first, second), text = Home(tmp_path), cells(2), io.StringIO()
    finish_rounds(home, first, 1, 2)
    lines, terminal = Console(file=text, width=40), Console(file=io.StringIO(), force_terminal=True, width=120)
    with (
        RunsProgress(Console(file=io.StringIO()), home, [first, second], clock, lines) as progress,
        RunsProgress(terminal, home, [first, second], clock) as bars,
    ):
        clock.now += 50
        for each in (progress, bars):
            each.took(run_id(first), 6, 10)
        clock.now += 10
        for each in (progress, bars):
            each.took(run_id(first), 7, 10)
        clock.now += 10
        for each in (progress, bars):
            each.took(run_id(first), 8, 10)
        assert bars._bars.tasks[1].completed == 8
        assert bars._bars.tasks[1].time_remaining == 120
    # At 60 s: one round in 10 s, and 13 are left.
    assert text.getvalue() == "0 of 2 runs, 7 of 20 rounds after 0:01:00, about 0:02:10 left\n"
