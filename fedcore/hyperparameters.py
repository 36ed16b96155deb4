"""Types and base classes of config sections, methods and losses: declared, checked keys."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from fedcore.printable import plain_names

DECLARED = ConfigDict(extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)
"""For `pydantic.dataclasses.dataclass(frozen=True, config=DECLARED)`: refuses unknown names and infinities, and takes
the docstring below a field as its description."""


def _no_truth_value(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("true and false are not numbers")
    return value


LEAST, MOST = 1e-50, 1e50
"""Bounds in size of a `Factor`: a product of six is a float. Beyond them steps, weights and models overflow or vanish.
"""


def _within_reach(value: float) -> float:
    if value and not LEAST <= abs(value) <= MOST:
        raise ValueError(f"steps, weights, bounds and scales are 0, or from {LEAST:g} to {MOST:g} in size")
    return value


Real = Annotated[float, BeforeValidator(_no_truth_value)]
Whole = Annotated[int, BeforeValidator(_no_truth_value)]
Factor = Annotated[Real, AfterValidator(_within_reach)]
"""A step, weight, bound or scale, which plans and methods multiply: 0, or from `LEAST` to `MOST` in size."""
Count = Annotated[Whole, Field(le=2**53)]
"""A whole number that a float represents exactly."""
Seed = Annotated[Whole, Field(ge=0, lt=2**63)]
"""A seed or the number of a repetition, within the range of databases' integers."""


def descriptions(kind: type) -> dict[str, str]:
    """Descriptions of the keys of a class declared with `DECLARED`, inherited keys included."""
    found: dict[str, str] = {}
    for each in kind.__mro__:
        for key, field in each.__dict__.get("__pydantic_fields__", {}).items():
            if field.description:
                found.setdefault(key, " ".join(field.description.split()))
    return found


class Section(BaseModel):
    """A part of the configuration: frozen, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    @model_validator(mode="after")
    def _names_are_plain(self) -> Self:
        for key in type(self).model_fields:
            plain_names(getattr(self, key), key)
        return self
