"""How methods and losses declare their hyperparameters, so that no config and no caller can give nonsense."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict

DECLARED = ConfigDict(extra="forbid", allow_inf_nan=False)
"""For `pydantic.dataclasses.dataclass(frozen=True, config=DECLARED)`: unknown names and infinities are refused."""


def _no_truth_value(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("true and false are not numbers")
    return value


Real = Annotated[float, BeforeValidator(_no_truth_value)]
Count = Annotated[int, BeforeValidator(_no_truth_value)]
