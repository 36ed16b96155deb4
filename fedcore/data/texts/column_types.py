"""Types of Parquet columns in which no cell can have a value of the schema.

A footer is public: plans read it, and refuse, for instance, a column of dates as a number before any record is read.
Cells of CSV files are texts.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from fedcore.data.cells import Value, exact_number, value_type

_BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)


def misfit(kind: pa.DataType, values: Sequence[Value] | None) -> str | None:
    """Reason why no cell of this type can be one of the values (None: a number), or None."""
    plain = value_type(kind)
    what = "a number" if values is None else "one of its values"
    if pa.types.is_nested(plain):
        return f"its type in the file is {plain}, and no list or structure is {what}"
    if any(is_kind(plain) for is_kind in _BYTES):
        return f"its type in the file is {plain}, and bytes are no text: nothing in it is {what}; write it as string"
    if pa.types.is_temporal(plain):
        right = "years or days as numbers" if values is None else "texts"
        return f"its type in the file is {plain}, and no date or time is {what}; write it as {right}, by a public rule"
    if values is not None and not _can_be(plain, values):
        return f"its type in the file is {plain}, and none of its values is such a number"
    return None


def _can_be(kind: pa.DataType, values: Sequence[Value]) -> bool:
    numbers = [number for number in map(exact_number, values) if number is not None]
    if pa.types.is_boolean(kind):
        return any(number in (0, 1) for number in numbers)
    if pa.types.is_integer(kind):
        return any(number == number.to_integral_value() for number in numbers)
    return bool(numbers) or not (pa.types.is_floating(kind) or pa.types.is_decimal(kind))
