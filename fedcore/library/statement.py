"""What is said of a training where it is shown: in a line, and in a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from fedcore.directed_rounding import shown_up

if TYPE_CHECKING:
    from fedcore.library.trained import Trained

MOST_SILOS = 20
"""Whose accounts a notebook shows; all are in `accounts`."""
MOST_ROUNDS = 5
"""Whose rows a notebook shows, the last ones; all are in `rounds`."""


def level_of(trained: Trained) -> list[str]:
    """epsilon and delta as arguments are written; both None without privacy."""
    if trained.epsilon is None:
        return ["epsilon=None"]
    return [f"epsilon={shown_up(trained.epsilon)}", f"delta={shown_up(trained.delta, 3)}"]


def in_words(trained: Trained) -> str:
    """One line: method, silos, error, what was spent, rounds, and what its noise is."""
    silos = trained.plan.problem.n_silos
    shown = "".join(f"{each}, " for each in _errors(trained))
    level = "no privacy"
    if trained.epsilon is not None:
        level = f"accounted epsilon {shown_up(trained.epsilon)} at delta {shown_up(trained.delta, 3)}"
    name = trained.config.algorithm.name
    return f"{name} on {silos} silos: {shown}{level}, {trained.plan.rounds} rounds; {trained.noise}"


def in_html(trained: Trained) -> str:
    """The same for a notebook, with each silo's account and the last rounds. Every text in it is escaped."""
    told = "<br>".join(map(escape, filter(None, [in_words(trained), _warned(trained)])))
    unit = trained.plan.problem.unit
    accounts = _table(
        ("silo", unit, "releases", "epsilon", "delta"),
        (
            (each.silo, str(each.n), str(each.releases), _spent(trained, each.epsilon), shown_up(each.delta, 3))
            for each in trained.accounts[:MOST_SILOS]
        ),
        len(trained.accounts) - MOST_SILOS,
    )
    last = trained.rounds.tail(MOST_ROUNDS)
    rows = [(str(index), *(_cell(name, row[name]) for name in last.columns)) for index, row in last.iterrows()]
    table = _table(("round", *map(str, last.columns)), rows, 0)
    return f"<div><p>{told}</p>{accounts}<p>the last {len(last)} of {len(trained.rounds)} rounds</p>{table}</div>"


def _errors(trained: Trained) -> list[str]:
    if trained.test_error is not None:
        return [f"test error {trained.test_error:.3f}"]
    return [f"test RMSE {trained.measures['test_rmse']:.4g}"] if "test_rmse" in trained.measures else []


def _warned(trained: Trained) -> str | None:
    if not trained.measures:
        return "No test records: nobody knows what this model is worth."
    return None if trained.shortfall is None else f"The model is {trained.shortfall}."


def _spent(trained: Trained, epsilon: float) -> str:
    return shown_up(None if trained.epsilon is None else epsilon)


def _cell(name: str, value: float) -> str:
    if value != value:
        return "-"
    return shown_up(value) if name == "epsilon" else f"{value:.4g}" if name.startswith("test") else f"{value:.0f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], more: int) -> str:
    cells = "".join(f"<tr>{''.join(f'<td>{escape(each)}</td>' for each in row)}</tr>" for row in rows)
    rest = f"<tr><td colspan={len(head)}>and {more} more</td></tr>" if more > 0 else ""
    top = "".join(f"<th>{escape(each)}</th>" for each in head)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{cells}{rest}</tbody></table>"
