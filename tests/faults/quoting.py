"""Gradient code that fails and quotes a record's value: a preload of Dask's workers, for tests only."""

from __future__ import annotations

from typing import Any

CANARY = 7371.4711
CANARY_TEXT = "7371.4711"


def quoting(*_: Any, **__: Any) -> Any:
    """Raises as libraries do that put the offending cell, and what it was raised from, into their errors."""
    try:
        raise ValueError(f"Could not convert {CANARY!r} with type float: row 7")
    except ValueError as error:
        raise RuntimeError(f"bad cell {CANARY!r}") from error


def dask_setup(worker: Any) -> None:
    """Dask calls this in each worker that has this file as a preload."""
    from fedcore.models import linear

    linear.clipped_residuals = quoting
