"""Findings about a table's cells: those that do not fit the schema, and probable mistakes.

Sentences count records and quote cells, so they are for the file's operator or about public data only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedcore.data.cells import Places, Value, by_cell, decoded, quoted, values_of
from fedcore.data.schema import Column, Schema
from fedcore.data.silo_file import SiloSource, labels_or_nan
from fedcore.data.texts.column_types import misfit
from fedcore.data.texts.numerals import described as seeming
from fedcore.data.texts.spellings import Alike
from fedcore.losses import REALS

SHOWN = 3
"""Most cells in a sentence."""
_LONGEST = 60  # characters of a quoted cell


@dataclass
class Findings:
    """Sentences about a file. `faults`: reasons to refuse it. `doubts`: probable mistakes.

    A run accepts a file with doubts. `notes`: allowed facts that may interest its operator.
    """

    rows: int = 0
    faults: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    persons: int | None = None
    """Number of persons, if these are the unit of privacy."""
    classes: frozenset[Value] | None = None
    """The classes of `data.classes` that occur; None for a real label, or a file that does not fit."""
    noting: bool = True
    """False if notes are not shown; then slow searches for notes are skipped."""


def judged(source: SiloSource, described: Schema, table: pa.Table, noting: bool = True) -> Findings:
    """Findings about a schema's columns and the label; without `noting`, no slow notes."""
    found = Findings(table.num_rows, noting=noting)
    for column in described:
        _judge(column, table.column(column.name), found)
    _judge_label(source, table, found)
    return found


def _judge(column: Column, cells: pa.ChunkedArray, found: Findings) -> None:
    rows = found.rows
    if (why := misfit(cells.type, column.categories)) is not None:
        found.faults.append(f"column {column.name!r}: {why}")
        return
    blank = by_cell(cells, column.blanks()) > 0
    if blank.any() and column.missing is None:
        where = "a feature of its own marks them, and `fill` replaces them"
        if column.categories is not None and column.other:
            found.notes.append(f"column {column.name!r}: {blank.sum()} of {rows} cells are missing and count as other")
        else:
            found.faults.append(
                f"column {column.name!r}: {blank.sum()} of {rows} cells are missing; write missing: [] into its schema "
                f"({where}), or correct the file"
            )
    elif rows and blank.all():
        found.notes.append(f"column {column.name!r}: all of its {rows} cells are missing")
    _note_near(f"column {column.name!r}", "code for missing", column.missing, cells, ~blank, found, found.notes)
    if column.categories is None:
        _judge_numbers(column, cells, blank, found)
    else:
        _judge_categories(column, column.categories, cells, blank, found)


def _judge_numbers(column: Column, cells: pa.ChunkedArray, blank: NDArray[np.bool_], found: Findings) -> None:
    rows, values = found.rows, column.numbers(cells)
    odd = np.isnan(values) & ~blank
    if odd.any():
        seem = seeming(_where(cells, odd))
        found.faults.append(
            f"column {column.name!r}: {odd.sum()} of {rows} cells are no numbers{_instances(cells, odd)}; "
            f"{seem + '; ' if seem else ''}correct them, or name the codes that stand for missing values in `missing`, "
            "or give `categories`"
        )
    if column.range is not None:
        low, high = column.range
        beyond = (values < low) | (values > high)
        ends = f"range [{low:g}, {high:g}]"
    else:
        beyond = np.abs(column.unit(values)) >= column.limit
        ends = f"{column.limit:g} scales around the centre"
    if beyond.any() and not (beyond | np.isnan(values)).all():
        found.notes.append(f"column {column.name!r}: {beyond.sum()} of {rows} values lie outside of {ends}")
    elif beyond.any():
        found.doubts.append(
            f"column {column.name!r}: none of its {beyond.sum()} values lies within {ends}{_instances(cells, beyond)}: "
            "in another unit, perhaps; all are clipped to an end, and the feature has no information"
        )
    truths = sum(isinstance(cell, str) and cell.strip().lower() in ("true", "false") for cell in _where(cells, ~blank))
    if 0 < truths < np.count_nonzero(~blank):
        found.notes.append(f"column {column.name!r}: {truths} of {rows} cells are true or false, and count as 1 and 0")


def _judge_categories(
    column: Column, categories: Sequence[Value], cells: pa.ChunkedArray, blank: NDArray[np.bool_], found: Findings
) -> None:
    known = Places(categories)
    unknown = (by_cell(cells, lambda cell: float(known.of(cell) is None)) > 0) & ~blank
    if not unknown.any():
        return
    rows, name = found.rows, f"column {column.name!r}"
    sentence = f"{unknown.sum()} of {rows} cells are none of its categories{_instances(cells, unknown)}"
    near: list[str] = []
    _note_near(name, "category", categories, cells, unknown, found, near)
    if (unknown | blank).all():
        what = "count as other: the feature has no information" if column.other else "are none of its features"
        found.doubts.append(
            f"{name}: not one of its cells is one of its categories {quoted(categories)}{_instances(cells, unknown)}; "
            f"all {what}"
        )
    elif column.other:
        found.notes.append(f"{name}: {sentence}, and count as other")
    if not column.other:
        found.faults.append(f"{name}: {sentence}; name them all, or leave `other: false` out")
    found.notes += near


def _note_near(
    name: str,
    what: str,
    values: Sequence[Value] | None,
    cells: pa.ChunkedArray,
    where: NDArray[np.bool_],
    found: Findings,
    notes: list[str],
) -> None:
    """Notes cells that are none of the values but may be another spelling of one."""
    if not values or not found.noting:
        return
    different, places = values_of(cells.filter(pa.array(where)))
    alike = Alike(values)
    close = [alike.nearly(cell) for cell in different]
    count = np.bincount(places, minlength=len(different))
    total = sum(int(count[place]) for place, near in enumerate(close) if near is not None)
    if total:
        shown = [f"{_text(cell)!r} for {near}" for cell, near in zip(different, close, strict=True) if near is not None]
        notes.append(
            f"{name}: {total} cells are no {what}, and may be meant as one: {', '.join(shown[:SHOWN])}; write them as "
            "the config does, or the config as they are, a text in quotes"
        )


def _judge_label(source: SiloSource, table: pa.Table, found: Findings) -> None:
    name, rows, cells = source.label, found.rows, table.column(source.label)
    if (why := misfit(cells.type, source.classes)) is not None:
        found.faults.append(f"label {name!r}: {why}")
        return
    labels = labels_or_nan(table, source)
    bad = np.isnan(labels)
    if bad.any():
        right = "every record needs a finite number"
        if source.labels != REALS:
            right = f"the loss takes {source.labels.name}"
        seem = "" if source.classes is not None else seeming(_where(cells, bad))
        if source.classes is not None:
            right = f"data.classes has {quoted(source.classes)}"
            _note_near(f"label {name!r}", "class", source.classes, cells, bad, found, found.notes)
        found.faults.append(
            f"label {name!r}: {bad.sum()} of {rows} cells do not fit{_instances(cells, bad)}; "
            f"{seem + '; ' if seem else ''}{right}"
        )
    if source.label_range is not None:
        low, high = source.label_range
        beyond = (labels < low) | (labels > high)
        if beyond.any() and (beyond | bad).all():
            found.doubts.append(
                f"label {name!r}: none of {rows} cells lies within data.label_range [{low:g}, {high:g}]"
            )
        elif beyond.any():
            found.notes.append(f"label {name!r}: {beyond.sum()} of {rows} lie outside of data.label_range")


def _where(cells: pa.ChunkedArray, where: NDArray[np.bool_]) -> list[object]:
    found: list[object] = decoded(cells).filter(pa.array(where)).to_pylist()
    return found


def _instances(cells: pa.ChunkedArray, where: NDArray[np.bool_]) -> str:
    """Quotes up to three of the cells, the most frequent first."""
    texts = Counter(_text(cell) for cell in _where(cells, where))
    return " (for instance " + ", ".join(repr(text) for text, _ in texts.most_common(SHOWN)) + ")"


def _text(cell: object) -> str:
    return str(cell).strip()[:_LONGEST]
