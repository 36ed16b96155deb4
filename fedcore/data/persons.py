"""Persons as the unit of privacy: whose each row of a file is, and the same public number of places for each of them.

A data set is a list of persons, in the order of their ids; neighbours replace all rows of one id by any others. So no
person's place in the list depends on where another's rows stand in the file, as it would by first appearance: whoever
came a day earlier would move those between into other shards, or among those held out. And nothing may tell how many
rows a person has: each takes the same number of places, one after the other, whatever it fills of them, since at a
corner of a loss a row's place in a product decides its residual, and a shape is seen in time. Its first rows count,
those beyond the places are left out in silence: a map of each person by itself with a public constant.
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
"""Of a person, unless the config says otherwise."""
MOST_PLACES = 1000
"""Of a person: all persons have as many, filled or not."""


def persons_of(column: pa.ChunkedArray, name: str) -> NDArray[np.intp]:
    """Whose each row is (rows,), as numbers from 0 in the order of the ids: numbers before texts.

    Two cells name one person if they may (`fedcore.data.texts.spellings`): a person in two would have less than the
    guarantee. Raises Refusal where a cell names nobody.
    """
    _refuse_lists(column, name)
    cells, places = values_of(column)
    ids = [likeness(cell) for cell in cells]
    if any(each is None for each in ids):
        raise Refusal(
            "missing-person",
            f"has a column {name!r} of persons with missing values; every row needs the person whose it is",
        )
    numbers = {value: number for number, value in enumerate(sorted(set(ids), key=_order))}
    return np.array([numbers[value] for value in ids], dtype=np.intp)[places]


@dataclass(frozen=True)
class Ids:
    """How a column spells persons: facts about records, for their operator alone."""

    unnamed: int
    """Rows without a person."""
    merged: tuple[tuple[object, ...], ...]
    """Spellings that are one person, of each person who has several; blanks around them are none of their own."""
    exponents: int
    """Different ids that could be numbers in exponent form, and are the texts that they are."""
    beyond: int
    """Rows with floats so large that a float of their precision no longer tells whole numbers apart."""


def ids_of(column: pa.ChunkedArray, name: str) -> Ids:
    """How the column of persons spells them. Raises Refusal for a column of lists."""
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
"""The first whole number whose next one a float cannot hold."""


def _refuse_lists(column: pa.ChunkedArray, name: str) -> None:
    if pa.types.is_nested(decoded(column).type):
        raise Refusal("missing-person", f"has a column {name!r} that holds lists; a person is a text or a number")


def _order(value: object) -> tuple[int, Any]:
    """A key by which all ids of a file can be sorted: numbers, then texts, then what else a column can hold."""
    if isinstance(value, int | Decimal):
        return 0, value
    return (1, value) if isinstance(value, str) else (2, str(value))


def count_persons(whose: NDArray[np.intp]) -> int:
    """How many persons there are: public."""
    return int(whose.max(initial=-1)) + 1


def of_persons(rows: Records, whose: NDArray[np.intp], places: int, person: str) -> Records:
    """The records (rows) as those of persons, `places` for each: a person's first rows, in file order, then zeros.

    `whose` (rows,): as `persons_of` returns it. A row that counts weighs one over the number of its person's rows that
    count, rounded down, so that a person's weights add up to at most 1; a place that is not filled weighs 0.
    """
    at = _places(whose, places)
    filled = at >= 0
    X, y = np.zeros((len(at), rows.dim)), np.zeros(len(at))
    X[filled], y[filled] = rows.X[at[filled]], rows.y[at[filled]]
    counted = filled.reshape(-1, places).sum(axis=1)
    weights = np.where(filled, np.repeat(_shares(places)[counted], places), 0.0)
    for array in (X, y, weights):
        array.setflags(write=False)
    # With one place all weigh 1, and sums are those of records to the last bit.
    return replace(rows, X=X, y=y, person=person, places=places, weights=None if places == 1 else weights)


def beyond(whose: NDArray[np.intp], places: int) -> tuple[int, int]:
    """How many persons have more rows than places, and how many rows do not count. For the records' operator alone."""
    more = np.bincount(whose) - places
    return int(np.count_nonzero(more > 0)), int(more[more > 0].sum())


def _places(whose: NDArray[np.intp], places: int) -> NDArray[np.intp]:
    """The row at each place (persons * places,), -1 where none is."""
    sizes = np.bincount(whose)
    order = np.argsort(whose, kind="stable")
    first = np.cumsum(sizes) - sizes
    rank = np.arange(len(whose)) - np.repeat(first, sizes)
    kept = rank < places
    at = np.full(len(sizes) * places, -1, dtype=np.intp)
    at[whose[order][kept] * places + rank[kept]] = order[kept]
    return at


def _shares(places: int) -> NDArray[np.float64]:
    """What a row weighs, by the number of rows that count (0 to places): 1/m, m times which is at most 1 exactly."""
    shares = np.zeros(places + 1)
    for m in range(1, places + 1):
        share = 1.0 / m
        shares[m] = share if Fraction(share) * m <= 1 else np.nextafter(share, 0.0)
    return shares
