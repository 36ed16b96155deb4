"""Persons as the unit of privacy: each row's person, and equally many places for each person.

A data set is a list of persons in the order of their ids. Neighbouring data sets differ in all rows of one id. The
order of first appearance would not do: one person's earlier row would move others into other shards, or into the
held-out records.

Nothing may reveal a person's number of rows, neither shapes nor time. So each person takes the same number of
consecutive places, filled or not. A row's place matters, since it decides the rounding of its residual at a corner of
a loss. The person's first rows count, and rows beyond the places are left out without notice. This maps each person by
itself, with a public constant.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedcore.data.cells import Refusal, decoded, value_type, values_of
from fedcore.data.records import Records
from fedcore.data.texts.spellings import likeness, seems_number

PLACES = 10
"""Default number of places of a person."""
MOST_PLACES = 1000
"""Most places of a person; all persons have as many, filled or not."""


def persons_of(column: pa.ChunkedArray, name: str) -> NDArray[np.intp]:
    """Number of each row's person (rows,), from 0 in the order of the ids: numbers before texts.

    Cells that may name one person do (`fedcore.data.texts.spellings`), since a person counted as two would have a
    weaker guarantee. Raises Refusal if a cell names no person.
    """
    _refuse_lists(column, name)
    cells, places = values_of(column)
    ids = [likeness(cell) for cell in cells]
    if any(each is None for each in ids):
        raise Refusal(
            "missing-person",
            f"has a column {name!r} of persons with missing values; every row needs a person",
        )
    numbers = {value: number for number, value in enumerate(sorted(set(ids), key=_order))}
    return np.array([numbers[value] for value in ids], dtype=np.intp)[places]


@dataclass(frozen=True)
class Ids:
    """Spellings of persons in a column: facts about records, for their operator alone."""

    unnamed: int
    """Rows without a person."""
    merged: tuple[tuple[object, ...], ...]
    """The spellings of each person who has several, without blanks around them."""
    exponents: int
    """Distinct ids that look like numbers in exponent form and count as texts."""
    beyond: int
    """Rows with floats beyond the whole numbers that their precision represents exactly."""


def ids_of(column: pa.ChunkedArray, name: str) -> Ids:
    """Counts the spellings of persons in a column. Raises Refusal for a column of lists."""
    _refuse_lists(column, name)
    cells, places = values_of(column)
    spellings: dict[Hashable, set[object]] = defaultdict(set)
    for cell in cells:
        spellings[likeness(cell)].add(cell.strip() if isinstance(cell, str) else cell)
    unnamed = np.array([likeness(cell) is None for cell in cells], dtype=bool)[places].sum()
    several = [each for who, each in spellings.items() if who is not None and len(each) > 1]
    merged = tuple(tuple(sorted(each, key=repr)) for each in several)
    exponents, most = sum(map(seems_number, cells)), _WHOLE.get(str(value_type(column.type)), np.inf)
    large = np.array([isinstance(cell, float) and abs(cell) >= most for cell in cells], dtype=bool)[places].sum()
    return Ids(int(unnamed), merged, exponents, int(large))


_WHOLE = {"halffloat": 2.0**11, "float": 2.0**24, "double": 2.0**53}
"""By Arrow type, the first whole number whose successor the float cannot represent."""


def _refuse_lists(column: pa.ChunkedArray, name: str) -> None:
    if pa.types.is_nested(decoded(column).type):
        raise Refusal("missing-person", f"has a column {name!r} that holds lists; a person is a text or a number")


def _order(value: object) -> tuple[int, Any]:
    """Sort key of ids: numbers, then texts, then other values of a column."""
    if isinstance(value, int | Decimal):
        return 0, value
    return (1, value) if isinstance(value, str) else (2, str(value))


def count_persons(owners: NDArray[np.intp]) -> int:
    """Number of persons, which is public."""
    return int(owners.max(initial=-1)) + 1


def of_persons(rows: Records, owners: NDArray[np.intp], places: int, person: str) -> Records:
    """Rearranges rows into `places` per person: its first rows, in file order, then zeros.

    `owners` (rows,): as `persons_of` returns them. A person's m counted rows weigh 1/m each, rounded down, so that the
    weights add up to at most 1. An empty place weighs 0.
    """
    at = _places(owners, places)
    filled = at >= 0
    X, y = np.zeros((len(at), rows.dim)), np.zeros(len(at))
    X[filled], y[filled] = rows.X[at[filled]], rows.y[at[filled]]
    counted = filled.reshape(-1, places).sum(axis=1)
    weights = np.where(filled, np.repeat(_shares(places)[counted], places), 0.0)
    for array in (X, y, weights):
        array.setflags(write=False)
    # With one place all rows weigh 1, and sums equal those of records to the last bit.
    return replace(rows, X=X, y=y, person=person, places=places, weights=None if places == 1 else weights)


def beyond(owners: NDArray[np.intp], places: int) -> tuple[int, int]:
    """Numbers of persons with more rows than places, and of uncounted rows; not public."""
    more = np.bincount(owners) - places
    return int(np.count_nonzero(more > 0)), int(more[more > 0].sum())


def _places(owners: NDArray[np.intp], places: int) -> NDArray[np.intp]:
    """The row at each place (persons * places,), -1 at an empty one."""
    sizes = np.bincount(owners)
    order = np.argsort(owners, kind="stable")
    first = np.cumsum(sizes) - sizes
    rank = np.arange(len(owners)) - np.repeat(first, sizes)
    counted = rank < places
    at = np.full(len(sizes) * places, -1, dtype=np.intp)
    at[owners[order][counted] * places + rank[counted]] = order[counted]
    return at


def _shares(places: int) -> NDArray[np.float64]:
    """Weight of a row by its person's counted rows m: 1/m, or the float below if m/m > 1."""
    shares = np.zeros(places + 1)
    for m in range(1, places + 1):
        share = 1.0 / m
        shares[m] = share if Fraction(share) * m <= 1 else np.nextafter(share, 0.0)
    return shares
