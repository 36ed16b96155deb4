"""The rows of `fedcore advise`: rows.json, published by the study `five-way`."""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from fedcore.advice.table import Row
from fedcore.bounded_file import read_within
from fedcore.errors import InputError

ROWS = Path(__file__).with_name("rows.json")
PROVENANCE = Path(__file__).with_name("rows.provenance.json")
"""Provenance of the rows, in the form of studies/results/provenance.py."""
_ROWS = TypeAdapter(tuple[Row, ...])


def advice_rows(path: Path = ROWS) -> tuple[Row, ...]:
    """The rows of a file. Raises InputError for a file that is missing or damaged."""
    try:
        return _ROWS.validate_json(read_within(path))
    except FileNotFoundError:
        raise InputError(f"table {path} does not exist; install fedcore again") from None
    except (OSError, ValidationError):
        raise InputError(f"table {path} cannot be read; copy it again from fedcore") from None


def as_bytes(rows: tuple[Row, ...]) -> bytes:
    """The rows as the bytes of such a file: JSON, one row on a line."""
    return b"[" + b",\n".join(row.model_dump_json().encode() for row in rows) + b"]\n"
