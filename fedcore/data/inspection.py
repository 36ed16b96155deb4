"""What of a file's contents does not fit its schema, for its operator's eyes alone.

Sentences here count records and quote cells: they are shown where the file is (`fedcore check`), or of public test
data, and go nowhere else. A driver hears one code (`check_contents`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from fedcore.data.cells import Refusal, Value, by_cell, decoded, is_missing, place_of, quoted
from fedcore.data.persons import beyond, count_persons
from fedcore.data.schema import Column, Schema
from fedcore.data.silo_file import (
    SiloSource,
    guarded,
    labels_or_nan,
    open_records,
    read_persons,
    read_table,
    unit_count,
)
from fedcore.errors import SiloError

_SHOWN = 3  # cells that a sentence quotes


@dataclass
class Findings:
    """`faults`: why the file is refused. `notes`: what is allowed, and its operator may want to know."""

    rows: int = 0
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    persons: int | None = None
    """Where these are the unit of privacy."""
    classes: frozenset[Value] | None = None
    """Those of `data.classes` that records are of; None for a real label, or a file that does not fit."""


def inspected(source: SiloSource) -> Findings:
    """All that is wrong with a file, column by column; of a file that cannot be read the one reason."""
    rows = 0
    try:
        table = read_table(source)
        rows = table.num_rows
        found = Findings(rows) if source.schema is None else _judged(source, source.schema, table)
        if source.person is not None:
            _judge_persons(source, source.person, table, found)
        if source.schema is None and not found.faults:
            open_records(source)
        if source.classes is not None and not found.faults:
            places = np.unique(labels_or_nan(table, source)).astype(int)
            found.classes = frozenset(source.classes[place] for place in places)
        return found
    except (Refusal, SiloError) as error:
        return Findings(rows, [error.sentence])
    except Exception as error:
        return Findings(rows, [f"cannot be read ({type(error).__name__})"])


def check_contents(source: SiloSource) -> int:
    """Number of records, or persons, of a file that fits; raises SiloError with the code `contents`, and nothing of
    what is in it.

    Without a schema the file's own codes tell what is wrong (`silo_file.CODES`).
    """
    described = source.schema
    if described is None:
        return open_records(source).n

    def check(source: SiloSource) -> int:
        table = read_table(source)
        whose = read_persons(table, source)
        found = _judged(source, described, table)
        if found.faults:
            raise Refusal(
                "contents",
                "holds what does not fit the schema; `fedcore check` with this config, where the file is, says what",
            )
        return unit_count(found.rows, whose)

    return guarded(source, check)


def _judge_persons(source: SiloSource, person: str, table: pa.Table, found: Findings) -> None:
    nobody = np.count_nonzero(by_cell(table.column(person), is_missing))
    if nobody:
        found.faults.append(
            f"column {person!r}: {nobody} of {found.rows} cells are missing; every row needs the person whose it is"
        )
        return
    whose = read_persons(table, source)
    if whose is None:
        return
    found.persons = count_persons(whose)
    more = beyond(whose, source.person_rows)
    if more:
        found.notes.append(
            f"column {person!r}: {more} of {found.persons} persons have more rows than data.person_rows = "
            f"{source.person_rows}; their first {source.person_rows} count"
        )


def _judged(source: SiloSource, described: Schema, table: pa.Table) -> Findings:
    found = Findings(table.num_rows)
    for column in described:
        _judge(column, table.column(column.name), found)
    _judge_label(source, table, found)
    return found


def _judge(column: Column, cells: pa.ChunkedArray, found: Findings) -> None:
    rows = found.rows
    blank = by_cell(cells, column.is_blank) > 0
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


def _judge_label(source: SiloSource, table: pa.Table, found: Findings) -> None:
    name, rows, cells = source.label, found.rows, table.column(source.label)
    labels = labels_or_nan(table, source)
    bad = np.isnan(labels)
    if bad.any():
        right = "every record needs a finite number"
        if source.classes is not None:
            right = f"data.classes has {quoted(source.classes)}"
        found.faults.append(f"label {name!r}: {bad.sum()} of {rows} cells do not fit{_instances(cells, bad)}; {right}")
    if source.label_range is not None:
        low, high = source.label_range
        beyond = (labels < low) | (labels > high)
        if beyond.any():
            found.notes.append(f"label {name!r}: {beyond.sum()} of {rows} lie outside of data.label_range")


def _instances(cells: pa.ChunkedArray, where: np.ndarray) -> str:
    """Up to three of the cells, the most frequent first."""
    texts = Counter(str(cell).strip() for cell in decoded(cells).filter(pa.array(where)).to_pylist())
    return " (for instance " + ", ".join(repr(text) for text, _ in texts.most_common(_SHOWN)) + ")"
