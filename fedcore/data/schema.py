"""A public schema of a table's columns: the per-record map from raw cells to bounded features.

A person writes its constants from public knowledge, so the map depends on one record only. Replacing a record changes
one row of features, within the schema's norm. A misfit cell, such as a text among numbers or an empty cell, becomes
the column's constant without notice. So no outcome depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedcore.data.cells import Places, Value, by_cell, exact_number, is_missing, numbers_or_nan, repeated
from fedcore.data.labels import to_unit
from fedcore.hyperparameters import Real, Section

LIMIT = 3.0
"""Default number of scales from the centre at which a centred column is clipped."""
EXACT = 2.0**53
"""Bound below which floats represent whole numbers exactly."""
LEAST_LIMIT = 1e-6
"""Least limit of a column: smaller ones have no use, and quotients by them overflow."""


class Column(Section):
    """One column: a number with `range`, or `centre` and `scale`; or a value of `categories`."""

    name: str = Field(min_length=1)
    range: tuple[Real, Real] | None = None
    """Smallest and largest value in the column's own units: clipped to it, and mapped to -1 to 1."""
    centre: Real | None = None
    """Subtracted, before `scale` divides; with `log` a positive number, as it stands in the column."""
    scale: Real | None = Field(None, gt=0)
    """One unit of the feature; with `log` a factor above 1."""
    limit: Real = Field(LIMIT, ge=LEAST_LIMIT, le=1000)
    """Scales from the centre at which the value is clipped; with `centre` and `scale` only."""
    log: bool = False
    """Take logarithms first, of positive numbers; values of 0 and below are clipped with the smallest."""
    plus: Real = Field(0.0, ge=0, le=1e12)
    """With `log`, `centre` and `scale`: added to value and centre before logarithms are taken; 1 for counts with many
    zeros."""
    categories: tuple[Value, ...] | None = Field(None, min_length=1, max_length=10_000)
    """The values that the column may take: a feature of 0 or 1 for each."""
    other: bool = True
    """With `categories`: one more feature for all other values; without it all features of such a value are 0."""
    missing: tuple[Value, ...] | None = None
    """Codes of a missing value, beside empty cells; [] if there are none. With this key missing values are expected,
    and one more feature marks them."""
    indicator: bool = True
    """With `missing`: adds that feature; without it a missing value is not marked and counts as its fill."""
    fill: Real | None = None
    """With numbers: replaces a missing value, in the column's own units; null: the middle of the range, or centre."""

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> Column:
        centred = self.centre is not None or self.scale is not None
        if sum((self.range is not None, centred, self.categories is not None)) != 1:
            raise ValueError("needs one of range: [smallest, largest], centre and scale, or categories: [..]")
        if centred and (self.centre is None or self.scale is None):
            raise ValueError("needs both, centre and scale")
        if not centred and self.limit != LIMIT:
            raise ValueError("limit goes with centre and scale only; leave it out")
        if self.categories is None and not self.other:
            raise ValueError("other goes with categories only; leave it out")
        if self.categories is not None and (self.log or self.fill is not None):
            raise ValueError("log and fill go with numbers, not with categories; leave them out")
        if self.plus and not (self.log and centred):
            raise ValueError("plus goes with log: true, centre and scale only; leave it out")
        if not self.indicator and (self.missing is None or self.categories is not None):
            raise ValueError("indicator goes with numbers that have missing: [..]; leave it out")
        return self

    @model_validator(mode="after")
    def _numbers_make_sense(self) -> Column:
        if self.range is not None:
            low, high = self.range
            if not low < high:
                swapped = f", swapped: write [{high:g}, {low:g}]" if high < low else ""
                raise ValueError(f"range [{low:g}, {high:g}] must be [smallest, largest]{swapped}")
            if self.log and low <= 0:
                raise ValueError(f"range [{low:g}, {high:g}] with log: true must start above 0")
            if not math.isfinite(high - low):
                raise ValueError(f"range [{low:g}, {high:g}] is too wide for a float")
            if self.fill is not None and not low <= self.fill <= high:
                raise ValueError(f"fill {self.fill:g} must be in the range [{low:g}, {high:g}]")
        if self.log and self.centre is not None and self.scale is not None and not self._has_a_logarithm:
            what = "centre + plus" if self.plus else "centre"
            raise ValueError(f"with log: true, {what} must be above 0, and scale, a factor, above 1")
        return self

    @model_validator(mode="after")
    def _values_are_distinct(self) -> Column:
        for key, values in (("categories", self.categories or ()), ("missing", self.missing or ())):
            check_exact(key, values)
            if (value := repeated(values)) is not None:
                raise ValueError(f"{key} has {value!r} twice (1, 1.0 and '1' are one value)")
        categories = Places(self.categories or ())
        for code in self.missing or ():
            if categories.of(code) is not None:
                raise ValueError(f"{code!r} is a category and a code for missing")
        return self

    @property
    def _has_a_logarithm(self) -> bool:
        """Checks that centre and scale allow logarithms."""
        return float(self.centre or 0.0) + self.plus > 0 and float(self.scale or 0.0) > 1

    @property
    def marked(self) -> bool:
        """True if one feature marks missing values."""
        return self.missing is not None and self.indicator

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the column's features."""
        if self.categories is None:
            own = [self.name]
        else:
            own = [f"{self.name}={value}" for value in self.categories]
            own += [f"{self.name} other"] if self.other else []
        return (*own, *([f"{self.name} missing"] if self.marked else []))

    @property
    def bound(self) -> float:
        """Largest Euclidean norm of the column's features."""
        if self.categories is not None:
            return 1.0
        most = 1.0 if self.range is not None else self.limit
        return max(most, math.hypot(1.0, self.filled)) if self.marked else most

    @property
    def example(self) -> Value:
        """A made-up cell: the first category, or the middle of the range."""
        if self.categories is not None:
            return self.categories[0]
        if self.centre is not None or self.range is None:
            return float(self.centre or 0.0)
        low, high = self.range
        return math.sqrt(low * high) if self.log else (low + high) / 2.0

    @property
    def filled(self) -> float:
        return 0.0 if self.fill is None else float(self.unit(np.array([float(self.fill)]))[0])

    def unit(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Features (n,) of numbers in own units, clipped; of a range from -1 to 1. NaN stays."""
        if self.range is not None:
            if not self.log:
                return to_unit(values, self.range)
            low, high = self.range
            return to_unit(np.log(np.clip(values, low, high)), (math.log(low), math.log(high)))
        centre, scale = float(self.centre or 0.0), float(self.scale or 1.0)
        with np.errstate(over="ignore"):
            if self.log:
                positive = np.maximum(values + self.plus, np.finfo(np.float64).tiny)
                inner = (np.log(positive) - math.log(centre + self.plus)) / math.log(scale)
            else:
                inner = (values - centre) / scale
        return np.clip(inner, -self.limit, self.limit)

    def features(self, column: pa.ChunkedArray) -> NDArray[np.float64]:
        """The column's features (n, len(names)), each row from its own cell."""
        out = np.zeros((len(column), len(self.names)))
        if self.categories is not None:
            place = self.places(column)
            known = np.flatnonzero(place < len(self.names))
            out[known, place[known]] = 1.0
            return out
        values = self.unit(self.numbers(column))
        blank = np.isnan(values)
        out[:, 0] = np.where(blank, self.filled, values)
        if self.marked:
            out[:, 1] = blank
        return out

    def numbers(self, column: pa.ChunkedArray) -> NDArray[np.float64]:
        """The column in its own units (n,); NaN for a missing cell or no finite number."""
        values = numbers_or_nan(column)
        if self.missing:
            values = np.where(by_cell(column, self.codes()) > 0, np.nan, values)
        return values

    def codes(self) -> Callable[[object], bool]:
        """Returns a check for codes of a missing value; in a column of numbers 0777 is 777."""
        codes = Places(self.missing or ())
        numbers = {exact_number(code) for code in self.missing or () if not isinstance(code, str)}
        if self.categories is not None or not numbers:
            return lambda cell: codes.of(cell) is not None
        return lambda cell: codes.of(cell) is not None or exact_number(cell) in numbers

    def blanks(self) -> Callable[[object], bool]:
        """Returns a check for missing values: empty cells and codes that are no category."""
        categories, is_code = Places(self.categories or ()), self.codes()
        return lambda cell: categories.of(cell) is None and (is_missing(cell) or is_code(cell))

    def places(self, column: pa.ChunkedArray) -> NDArray[np.int64]:
        """Index of the feature that each cell sets to 1 (n,); `len(names)` for none."""
        categories, is_blank = Places(self.categories or ()), self.blanks()
        nowhere = len(self.names)
        none = len(self.categories or ()) if self.other else nowhere

        def place(cell: object) -> float:
            found = categories.of(cell)
            if found is not None:
                return found
            return nowhere - 1 if self.missing is not None and is_blank(cell) else none

        return by_cell(column, place).astype(np.int64)


def check_exact(key: str, values: Sequence[Value]) -> None:
    """Raises ValueError for a float that may differ from the number as it was written."""
    for value in values:
        if isinstance(value, float) and not abs(value) < EXACT:
            raise ValueError(
                f"{key} has {value!r}: a number with a point or an exponent is exact below {EXACT:.0f} only; write it "
                "as a whole number, or as a text in quotes"
            )


Schema = tuple[Column, ...]


def feature_names(schema: Schema) -> tuple[str, ...]:
    """Names of all features, in the order of the model's weights."""
    return tuple(name for column in schema for name in column.names)


def longest(schema: Schema) -> float:
    """Largest Euclidean norm of a record's features, bias not included."""
    return math.sqrt(sum(column.bound**2 for column in schema))


def features(table: pa.Table, schema: Schema) -> NDArray[np.float64]:
    """The features (n, d) of a table; finite, no row longer than `longest(schema)`."""
    return np.concatenate([column.features(table.column(column.name)) for column in schema], axis=1)
