"""Features and labels as Python callers have them: arrays, lists, DataFrames, Arrow tables.

What NumPy would cast to numbers in silence is refused: masks, dates, complex numbers, texts. A sentence names the silo
and the column, and nothing that is in it.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy.sparse import issparse

from fedcore.arrays import Matrix
from fedcore.data.cells import decoded, quoted
from fedcore.errors import InputError
from fedcore.library.masks import is_masked

NUMBERED = "x"
"""How columns are named that have no name, with their number from 0."""

_EXACT = 2**53
"""Whole numbers below are floats without rounding."""
_COMPLEX, _DATES, _DURATIONS, _TEXTS = "complex numbers", "dates", "durations", "texts"
KINDS = {"c": _COMPLEX, "M": _DATES, "m": _DURATIONS, "U": _TEXTS, "S": _TEXTS, "T": _TEXTS, "V": "fields of a record"}
"""By kind of a NumPy dtype, what is no number."""
_CELLS: Sequence[tuple[type | tuple[type, ...], str]] = (
    ((str, bytes), _TEXTS),
    ((complex, np.complexfloating), _COMPLEX),
    ((datetime.timedelta, np.timedelta64), _DURATIONS),
    ((datetime.date, datetime.time, np.datetime64), _DATES),
)
"""By type of an object, what is no number."""
_NESTED = (Collection, np.ndarray)


@dataclass(frozen=True, eq=False)
class Features:
    """`X` float64 (n, k), NaN where a cell is missing; `names` (k,) of the columns, None where they have none.

    `index`: of pandas's rows; None where rows have none.
    """

    X: Matrix
    names: tuple[str, ...] | None
    index: Any = None

    def check_finite(self, where: str) -> None:
        """Raises InputError, naming the first column, where a cell is missing or infinite."""
        if (bad := np.flatnonzero(~np.isfinite(self.X).all(axis=0))).size:
            raise InputError(
                f"{where}: features have missing or infinite values in {self.column(int(bad[0]))}; fill them by a "
                "public rule, or leave that column out"
            )

    def column(self, place: int) -> str:
        """How a sentence calls it."""
        return f"column {place}" if self.names is None else f"column {self.names[place]!r}"


def features_of(where: str, value: Any, names: Sequence[str] | None = None, whose: str = "") -> Features:
    """The features (n, k) of an array, of lists of rows, or of a table with named columns.

    `names`: a table has these columns, those of `whose`, in any order, and no other; they come in this order. Raises
    InputError.
    """
    if issparse(value):
        raise InputError(f"{where}: features are a sparse matrix; give X.toarray()")
    frame = _frame(where, value, names, whose)
    if frame is not None:
        return frame
    X = _numbers(where, "features", value)
    if X.ndim != 2 or not X.size:
        raise InputError(f"{where}: features have the shape {X.shape}; wanted (n, k), a row for each record")
    return Features(X, None)


def labels_of(where: str, value: Any) -> tuple[npt.NDArray[Any], Any]:
    """The labels (n,), numbers or texts, None or NaN where one is missing; and pandas's index of them, or None.

    Raises InputError.
    """
    if isinstance(value, pa.Array | pa.ChunkedArray):
        value = _of_arrow(value)
    if is_masked(value):
        raise _masked(where, "labels")
    try:
        with np.errstate(all="ignore"):
            y = np.asarray(value)
    except Exception:
        raise InputError(f"{where}: labels are no array (n,) of numbers or texts") from None
    if y.ndim != 1 or not y.size:
        right = "one label for each record" + (", as y.ravel()" if y.ndim == 2 and y.shape[1] == 1 else "")
        raise InputError(f"{where}: labels have the shape {y.shape}; wanted (n,), {right}")
    if (other := KINDS.get(y.dtype.kind, _TEXTS)) != _TEXTS:
        raise InputError(f"{where}: labels are {other}; make them numbers or texts")
    if y.dtype.kind == "S":
        raise InputError(f"{where}: labels are bytes; make texts of them, as y.astype(str)")
    if y.dtype == object:
        y = _of_objects(where, y)
    if y.dtype == np.bool_ or (y.dtype.kind == "f" and np.all((y == np.round(y)) & (np.abs(y) < _EXACT))):
        y = y.astype(np.int64)
    return y, getattr(value, "index", None)


def _frame(where: str, value: Any, wanted: Sequence[str] | None, whose: str) -> Features | None:
    """The features of a table with named columns; None for anything else."""
    if (named := named_columns(where, value)) is None:
        return None
    names, columns = named
    if wanted is not None:
        check_names(where, names, wanted, whose)
    found = dict(zip(names, columns, strict=True))
    names = names if wanted is None else tuple(wanted)
    X = np.empty((len(value), len(names)))
    for place, name in enumerate(names):
        X[:, place] = _column(f"{where}: column {name!r}", found[name])
    return Features(X, names, getattr(value, "index", None))


def check_names(where: str, names: Sequence[str], wanted: Sequence[str], whose: str) -> None:
    """Raises InputError where a table has not the columns `wanted`, those of `whose`, in any order, and no other."""
    if missing := [each for each in wanted if each not in names]:
        raise InputError(f"{where}: column {missing[0]!r} of {whose} is not there")
    if more := [each for each in names if each not in wanted]:
        if len(more) == 1:
            raise InputError(f"{where}: column {more[0]!r} is not one of {whose}; drop it first")
        raise InputError(f"{where}: columns {quoted(more)} are not of {whose}; drop them first")


def named_columns(where: str, value: Any) -> tuple[tuple[str, ...], Iterable[Any]] | None:
    """Names and columns of a table, of which none is there twice, with a row at least; None for anything else."""
    if isinstance(value, Mapping):
        raise InputError(f"{where}: features are a dictionary; give a DataFrame or an array (n, k)")
    if isinstance(value, np.ndarray) or not (hasattr(value, "columns") or hasattr(value, "column_names")):
        return None
    if not hasattr(value, "__len__"):
        raise InputError(f"{where}: features are of type {type(value).__name__}; give a DataFrame or an array (n, k)")
    names = tuple(map(str, getattr(value, "column_names", None) or value.columns))
    if twice := [each for each in names if names.count(each) > 1]:
        raise InputError(f"{where}: column {twice[0]!r} is there twice")
    if not names or not len(value):
        raise InputError(f"{where}: features have the shape {(len(value), len(names))}; wanted a row for each record")
    return names, value.columns if hasattr(value, "column_names") else _columns(value, len(names))


def _columns(frame: Any, count: int) -> Iterable[Any]:
    """The columns by their places: names may be no texts."""
    return (frame.iloc[:, place] if hasattr(frame, "iloc") else frame[:, place] for place in range(count))


def _column(where: str, column: Any) -> Matrix:
    """One column of a table as float64 (n,), NaN where a cell is missing. Raises InputError."""
    if isinstance(column, pa.Array | pa.ChunkedArray):
        column = _of_arrow(column)
    if hasattr(column, "isna"):  # pandas: missing cells of nullable columns are objects
        blank = np.asarray(column.isna())
        if blank.any() and column.dtype.kind not in "Mm":
            found = np.full(len(column), np.nan)
            found[~blank] = _numbers(where, "values", column[~blank])
            return found
    return _numbers(where, "values", column)


def _of_arrow(values: pa.Array | pa.ChunkedArray) -> Any:
    """pandas's column of the values, whether they are in a dictionary or not: pandas refuses one with 0.0 and -0.0."""
    return decoded(pa.chunked_array([values]) if isinstance(values, pa.Array) else values).to_pandas()


def _numbers(where: str, what: str, values: Any) -> Matrix:
    """Numbers of any type as float64, None as NaN. Raises InputError for what is none."""
    if is_masked(values):
        raise _masked(where, what)
    if (other := KINDS.get(getattr(getattr(values, "dtype", None), "kind", ""))) is not None:
        raise no_numbers(where, what, other)
    try:
        with np.errstate(all="ignore"):
            found = np.asarray(values)
    except Exception:
        raise InputError(f"{where}: {what} are not an array of numbers") from None
    if (other := KINDS.get(found.dtype.kind)) is not None:
        raise no_numbers(where, what, other)
    if found.dtype == object:
        if found is not values and is_masked(found):  # in a column of a table
            raise _masked(where, what)
        if (other := kind_of_objects(found)) is not None:
            raise no_numbers(where, what, other)
        found = found.copy()
        found[np.array([cell is None for cell in found.flat], dtype=bool).reshape(found.shape)] = np.nan
    try:
        with np.errstate(over="ignore"):
            return np.array(found, dtype=np.float64)
    except OverflowError:
        raise InputError(f"{where}: {what} hold a whole number that is too large") from None
    except (TypeError, ValueError, RecursionError):
        raise InputError(f"{where}: {what} are not an array of numbers") from None


def _of_objects(where: str, y: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Labels that are objects, as an array of one type; None where they are missing. Raises InputError."""
    if (other := kind_of_objects(y)) not in (None, _TEXTS):
        raise InputError(f"{where}: labels are {other}; make them numbers or texts")
    if holder := next((each for each in set(map(type, y)) if issubclass(each, _NESTED) and each is not str), None):
        # Arrow would go down what holds itself until the process dies.
        raise InputError(f"{where}: labels are of type {holder.__name__}; make them numbers or texts")
    try:
        return np.asarray(pa.array(y, from_pandas=True).to_pandas())
    except (pa.ArrowException, TypeError, ValueError):
        raise InputError(f"{where}: labels are of several types; make all of them numbers, or texts") from None


def kind_of_objects(values: npt.NDArray[Any]) -> str | None:
    """What some of these objects are that is no number; None where there is nothing of the kind."""
    types = {type(cell) for cell in values.flat}
    return next((other for kinds, other in _CELLS if any(issubclass(each, kinds) for each in types)), None)


def _masked(where: str, what: str) -> InputError:
    return InputError(f"{where}: {what} are masked; fill what is missing, or leave these records out")


def no_numbers(where: str, what: str, other: str, wanted: str = "numbers") -> InputError:
    return InputError(f"{where}: {what} are {other}; make {wanted} of them first")
