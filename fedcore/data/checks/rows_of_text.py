"""Check of a CSV file's rows: line breaks, rows within a cell, repeated headers, encodings.

Its findings are about records, so they are for the file's operator or about public data only.
"""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from fedcore.data.cells import quoted
from fedcore.data.columns import csv_header, native, opened

_BREAK = "[\r\n]"
_UNSEEN = "[\x00-\x08\x0e-\x1f\x7f]"
LEAST_COLUMNS = 3
"""Least columns of a file in which a line with the right number of separators is taken for a row."""


@dataclass
class RowsOfText:
    """Counts of unusual contents of a CSV file's rows."""

    broken: Counter[str] = field(default_factory=Counter)
    """By column, the cells with a line break."""
    lines: int = 0
    """Line breaks in the longest of these cells."""
    swallowed: int = 0
    """Line ends within cells whose lines have as many separators as rows have."""
    headers: int = 0
    """Rows that repeat the first line."""
    empty: int = 0
    """Rows whose cells are all empty."""
    unseen: Counter[str] = field(default_factory=Counter)
    """By column, the cells with null or other control characters."""
    encoded: set[str] = field(default_factory=set)
    """Columns that are not in UTF-8."""

    @property
    def doubts(self) -> list[str]:
        """Sentences about probable mistakes in the file."""
        found = []
        if self.swallowed:
            found.append(
                f"{self.swallowed} lines of the file are inside of cells and look like rows of their own (column(s) "
                f"{quoted(self.broken)}): a quote is opened before them and not closed. They are no records here; "
                "close the quote, or double it where it is part of a text"
            )
        if self.headers:
            found.append(
                f"{self.headers} row(s) repeat the header: several files are one behind the other; take these rows out"
            )
        return found

    @property
    def notes(self) -> list[str]:
        found = []
        if self.broken:
            cells = sum(self.broken.values())
            found.append(
                f"{cells} cell(s) have line breaks, up to {self.lines} in one (column(s) {quoted(self.broken)}): each "
                "is text in quotes that goes on in the next line"
            )
        if self.empty:
            found.append(f"{self.empty} row(s) have empty cells only, and count as records")
        if self.unseen:
            found.append(
                f"{sum(self.unseen.values())} cell(s) have null or other control characters (column(s) "
                f"{quoted(self.unseen)})"
            )
        if self.encoded:
            found.append(
                f"column(s) {quoted(sorted(self.encoded))} are in another encoding than UTF-8, Latin-1 or Windows-1252 "
                "most likely"
            )
        return found


def rows_of_text(path: str) -> RowsOfText:
    """Examines the rows of a CSV file in all columns. Raises Refusal for a file that is no CSV."""
    found = RowsOfText()
    with opened(path, "csv") as file:
        names = csv_header(file)
        first = True
        options = pa.csv.ReadOptions(use_threads=False, autogenerate_column_names=True, block_size=1 << 24)
        parse = pa.csv.ParseOptions(newlines_in_values=True)
        convert = pa.csv.ConvertOptions(
            column_types={f"f{place}": pa.binary() for place in range(len(names))}, strings_can_be_null=False
        )
        with native(path) as text, pa.csv.open_csv(text, options, parse, convert) as reader:
            for batch in reader:
                _examine(batch.slice(1) if first else batch, names, found)
                first = False
    return found


def _examine(batch: pa.RecordBatch, names: list[str], found: RowsOfText) -> None:
    alike = empty = pa.array([True] * batch.num_rows, pa.bool_())
    for place, name in enumerate(names):
        cells = _texts(batch.column(place), name, found)
        trimmed = pc.utf8_trim_whitespace(pc.utf8_ltrim(cells, "\N{BYTE ORDER MARK}"))
        alike = pc.and_(alike, pc.equal(trimmed, name.strip()))
        empty = pc.and_(empty, pc.equal(trimmed, ""))
        if unseen := pc.sum(pc.match_substring_regex(cells, _UNSEEN)).as_py():
            found.unseen[name] += unseen
        for cell in cells.filter(pc.match_substring_regex(cells, _BREAK)).to_pylist():
            _broken(cell, place, names, found)
    found.headers += pc.sum(alike).as_py() or 0
    found.empty += pc.sum(empty).as_py() or 0


def _texts(cells: pa.Array, name: str, found: RowsOfText) -> pa.Array:
    try:
        return cells.cast(pa.string())
    except pa.ArrowException:
        found.encoded.add(name)
        return pa.array([cell.decode("latin-1") for cell in cells.to_pylist()], pa.string())


def _broken(cell: str, place: int, names: list[str], found: RowsOfText) -> None:
    lines = cell.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    found.broken[names[place]] += 1
    found.lines = max(found.lines, len(lines) - 1)
    most = len(names) - 1
    expected = [most - place, *[most] * (len(lines) - 2), place]
    if len(names) >= LEAST_COLUMNS and [_separators(line) for line in lines] == expected:
        found.swallowed += len(lines) - 1


def _separators(line: str) -> int:
    try:
        return len(next(csv.reader([line]), [""])) - 1
    except csv.Error:
        return -1
