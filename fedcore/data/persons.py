"""Persons as the unit of privacy: whose each row of a file is, and the same public number of places for each of them.

A data set is a list of persons, in the order of their ids; neighbours replace all rows of one id by any others. So no
person's place in the list depends on where another's rows stand in the file, as it would by first appearance: whoever
came a day earlier would move those between into other pieces, or among those held out. And nothing may tell how many
rows a person has: each takes the same number of places, one after the other, whatever it fills of them, since at a
corner of a loss a row's place in a product decides its residual, and a shape is seen in time. Its first rows count,
those beyond the places are left out in silence: a map of each person by itself with a public constant.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from numbers import Number
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedcore.data.cells import Refusal, decoded, identity, is_missing
from fedcore.data.records import Records

PLACES = 10
"""Of a person, unless the config says otherwise."""
MOST_PLACES = 1000
"""Of a person: all persons have as many, filled or not."""


def persons_of(column: pa.ChunkedArray, name: str) -> NDArray[np.intp]:
    """Whose each row is (rows,), as numbers from 0 in the order of the ids: numbers before texts.

    Two cells name one person if they are one value, as 1, 1.0 and "1" are. Raises Refusal where a cell names nobody.
    """
    column = decoded(column)
    if pa.types.is_nested(column.type):
        raise Refusal("missing-person", f"has a column {name!r} that holds lists; a person is a text or a number")
    values = column.combine_chunks().dictionary_encode(null_encoding="encode")
    cells = values.dictionary.to_pylist()
    if any(is_missing(cell) for cell in cells):
        raise Refusal(
            "missing-person",
            f"has a column {name!r} of persons with missing values; every row needs the person whose it is",
        )
    ids = [identity(cell) for cell in cells]
    numbers = {value: number for number, value in enumerate(sorted(set(ids), key=_order))}
    number = np.array([numbers[value] for value in ids], dtype=np.intp)
    return number[values.indices.to_numpy(zero_copy_only=False)]


def _order(value: object) -> tuple[int, Any]:
    """A key by which all ids of a file can be sorted: numbers, then texts, then what else a column can hold."""
    if isinstance(value, Number):
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


def beyond(whose: NDArray[np.intp], places: int) -> int:
    """How many persons have more rows than places. A fact about records: for their operator alone."""
    return int(np.count_nonzero(np.bincount(whose) > places))


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
