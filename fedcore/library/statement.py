"""Summaries of a training: its `repr`, one line of text, and HTML for a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from fedcore.directed_rounding import shown_up
from fedcore.silo.account import SiloAccount

if TYPE_CHECKING:
    import pandas as pd

MOST_SILOS = 20
"""Silos in a notebook's table of accounts; all are in `accounts`."""
MOST_ROUNDS = 5
"""Last rounds in a notebook's table; all are in `rounds`."""


@dataclass(frozen=True, eq=False)
class Statement:
    """The shown facts of a training, by the names of `Trained`; `unit`: records or persons."""

    method: str
    unit: str
    rounds: int
    epsilon: float | None
    delta: float
    measures: Mapping[str, Any]
    shortfall: str | None
    accounts: Sequence[SiloAccount]
    table: pd.DataFrame
    noise: str

    def as_call(self) -> str:
        """The `repr` of a training: method, epsilon, delta, error."""
        parts = [repr(self.method), f"epsilon={None if self.epsilon is None else shown_up(self.epsilon)}"]
        if self.epsilon is not None:
            parts.append(f"delta={shown_up(self.delta, 3)}")
        for name in ("test_error", "test_rmse"):
            if (value := self.measures.get(name)) is not None:
                parts.append(f"{name}={value:.4g}")
        return f"Trained({', '.join(parts)})"

    def in_words(self) -> str:
        """One line: method, silos, error, accounted epsilon, rounds, and the kind of noise."""
        level = "no privacy"
        if self.epsilon is not None:
            level = f"accounted epsilon {shown_up(self.epsilon)} at delta {shown_up(self.delta, 3)}"
        return f"{self.method} on {len(self.accounts)} silos: {self._error}{level}, {self.rounds} rounds; {self.noise}"

    def in_html(self) -> str:
        """The same as HTML, with silos' accounts and the last rounds; every text is escaped."""
        summary = "<br>".join(map(escape, filter(None, [self.in_words(), self._warning])))
        accounts = _table(
            ("silo", self.unit, "releases", "epsilon", "delta"),
            map(self._account, self.accounts[:MOST_SILOS]),
            len(self.accounts) - MOST_SILOS,
        )
        last = self.table.tail(MOST_ROUNDS)
        rows = [(str(index), *(_cell(name, row[name]) for name in last.columns)) for index, row in last.iterrows()]
        table = _table(("round", *map(str, last.columns)), rows, 0)
        return f"<div><p>{summary}</p>{accounts}<p>the last {len(last)} of {len(self.table)} rounds</p>{table}</div>"

    @property
    def _error(self) -> str:
        if "test_error" in self.measures:
            return f"test error {self.measures['test_error']:.3f}, "
        return f"test RMSE {self.measures['test_rmse']:.4g}, " if "test_rmse" in self.measures else ""

    @property
    def _warning(self) -> str | None:
        if not self.measures:
            return "No test records: the error of this model is unknown."
        return None if self.shortfall is None else f"The model is {self.shortfall}."

    def _account(self, account: SiloAccount) -> tuple[str, ...]:
        spent = shown_up(None if self.epsilon is None else account.epsilon)
        return account.silo, str(account.n), str(account.releases), spent, shown_up(account.delta, 3)


def _cell(name: str, value: float) -> str:
    if value != value:
        return "-"
    return shown_up(value) if name == "epsilon" else f"{value:.4g}" if name.startswith("test") else f"{value:.0f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], more: int) -> str:
    cells = "".join(f"<tr>{''.join(f'<td>{escape(each)}</td>' for each in row)}</tr>" for row in rows)
    rest = f"<tr><td colspan={len(head)}>and {more} more</td></tr>" if more > 0 else ""
    top = "".join(f"<th>{escape(each)}</th>" for each in head)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{cells}{rest}</tbody></table>"
