"""How sections of the configuration, methods and losses declare their keys, so that nobody can give nonsense."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

DECLARED = ConfigDict(extra="forbid", allow_inf_nan=False)
"""For `pydantic.dataclasses.dataclass(frozen=True, config=DECLARED)`: unknown names and infinities are refused."""


def _no_truth_value(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("true and false are not numbers")
    return value


Real = Annotated[float, BeforeValidator(_no_truth_value)]
Whole = Annotated[int, BeforeValidator(_no_truth_value)]
Count = Annotated[Whole, Field(le=2**53)]
"""So many that a float still tells two apart."""


class Section(BaseModel):
    """A part of the configuration: frozen, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)
