"""Recognises the real format of a file that is no UTF-8 CSV or no Parquet; quotes nothing."""

from __future__ import annotations

import codecs
import csv
from collections.abc import Sequence

_BEGINNINGS: tuple[tuple[bytes, str], ...] = (
    (b"\xff\xfe\0\0", "text in UTF-32"),
    (b"\0\0\xfe\xff", "text in UTF-32"),
    (b"\xff\xfe", "text in UTF-16"),
    (b"\xfe\xff", "text in UTF-16"),
    (b"PAR1", "a Parquet file, whose name must end in .parquet"),
    (b"PK\x03\x04", "a ZIP archive, as spreadsheets (.xlsx) are"),
    (b"\xd0\xcf\x11\xe0", "a spreadsheet (.xls)"),
    (b"\x1f\x8b", "compressed (gzip)"),
    (b"BZh", "compressed (bzip2)"),
    (b"\xfd7zXZ", "compressed (xz)"),
    (b"\x28\xb5\x2f\xfd", "compressed (zstd)"),
    (b"$FL", "a file of SPSS (.sav)"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"ARROW1", "an Arrow file (Feather)"),
    (b"<", "HTML or XML"),
    (b"{", "JSON"),
    (b"[", "JSON"),
)
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
_HEAD_BYTES = 4096


def foreign(path: str, format: str) -> str | None:
    """Name of the file's real format, after "is"; None if unrecognised. Raises nothing."""
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return None
    if format == "parquet" and head.startswith(b"PAR1"):
        return None
    for beginning, what in _BEGINNINGS:
        if head.removeprefix(codecs.BOM_UTF8).lstrip().startswith(beginning) and (format, beginning) != ("csv", b"["):
            return what
    if len(head) > 3 and head.count(0) > len(head) // 4:
        return "text in UTF-16 or UTF-32, without its mark" if not any(head[0::2]) or not any(head[1::2]) else None
    if format == "parquet":
        return "text" if head and head.isascii() else None
    return None if _is_utf8(path) else "text in another encoding than UTF-8, Latin-1 or Windows-1252 most likely"


def separated(header: Sequence[str]) -> str | None:
    """Words for the separator of a first line if it seems to be no comma, else None."""
    if len(header) == 1 and "," in header[0]:
        return "nothing, as each line as a whole is in quotes"
    if header and header[0].lower().startswith("sep="):
        return "what its first line says (sep=..), a line that spreadsheets add; leave it out"
    found = [what for mark, what in _SEPARATORS.items() if any(mark in cell for cell in header)]
    return found[0] if found else None


def misshapen(path: str) -> str | None:
    """Fault of a UTF-8 text as a table, after "the file": longer rows, an open quote; or None."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, strict=True)
            width = len(next((row for row in rows if row), []))
            lengths = {(len(row), row[-1:] == [""]) for row in rows if row and len(row) != width}
    except csv.Error as error:
        if "unexpected end" in str(error):
            return "is damaged: a quote is opened in it and never closed"
        if "field larger" in str(error):
            return "has a cell of more than 131,072 characters: a quote is opened and not closed, most likely"
        return "has a quote within a cell that is not doubled"
    except (OSError, UnicodeDecodeError):
        return None
    if not lengths:
        return None
    fault = "has rows with another number of cells than its first line"
    if lengths == {(width + 1, True)}:
        return f"{fault}: its lines end in a comma, and the first one does not"
    if min(length for length, _ in lengths) > width:
        return f"{fault}: texts or decimals with commas need quotes"
    return fault


def _is_utf8(path: str) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with open(path, "rb") as file:
            while chunk := file.read(1 << 20):
                decoder.decode(chunk)
            decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    except OSError:
        return True
    return True
