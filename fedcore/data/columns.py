"""Reads named columns of a CSV or Parquet file as float64; a `Refusal` quotes no cell.

CSV cells are read as text and converted column by column (`fedcore.data.cells`).
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from fedcore.data.cells import MISSING, Refusal, as_number, decoded, quoted
from fedcore.data.texts import dialects
from fedcore.data.texts.spellings import plain
from fedcore.losses import REALS, LabelSet
from fedcore.printable import control

_NUMERIC = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean)
_BLOCK = 1 << 24  # bytes of a CSV file parsed at a time; one row must fit


def count_rows(path: str, format: str, names: Sequence[str]) -> int:
    """Number of rows of a file; refuses one that does not have each of the columns `names` once."""
    with opened(path, format) as file:
        if format == "parquet":
            parquet = _parquet(file)
            _check_names(parquet.schema_arrow.names, names)
            return parquet.metadata.num_rows
        _check_names(csv_header(file), names, first_line=True)
        with native(path) as text, pa.csv.open_csv(text, **_csv_options(names[-1:])) as reader:
            return sum(batch.num_rows for batch in reader)


def header(path: str, format: str) -> dict[str, str]:
    """The file's columns in order with types: pyarrow's, or "text or number" for CSV.

    Raises Refusal, also for a first line with numbers or empty cells. Such a line is a record, so no error quotes it.
    """
    with opened(path, format) as file:
        if format == "parquet":
            found = [(field.name, str(field.type)) for field in _parquet(file).schema_arrow]
        else:
            found = [(name, "text or number") for name in csv_header(file)]
    names = [name for name, _ in found]
    if format == "csv" and len(names) == 1 and (by := dialects.separated(names)) is not None:
        raise Refusal("missing-column", f"cannot be used: its cells are separated by {by}; write commas")
    if not names or any(as_number(name) is not None or not name.strip() for name in names):
        raise Refusal(
            "missing-column", "cannot be used: its first line must name every column; it holds numbers or empty cells"
        )
    if any(control(name) is not None for name in names):
        raise Refusal("missing-column", "cannot be used: a column's name holds a control character; rename it")
    _check_names(names, list(dict(found)))
    return dict(found)


def types_of(path: str, format: str) -> dict[str, pa.DataType]:
    """Types of a Parquet file's columns by name (the last of equal names); empty for CSV."""
    if format != "parquet":
        return {}
    with opened(path, format) as file:
        return {field.name: field.type for field in _parquet(file).schema_arrow}


def read_columns(path: str, format: str, names: Sequence[str], only: str | None = None) -> pa.Table:
    """The columns `names` of a file, each there once; rows in file order, CSV cells as text.

    `only`: the single column to read; None: all.
    """
    read = list(names) if only is None else [only]
    with opened(path, format) as file:
        if format == "parquet":
            parquet = _parquet(file)
            _check_names(parquet.schema_arrow.names, names)
            return parquet.read(columns=read, use_threads=False)
        _check_names(csv_header(file), names, first_line=True)
        with native(path) as text:
            return pa.csv.read_csv(text, **_csv_options(read))


def feature_matrix(table: pa.Table, names: Sequence[str]) -> NDArray[np.float64]:
    """Columns `names` as a finite matrix (n, d). Raises Refusal for other cells."""
    out = np.empty((table.num_rows, len(names)), order="F")  # filled column by column
    texts: list[str] = []
    holes: list[str] = []
    for j, name in enumerate(names):
        try:
            out[:, j] = _numbers(table.column(name))
        except Refusal as refusal:
            (texts if refusal.code == "not-numeric" else holes).append(name)
        else:
            if not np.isfinite(out[:, j]).all():
                holes.append(name)
    if texts:
        raise Refusal(
            "not-numeric",
            f"has feature column(s) {quoted(texts)} that are not numeric; "
            "name numeric columns in data.features, or encode these by a public rule",
        )
    if holes:
        raise Refusal(
            "missing-value",
            f"has feature column(s) {quoted(holes)} that hold missing or non-finite values; "
            "fix or impute them by a public rule",
        )
    return out


def real_label(table: pa.Table, name: str, fitting: LabelSet = REALS) -> NDArray[np.float64]:
    """Column `name` as finite labels (n,) of the set `fitting`. Raises Refusal for others."""
    try:
        labels = _numbers(table.column(name))
    except Refusal as refusal:
        if refusal.code == "not-numeric":
            raise Refusal(
                "not-numeric",
                f"has a label column {name!r} that is not numeric; for two classes name them in data.classes",
            ) from None
        labels = np.array([np.nan])
    if not np.isfinite(labels).all():
        raise Refusal(
            "missing-label",
            f"has a label column {name!r} that holds missing or non-finite values; every record needs a finite label",
        )
    if not fitting.contains(labels).all():
        raise Refusal(
            "unknown-label",
            f"has a label column {name!r} that holds other values than {fitting.name}, as the loss takes",
        )
    return labels


@contextmanager
def opened(path: str, format: str) -> Iterator[BinaryIO]:
    """Opens the file at `path`; a failure becomes a Refusal without the error's text.

    The Refusal names the file's real format where `dialects` recognises it.
    """
    kind = "CSV" if format == "csv" else "Parquet"
    try:
        with open(path, "rb") as file:
            yield file
    except (FileNotFoundError, NotADirectoryError):
        raise Refusal("missing-file", "does not exist") from None
    except (pa.ArrowException, UnicodeError, csv.Error, EOFError):
        right = "comma-separated UTF-8 text with one header line" if format == "csv" else "a whole Parquet file"
        what = dialects.foreign(path, format)
        shape = dialects.misshapen(path) if what is None and format == "csv" else None
        fault = f"is {what}" if what is not None else shape or f"is empty, damaged or not {kind}"
        raise Refusal("unreadable-file", f"{fault}; it must be {right}") from None
    except OSError as error:  # pyarrow raises it too, with its own text and without errno
        reason = error.strerror if error.errno else f"damaged or not {kind}"
        raise Refusal("unreadable-file", f"cannot be read ({reason})") from None


def _parquet(file: BinaryIO) -> pa.parquet.ParquetFile:
    """The reader, without threads: one holding `file` at the interpreter's end aborts it."""
    return pa.parquet.ParquetFile(file, pre_buffer=False)


def native(path: str) -> pa.NativeFile:
    """Opens a file in pyarrow itself, whose CSV parser always reads ahead in a thread.

    A thread that holds a Python file at the interpreter's end would abort it.
    """
    return pa.OSFile(path, "rb")


def _csv_options(names: Sequence[str]) -> dict[str, object]:
    return {
        "read_options": pa.csv.ReadOptions(use_threads=False, block_size=_BLOCK),
        "parse_options": pa.csv.ParseOptions(newlines_in_values=True),
        "convert_options": pa.csv.ConvertOptions(
            include_columns=list(names), column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
        ),
    }


def csv_header(file: BinaryIO) -> list[str]:
    """Cells of the first nonempty line; rewinds `file`. Raises UnicodeError, csv.Error."""
    text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
    try:
        header = next((row for row in csv.reader(text, strict=True) if row), [])
        text_of_header = "".join(header)
        text_of_header.encode()  # the rest of the file may have another encoding in columns that are not read
        if "\0" in text_of_header:
            raise UnicodeError("null characters, as in UTF-16")
        return header
    finally:
        text.detach()
        file.seek(0)


def _check_names(header: list[str], names: Sequence[str], first_line: bool = False) -> None:
    """Refuses a header that lacks one of `names` or has it twice.

    The first line of a CSV file without a header is a record. So an error shows the cells that are among `names`, and
    others only if they are no numbers and the line has one of `names`.
    """
    found = Counter(header)
    missing = [name for name in names if name not in found]
    alike = {plain(cell) for cell in header}
    if first_line and not header:
        raise Refusal("missing-column", "is empty; it must have a comma-separated header in its first line")
    if missing and all(plain(name) in alike for name in missing):
        raise Refusal(
            "missing-column",
            f"has no column {quoted(missing)}, except with other capitals or blanks, or in another Unicode form",
        )
    by = dialects.separated(header) if first_line and missing else None
    seems = "" if by is None else f"; its cells seem to be separated by {by}"
    if first_line and len(missing) == len(set(names)):
        raise Refusal(
            "missing-column",
            f"has none of the columns {quoted(names)} in its first line, which must be a comma-separated header{seems}",
        )
    if missing:
        shown = [cell for cell in header if cell in names or not (first_line and as_number(cell) is not None)]
        raise Refusal("missing-column", f"has no column {quoted(missing)}; it has {quoted(shown)}")
    repeated = [name for name in names if found[name] > 1]
    if repeated:
        raise Refusal("repeated-column", f"has column {quoted(repeated)} more than once; rename all but one")


def _numbers(column: pa.ChunkedArray) -> NDArray[np.float64]:
    """The column as float64 (n,); parses text. Refuses missing cells and other values."""
    column = decoded(column)
    kind = column.type
    if column.null_count or pa.types.is_null(kind):
        raise Refusal("missing-value", "")
    if pa.types.is_string(kind):
        column = pc.utf8_trim_whitespace(column)
        if pc.any(pc.is_in(column, value_set=pa.array(MISSING))).as_py():
            raise Refusal("missing-value", "")
    elif not any(is_kind(kind) for is_kind in _NUMERIC):
        raise Refusal("not-numeric", "")
    try:
        return column.cast(pa.float64(), safe=False).to_numpy().astype(np.float64, copy=False)
    except pa.ArrowException:
        raise Refusal("not-numeric", "") from None
