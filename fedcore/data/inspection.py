"""What of a file's contents does not fit its schema, for its operator's eyes alone.

Sentences here count records and quote cells: they are shown where the file is (`fedcore check`), or of public test
data, and go nowhere else. A driver hears one code (`check_contents`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from fedcore.data.cells import Refusal, Value, as_float, by_cell, decoded, is_missing, place_of, quoted
from fedcore.data.labels import class_ids_or_nan
from fedcore.data.schema import Column
from fedcore.data.silo_file import SiloSource, guarded, open_records, read_table

_SHOWN = 3  # cells that a sentence quotes


@dataclass
class Findings:
    """`faults`: why the file is refused. `notes`: what is allowed, and its operator may want to know."""

    rows: int = 0
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def inspected(source: SiloSource) -> Findings:
    """All that is wrong with a file, column by column; of a file that cannot be read the one reason."""
    found = Findings()
    try:
        table = read_table(source)
        found.rows = table.num_rows
        if source.schema is None:
            open_records(source)
            return found
        for column in source.schema:
            _judge(column, table.column(column.name), found)
        _judge_label(source, table.column(source.label), found)
    except Refusal as refusal:
        found.faults.append(refusal.sentence)
    except Exception as error:
        found.faults.append(getattr(error, "sentence", f"cannot be read ({type(error).__name__})"))
    return found


def check_contents(source: SiloSource) -> int:
    """Number of records of a file that fits; raises SiloError with the code `contents`, and nothing of what is in it.

    Without a schema the file's own codes tell what is wrong (`silo_file.CODES`).
    """
    if source.schema is None:
        return open_records(source).n

    def check(source: SiloSource) -> int:
        read_table(source)  # its own refusals are about names and format
        found = inspected(source)
        if found.faults:
            raise Refusal(
                "contents",
                "holds what does not fit the schema; `fedcore check` with this config, where the file is, says what",
            )
        return found.rows

    return guarded(source, check)


def _judge(column: Column, cells: pa.ChunkedArray, found: Findings) -> None:
    rows, codes = found.rows, column.missing or ()
    blank = by_cell(cells, lambda cell: _is_blank(cell, codes, column.categories or ())) > 0
    if blank.any() and column.missing is None:
        where = "a feature of its own says where, and `fill` what they become"
        if column.categories is not None and column.other:
            found.notes.append(f"column {column.name!r}: {blank.sum()} of {rows} cells are missing and count as other")
        else:
            found.faults.append(
                f"column {column.name!r}: {blank.sum()} of {rows} cells are missing; write missing: [] into its schema "
                f"({where}), or correct the file"
            )
    if column.categories is None:
        values = column.numbers(cells)
        odd = np.isnan(values) & ~blank
        if odd.any():
            found.faults.append(
                f"column {column.name!r}: {odd.sum()} of {rows} cells are no numbers{_instances(cells, odd)}; correct "
                "them, or name the codes that stand for missing values in `missing`, or give `categories`"
            )
        if column.range is not None:
            low, high = column.range
            beyond = (values < low) | (values > high)
            ends = f"range [{low:g}, {high:g}]"
        else:
            beyond = np.abs(column.unit(values)) >= column.limit
            ends = f"{column.limit:g} scales around the centre"
        if beyond.any():
            found.notes.append(f"column {column.name!r}: {beyond.sum()} of {rows} values lie outside of {ends}")
        return
    unknown = (by_cell(cells, lambda cell: float(place_of(cell, column.categories or ()) is None)) > 0) & ~blank
    if unknown.any():
        sentence = f"{unknown.sum()} of {rows} cells are none of its categories{_instances(cells, unknown)}"
        if column.other:
            found.notes.append(f"column {column.name!r}: {sentence}, and count as other")
        else:
            found.faults.append(f"column {column.name!r}: {sentence}; name them all, or leave `other: false` out")


def _judge_label(source: SiloSource, cells: pa.ChunkedArray, found: Findings) -> None:
    name, rows = source.label, found.rows
    if source.classes is None:
        bad, right = np.isnan(by_cell(cells, as_float)), "every record needs a finite number"
    else:
        bad, right = np.isnan(class_ids_or_nan(cells, source.classes)), f"data.classes has {quoted(source.classes)}"
    if bad.any():
        found.faults.append(f"label {name!r}: {bad.sum()} of {rows} cells do not fit{_instances(cells, bad)}; {right}")
    if source.label_range is not None:
        low, high = source.label_range
        values = by_cell(cells, as_float)
        beyond = (values < low) | (values > high)
        if beyond.any():
            found.notes.append(f"label {name!r}: {beyond.sum()} of {rows} lie outside of data.label_range")


def _is_blank(cell: object, codes: tuple[Value, ...], categories: tuple[Value, ...]) -> float:
    if place_of(cell, categories) is not None:
        return 0.0
    return float(is_missing(cell) or place_of(cell, codes) is not None)


def _instances(cells: pa.ChunkedArray, where: np.ndarray) -> str:
    """Up to three of the cells, the most frequent first."""
    texts = Counter(str(cell).strip() for cell in decoded(cells).filter(pa.array(where)).to_pylist())
    return " (for instance " + ", ".join(repr(text) for text, _ in texts.most_common(_SHOWN)) + ")"
