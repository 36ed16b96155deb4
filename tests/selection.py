"""Selection of a test's cases: for every `make test`, for `make slow` (and so CI), and for `make hours` only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def some_in_make_test(cases: Iterable[Any], chosen: Iterable[Any], slow: Iterable[Any] | None = None) -> list:
    """Parameters for all cases: those that are not chosen are marked `minutes`. Tuples are several parameters.

    `slow`: the only ones that `make slow` runs; the others are marked `hours`, too. None: all. Raises ValueError for a
    choice of what is no case.
    """
    cases, chosen = list(cases), list(chosen)
    slow = cases if slow is None else list(slow)
    if unknown := {*chosen, *slow} - set(cases):
        raise ValueError(f"no such case: {unknown}")
    several = all(isinstance(case, tuple) for case in cases)

    def marks(case: Any) -> list:
        beyond = [] if case in slow else [pytest.mark.hours]
        return [] if case in chosen else [pytest.mark.minutes, *beyond]

    return [pytest.param(*(case if several else (case,)), marks=marks(case)) for case in cases]
