"""Which cases of a test every `make test` runs; `make slow`, and so CI, runs the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def some_in_make_test(cases: Iterable[Any], chosen: Collection[Any]) -> list:
    """Parameters for all cases: those that are not chosen are marked `minutes`. ValueError for a choice of nothing."""
    cases = list(cases)
    if unknown := set(chosen) - set(cases):
        raise ValueError(f"no such case: {unknown}")
    return [case if case in chosen else pytest.param(case, marks=pytest.mark.minutes) for case in cases]
