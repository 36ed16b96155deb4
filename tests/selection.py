"""Which cases of a test every `make test` runs; `make slow`, and so CI, runs the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def some_in_make_test(cases: Iterable[Any], chosen: Iterable[Any]) -> list:
    """Parameters for all cases: those that are not chosen are marked `minutes`. Tuples are several parameters.

    Raises ValueError for a choice of what is no case.
    """
    cases, chosen = list(cases), list(chosen)
    if unknown := set(chosen) - set(cases):
        raise ValueError(f"no such case: {unknown}")
    several = all(isinstance(case, tuple) for case in cases)
    return [
        pytest.param(*(case if several else (case,)), marks=() if case in chosen else pytest.mark.minutes)
        for case in cases
    ]
