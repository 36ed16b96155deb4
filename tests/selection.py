"""Which cases of a test every `make test` runs; `make slow`, and so CI, runs the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest


def some_in_make_test(cases: Iterable[str], chosen: Collection[str]) -> list:
    """Parameters for all cases: those that are not chosen are marked `minutes`. ValueError for a choice of nothing."""
    cases = list(cases)
    if unknown := set(chosen) - set(cases):
        raise ValueError(f"no such case: {sorted(unknown)}")
    return [case if case in chosen else pytest.param(case, marks=pytest.mark.minutes) for case in cases]
