"""Published results as CSV: a line for each trial at each place of a figure, and one for the mean over trials."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import cast, get_args

from fedcore.bounded_file import read_within
from fedcore.errors import InputError
from studies.results.measured import Measured, Place, SpreadOf
from tasks.result_file import write_atomically

COLUMNS = (
    *("figure", "measure", "curve", "panel", "key", "at"),
    *("seed", "repetition", "trials", "value", "spread", "spread_of"),
)
LARGEST = 2**25
"""Largest file in bytes; 30 trials of ten methods at five epsilons in 24 figures take about 3 MB."""
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]\d+)?")
_COUNT = re.compile(r"\d{1,15}")
_TEXT = re.compile(r"[\w(.-][\x20-\x7e]{0,200}", re.ASCII)


def as_csv(rows: Iterable[Measured]) -> str:
    """The rows as CSV with a header line."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        values = asdict(row.place) | {name: getattr(row, name) for name in COLUMNS[6:]}
        writer.writerow({name: "" if value is None else value for name, value in values.items()})
    return out.getvalue()


def write_results(path: Path, rows: Iterable[Measured]) -> None:
    """Writes the file after it is checked as when read. Raises InputError for invalid rows."""
    text = as_csv(rows)
    _rows(text, path)
    write_atomically(path, text.encode())


def read_results(path: Path) -> tuple[Measured, ...]:
    """The rows of a file.

    Raises InputError, which names the line, for other columns, texts beyond printable ASCII, numbers that are not
    finite, and a place twice.
    """
    try:
        text = read_within(path, LARGEST).decode("ascii")
    except FileNotFoundError:
        raise InputError(f"results {path} do not exist") from None
    except OSError as error:
        raise InputError(f"results {path} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(f"results {path} are not ASCII") from None
    return _rows(text, path)


def _rows(text: str, path: Path) -> tuple[Measured, ...]:
    reader = csv.reader(io.StringIO(text), strict=True)
    found: dict[tuple[Place, int | None, int | None], Measured] = {}
    try:
        if tuple(next(reader, ())) != COLUMNS:
            raise InputError(f"results {path}: the columns must be {', '.join(COLUMNS)}")
        for values in reader:
            where = f"results {path}, line {reader.line_num}"
            if len(values) != len(COLUMNS):
                raise InputError(f"{where}: {len(values)} values, and there are {len(COLUMNS)} columns")
            row = _row(dict(zip(COLUMNS, values, strict=True)), where)
            if found.setdefault((row.place, row.seed, row.repetition), row) is not row:
                raise InputError(f"{where}: a second value of {row.place.words}")
    except csv.Error as error:
        raise InputError(f"results {path}, line {reader.line_num}: {error}") from None
    if not found:
        raise InputError(f"results {path}: no line")
    return tuple(found.values())


def _row(values: dict[str, str], where: str) -> Measured:
    for name in COLUMNS[:6]:
        if not (values[name] == "" and name in ("panel", "key", "at")) and not _TEXT.fullmatch(values[name]):
            raise InputError(f"{where}: {name} must be printable ASCII of at most 201 characters")
    value, spread, spread_of = values["value"], values["spread"], values["spread_of"]
    _finite(value, "value", where)
    if spread_of not in get_args(SpreadOf) or (spread == "") != (spread_of == ""):
        raise InputError(f"{where}: spread_of must say what spread is: {', '.join(get_args(SpreadOf)[1:])}")
    if spread and _finite(spread, "spread", where) < 0:
        raise InputError(f"{where}: spread = {spread} must be at least 0")
    seed, repetition, trials = (_count(values[name], name, where) for name in ("seed", "repetition", "trials"))
    if trials is None or trials < 1 or (seed is not None and trials > 1) or (seed is None and repetition is not None):
        raise InputError(f"{where}: trials must be at least 1, and 1 beside a seed; a repetition needs a seed")
    place = Place(*(values[name] for name in COLUMNS[:6]))
    return Measured(place, value, seed, repetition, trials, spread, cast(SpreadOf, spread_of))


def _finite(text: str, name: str, where: str) -> float:
    if len(text) > 40 or not _NUMBER.fullmatch(text) or not math.isfinite(float(text)):
        raise InputError(f"{where}: {name} = {text[:40]!r} must be a finite number")
    return float(text)


def _count(text: str, name: str, where: str) -> int | None:
    if text and not _COUNT.fullmatch(text):
        raise InputError(f"{where}: {name} = {text[:40]!r} must be a whole number, at least 0")
    return int(text) if text else None
