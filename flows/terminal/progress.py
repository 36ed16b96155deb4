"""Progress of a command's runs: bars on a terminal, else a line a minute on standard error."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import make_plan
from fedcore.experiment.identity import run_id
from fedcore.home import Home
from flows.runs import store_path
from flows.terminal.console import Terminal
from tasks.run_file import read_done

EVERY = 60.0
"""Seconds between two lines."""


class RunsProgress:
    """Shows finished runs and rounds out of all of a command, including those of earlier commands.

    `console`: shows bars, if it is a terminal; None: no output at all. `lines`: gets the lines without a terminal;
    None: standard error. `at_most`: some cells may not run. A context manager for the time of the runs.
    """

    def __init__(
        self,
        console: Console | None,
        home: Home,
        cells: Sequence[ExperimentConfig],
        clock: Callable[[], float] = time.monotonic,
        lines: Console | None = None,
        at_most: bool = False,
    ) -> None:
        self._home, self._clock, self._most = home, clock, "at most " * at_most
        shown = () if console is None else cells
        self._planned = {run_id(cell): make_plan(cell).rounds for cell in shown}
        self._done = dict.fromkeys(self._planned, 0)
        self._read()
        self._started, self._new = clock(), 0
        self._rounds_since: float | None = None
        """Time of the first round. Opening silos and reading checkpoints come before and are not repeated."""
        self._next_line = self._started + EVERY
        self._bars: Progress | None = None
        self._lines: Console | None = None
        if console is not None and not console.is_terminal:
            # Output to a file or a pipe is the result only, independent of the time that the command takes.
            self._lines = lines or Terminal(stderr=True)
        elif console is not None:
            self._bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(compact=True),
                TextColumn("{task.fields[note]}"),
                console=console,
                transient=True,
                get_time=clock,
            )
            runs, rounds = len(self._planned), sum(self._planned.values())
            most = ", at most" * at_most
            self._run_bar = self._bars.add_task(f"runs{most}", total=runs, note="", visible=runs > 1)
            self._round_bar = self._bars.add_task(f"rounds{most}", total=rounds, completed=self._completed, note="")

    def __enter__(self) -> RunsProgress:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def show_note(self, note: str | None) -> None:
        """Shows a note beside the bars until the next one, or the next round."""
        if self._bars is not None:
            self._bars.update(self._round_bar, note=note or "")

    def took(self, run: str, done: int, rounds: int) -> None:
        """Records a round of a run: `done` of its `rounds` are complete.

        A number other than one more than before means a resumed run, whose earlier rounds took no time here.
        """
        if self._rounds_since is None:
            self._rounds_since = self._clock()
        is_new, self._done[run] = done == self._done.get(run, 0) + 1, done
        self._new += is_new
        if self._bars is not None and not is_new:
            self._bars.tasks[self._round_bar].completed = self._completed  # rich would count an update as speed
        self._show(run)

    def _read(self) -> None:
        for run, rounds in self._planned.items():
            if self._done[run] < rounds:
                self._done[run] = read_done(store_path(self._home, run))

    def _show(self, run: str) -> None:
        if self._bars is not None:
            self._bars.update(self._run_bar, completed=self._finished)
            self._bars.update(self._round_bar, completed=self._completed, note=run)
        elif self._lines is not None and (now := self._clock()) >= self._next_line:
            self._next_line = now + EVERY
            self._lines.print(self._line(now), highlight=False, soft_wrap=True)

    @property
    def _finished(self) -> int:
        return sum(self._done[run] >= rounds for run, rounds in self._planned.items())

    @property
    def _completed(self) -> int:
        return sum(self._done.values())

    def _line(self, now: float) -> str:
        planned, done, left = sum(self._planned.values()), self._completed, ""
        if self._new and self._rounds_since is not None:
            each = (now - self._rounds_since) / self._new
            left = f", {self._most or 'about '}{clock_text(each * (planned - done))} left"
        runs = f"{self._finished} of {self._most}{len(self._planned)} runs, " if len(self._planned) > 1 else ""
        return f"{runs}{done:,} of {self._most}{planned:,} rounds after {clock_text(now - self._started)}{left}"


def clock_text(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
