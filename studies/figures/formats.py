"""Printed digits of each measure, the same in tables and in published results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedcore.directed_rounding import in_full

FORMATS: Mapping[str, str] = {
    "test error": ".3f",
    "relative RMSE": ".3f",
    "excess loss": ".4f",
    "accuracy": ".2f",
    "gap": ".2f",
    "train_loss": ".4g",
    "test_loss": ".4g",
    "silo mean error": ".3f",
    "rounds": ".0f",
    "numbers sent": ".0f",
    "gradient evaluations": ".0f",
}
"""Format of each measure. Accuracy is in percent, gap is ln(F - F*)."""


def printed(measure: str, value: float) -> str:
    """The value with the digits of its measure. Raises KeyError for a measure that no figure has."""
    return format(value, FORMATS[measure])


def place_text(value: Any) -> str:
    """A key's value for printing; "none" for a run without one, for instance without noise."""
    if value is None:
        return "none"
    return in_full(value) if isinstance(value, float) else str(value)
