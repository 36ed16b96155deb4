"""The table behind `fedcore advise`: conf/paper/five-way/table.json, made of the rows of all figures."""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from fedcore.advice.table import Row
from fedcore.bounded_file import read_within
from fedcore.errors import InputError
from flows.reproductions.reproduction import PAPERS

NAME = "table.json"
TABLE = PAPERS / "five-way" / NAME
_ROWS = TypeAdapter(tuple[Row, ...])


def read_table(path: Path = TABLE) -> tuple[Row, ...]:
    """The rows. Raises InputError for a file that is missing or damaged."""
    try:
        return _ROWS.validate_json(read_within(path))
    except FileNotFoundError:
        raise InputError(f"table {path} does not exist; `fedcore reproduce five-way` makes its rows") from None
    except (OSError, ValidationError):
        raise InputError(f"table {path} cannot be read; copy it again from fedcore") from None


def gathered(folder: Path) -> tuple[Row, ...]:
    """The rows of all figures in a reproduction's folder, by the names of the figures."""
    found: list[Row] = []
    for path in sorted(folder.glob("*/rows.json")):
        found += read_table(path)
    return tuple(found)


def as_bytes(rows: tuple[Row, ...]) -> bytes:
    """As the file holds them, a row on a line."""
    return b"[" + b",\n".join(row.model_dump_json().encode() for row in rows) + b"]\n"
