"""A hostile name on its way to a terminal, a table, a CSV file and a plot."""

from __future__ import annotations

import csv
import io

import pytest
from matplotlib.figure import Figure

from fedcore.printable import in_drawing
from flows.reports.table import markdown_table
from flows.terminal.console import Terminal

HOSTILE = "[bold red]\x1b]0;owned\x07\u202eabc <script>"


def printed(*what: object) -> str:
    out = io.StringIO()
    terminal = Terminal(file=out, width=200, force_terminal=True, highlight=False)
    for each in what:
        terminal.print(each)
    return out.getvalue()


def test_a_terminal_shows_markup_and_orders_as_text():
    shown = printed(HOSTILE)
    assert "[bold red]" in shown and "\\x1b]0;owned" in shown and "\\u202eabc" in shown and "\x1b" not in shown


def test_styles_of_our_own_reach_the_terminal():
    out = io.StringIO()
    Terminal(file=out, force_terminal=True, color_system="standard").print("a", style="red")
    assert "\x1b[31ma" in out.getvalue()


def test_a_table_on_the_terminal_shows_them_as_text():
    from flows.reports.table import plain_table

    table = plain_table(HOSTILE)
    table.add_column(HOSTILE)
    table.add_row(HOSTILE)
    shown = printed(table)
    assert "\x1b]" not in shown and "\x07" not in shown and "\u202e" not in shown and shown.count("[bold red]") == 3


def test_a_table_of_markdown_has_no_markup_of_a_name():
    text = markdown_table({"a|b": ["<img src=x>"], "[x](y)": ["`c`\n\n# head"]})
    assert "<img" not in text and r"\[x\](y)" in text and text.count("\n") == 3


def test_cells_of_the_report_are_no_formulas():
    from flows.reports.table import _as_csv

    rows = list(csv.reader(_as_csv([], {"run": {"=cmd": 1, "plain": 2}}).decode().splitlines()))
    assert "'=cmd" in rows[0] and "plain" in rows[0]


@pytest.mark.parametrize("label", ["$x", "$\\frac{$", "a$b$c"])
def test_a_plot_takes_no_formula_from_a_name(label):
    figure = Figure()
    axes = figure.add_subplot()
    axes.plot([0, 1], label=in_drawing(label))
    axes.legend()
    figure.savefig(io.BytesIO())
