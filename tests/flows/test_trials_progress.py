"""Progress of `tune`: lines in a file, the first at once, and a notice at Ctrl-C that no result is stored."""

from __future__ import annotations

import io

import pytest

from flows.commands import app
from flows.terminal.console import Terminal
from flows.terminal.trials_progress import TrialsProgress


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def shown_lines(console: Terminal | None, clock: Clock) -> tuple[TrialsProgress, io.StringIO]:
    lines = io.StringIO()
    return TrialsProgress(console, clock, Terminal(file=lines, width=200)), lines


def test_a_file_gets_a_line_for_the_first_point_and_then_once_a_minute():
    clock = Clock()
    with shown_lines(Terminal(file=io.StringIO()), clock)[0] as progress:
        lines = progress._lines.file
        for done in range(20, 201, 20):  # a point in 25 seconds
            clock.now += 25.0
            progress.after(done, 200)
    printed = lines.getvalue().splitlines()
    assert printed == [
        "20 of at most 200 simulated trainings after 0:00:25, at most about 0:03:45 left",
        "80 of at most 200 simulated trainings after 0:01:40, at most about 0:02:30 left",
        "140 of at most 200 simulated trainings after 0:02:55, at most about 0:01:15 left",
        "200 of at most 200 simulated trainings after 0:04:10, at most about 0:00:00 left",
    ]


def test_json_has_no_progress():
    progress, lines = shown_lines(None, Clock())
    with progress:
        progress.after(1, 2)
    assert lines.getvalue() == ""


def test_a_terminal_shows_a_bar_and_no_lines():
    shown = io.StringIO()
    progress, lines = shown_lines(Terminal(file=shown, force_terminal=True, width=120), Clock())
    with progress:
        progress.after(30, 40)
        progress._bar.refresh()
    assert "30/40" in shown.getvalue() and lines.getvalue() == ""


def test_ctrl_c_prints_the_loss_and_no_resume(monkeypatch, capsys):
    progress, lines = shown_lines(Terminal(file=io.StringIO()), Clock())
    with pytest.raises(KeyboardInterrupt), progress:
        progress.after(3, 40)
        raise KeyboardInterrupt
    assert lines.getvalue().splitlines()[-1] == (
        "3 of at most 40 simulated trainings were done, and no result is stored: `tune` begins anew"
    )
    for loaded, notice in ((False, "stopped\n"), (True, "stopped; `fedcore runs` lists what can be resumed\n")):
        modules = {name: each for name, each in app.sys.modules.items() if name != "flows.training"}
        monkeypatch.setattr(app.sys, "modules", modules | ({"flows.training": object()} if loaded else {}))
        monkeypatch.setattr(app, "_carried_out", lambda *_: app.STOPPED)
        with pytest.raises(SystemExit) as end:
            app.main()
        assert end.value.code == 130 and capsys.readouterr().err == notice
