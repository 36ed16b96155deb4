"""Files of a table in a local folder: their search, number of records, and contents.

Nothing is downloaded. Files are CSV, plain or gzipped.
"""

from __future__ import annotations

import csv
import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from fedcore.data.cells import MISSING, by_cell, is_missing, numbers_or_nan, quoted
from fedcore.data.sources.tables.description import Description, FileLayout
from fedcore.data.sources.text_files import opened, scanned
from fedcore.data.table import Table
from fedcore.errors import InputError

_BLOCK = 1 << 24  # bytes parsed at a time; one line must fit
_NAMED = 12  # classes that an error names


class TableFiles(NamedTuple):
    """The files of a table, in the order of their records, and their layout."""

    layout: FileLayout
    paths: tuple[Path, ...]


def find_files(folder: str, name: str, described: Description) -> TableFiles:
    """Files of the table's first layout that is complete in the folder, plain before gzipped.

    Raises InputError naming the files that belong there.
    """
    place = Path(folder).absolute()
    for layout in described.layouts:
        found = [_matching(place, pattern) for pattern in layout.patterns]
        if all(found):
            return TableFiles(layout, tuple(path for paths in found for path in paths))
    wanted = "; or ".join(" and ".join(layout.patterns) for layout in described.layouts)
    raise InputError(
        f"data.folder = {folder}: table {name} needs {wanted} in {place}, each plain or with .gz at its end; nothing "
        "is downloaded: put the files there, or set data.folder to where they are"
    )


def count_records(files: TableFiles) -> int:
    """Counts the records of all files without parsing. Raises InputError for a damaged file."""
    return sum(_counted(path, files.layout)[0] for path in files.paths)


def digest_of(files: TableFiles) -> str:
    """SHA-256 (hex) of the uncompressed contents. Raises InputError as `count_records` does."""
    total = hashlib.sha256()
    for path in files.paths:
        total.update(_counted(path, files.layout)[1])
    return total.hexdigest()


def read_files(files: TableFiles, described: Description) -> Table:
    """All records, in file order: features float64 (n, columns) in own units, texts numbered.

    NaN stands for a cell that may be missing and is. Raises InputError, naming file, column and record: for a damaged
    file, another header, or a line of another length; and for a cell that is no number or none of the texts.
    """
    counts = [_counted(path, files.layout)[0] for path in files.paths]
    features = np.empty((sum(counts), len(described.schema)), order="F")  # filled, and later written, by column
    labels = np.empty(sum(counts), dtype=np.int64 if described.classes else np.float64)
    start = 0
    for path, count in zip(files.paths, counts, strict=True):
        cells = _cells(path, files.layout, described)
        if cells.num_rows != count:
            raise InputError(f"file {path}: has {count} lines of records, but {cells.num_rows} records can be read")
        for place, column in enumerate(described.schema):
            texts, blank = described.texts.get(column.name), column.missing is not None
            features[start : start + count, place] = _values(path, cells, column.name, texts, blank)
        labels[start : start + count] = _values(path, cells, described.label, described.classes or None, False)
        start += count
    return Table(features, labels)


def _matching(folder: Path, pattern: str) -> list[Path]:
    """Files of a name or pattern, sorted by name; a plain one precedes a gzipped one."""
    gzipped = {path.name.removesuffix(".gz"): path for path in folder.glob(f"{pattern}.gz") if path.is_file()}
    plain = {path.name: path for path in folder.glob(pattern) if path.is_file() and path.suffix != ".gz"}
    found = gzipped | plain
    return [found[name] for name in sorted(found)]


def _counted(path: Path, layout: FileLayout) -> tuple[int, bytes]:
    """Number of records of a file, and the digest of its lines."""
    lines, digest = scanned(path, _has_record)
    records = lines - bool(layout.headers)
    if records < 1:
        raise InputError(f"file {path}: has no records")
    return records, digest


def _has_record(line: bytes) -> bool:
    return line not in (b"\n", b"\r\n")


def _cells(path: Path, layout: FileLayout, described: Description) -> pa.Table:
    """The feature and label columns: numbers as float64, or all as text if a cell is no number."""
    _check_first_line(path, layout)
    texts = {*described.texts, *([described.label] if described.classes else [])}
    wanted = [*described.names, described.label]
    try:
        return _parsed(path, layout, {name: pa.string() if name in texts else pa.float64() for name in wanted})
    except pa.ArrowException:
        pass  # pyarrow's error does not name the record, so the cells are read again as text
    try:
        return _parsed(path, layout, dict.fromkeys(wanted, pa.string()))
    except (pa.ArrowException, UnicodeDecodeError):
        raise InputError(f"file {path}: is damaged or not CSV; it must be comma-separated UTF-8 text") from None


def _parsed(path: Path, layout: FileLayout, types: dict[str, pa.DataType]) -> pa.Table:
    """Parses columns of these types. Raises InputError for a line of another length."""
    beside = int(bool(layout.headers))
    refused: list[str] = []

    def refuse(row: pa.csv.InvalidRow) -> str:
        cells, right = row.actual_columns, len(layout.columns)
        refused.append(f"record {row.number - beside} has {cells} cells; it must have {right}")
        return "error"

    read = pa.csv.ReadOptions(column_names=list(layout.columns), skip_rows=beside, block_size=_BLOCK, use_threads=False)
    convert = pa.csv.ConvertOptions(
        include_columns=list(types), column_types=types, null_values=MISSING, strings_can_be_null=False
    )
    with opened(path) as file:
        try:
            return pa.csv.read_csv(file, read, pa.csv.ParseOptions(invalid_row_handler=refuse), convert)
        except pa.ArrowException:
            if not refused:
                raise
    raise InputError(f"file {path}: {refused[0]}")


def _check_first_line(path: Path, layout: FileLayout) -> None:
    """Raises InputError for a header that is not allowed, or a first record of another length."""
    with opened(path) as file:
        line = file.readline().decode("utf-8-sig", errors="replace")
    try:
        first = [cell.strip() for cell in next(csv.reader([line]), [])]
    except csv.Error:
        first = []
    if not layout.headers:
        if len(first) != len(layout.columns):
            raise InputError(
                f"file {path}: record 1 has {len(first)} cells; it must have {len(layout.columns)}, without a header"
            )
    elif tuple(first) not in layout.headers:
        right = "; or ".join(",".join(header) for header in layout.headers)
        raise InputError(f"file {path}: its first line must be {right}; it has {len(first)} cells: {quoted(first)}")


def _values(
    path: Path, cells: pa.Table, name: str, texts: tuple[str, ...] | None, may_be_missing: bool
) -> NDArray[np.float64]:
    """A column as finite numbers (n,), or numbers of its texts; NaN if it may be missing."""
    column = cells.column(name)
    if texts is None:
        values = numbers_or_nan(column)
    else:
        places = {text: float(place) for place, text in enumerate(texts)}
        values = by_cell(column, lambda cell: places.get(str(cell).strip(), np.nan))
    wrong = np.isnan(values)
    if may_be_missing and wrong.any():
        wrong &= by_cell(column, lambda cell: float(is_missing(cell))) == 0
    if wrong.any():
        at = int(np.argmax(wrong))
        cell = column[at].as_py()
        fault = "is missing" if is_missing(cell) else f"is {str(cell)[:40]!r}"
        more = "" if texts is None or len(texts) <= _NAMED else f" and {len(texts) - _NAMED} more"
        right = "a number" if texts is None else f"one of {', '.join(texts[:_NAMED])}{more}"
        raise InputError(f"file {path}: column {name!r} of record {at + 1} {fault}; it must be {right}")
    return values
