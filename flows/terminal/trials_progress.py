"""Progress of `tune`: a bar on a terminal, else lines on standard error, one a minute."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from flows.terminal.console import Terminal
from flows.terminal.progress import EVERY, clock_text


class TrialsProgress:
    """Shows finished trainings on made-up silos. A context manager, which prints at Ctrl-C that no result is stored.

    `console`: shows a bar, if it is a terminal; None: no progress. `lines`: gets the lines without a terminal.
    """

    def __init__(
        self, console: Console | None, clock: Callable[[], float] = time.monotonic, lines: Console | None = None
    ) -> None:
        self._clock, self._began, self._next = clock, clock(), 0.0
        self._done = self._most = 0
        self._silent = console is None
        self._lines = lines or Terminal(stderr=True)
        self._bar: Progress | None = None
        if console is not None and console.is_terminal:
            self._bar = Progress(
                TextColumn("simulated trainings, at most"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(compact=True),
                console=console,
                transient=True,
                get_time=clock,
            )
            self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> TrialsProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            line = f"{self._counted} were done, and no result is stored: `tune` begins anew"
            self._lines.print(line, highlight=False, soft_wrap=True)

    def after(self, done: int, most: int) -> None:
        """Records a tried point of the grid, after `done` trainings of at most `most`."""
        self._done, self._most = done, most
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=most)
        elif not self._silent and (now := self._clock()) >= self._next:
            self._next = now + EVERY
            took = now - self._began
            left = clock_text(took / done * (most - done))
            line = f"{self._counted} after {clock_text(took)}, at most about {left} left"
            self._lines.print(line, highlight=False, soft_wrap=True)

    @property
    def _counted(self) -> str:
        most = f" of at most {self._most:,}" if self._most else ""
        return f"{self._done:,}{most} simulated trainings"
