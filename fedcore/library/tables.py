"""Features and labels from a Python caller's arrays, lists, DataFrames and Arrow tables.

Masks, dates, complex numbers and texts are refused, which NumPy would cast to numbers without a warning. Errors name
the silo and the column, never a cell.
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
"""Prefix of the names of columns without a name, before their number from 0."""

_EXACT = 2**53
"""Bound below which floats represent whole numbers exactly."""
_COMPLEX, _DATES, _DURATIONS, _TEXTS = "complex numbers", "dates", "durations", "texts"
KINDS = {"c": _COMPLEX, "M": _DATES, "m": _DURATIONS, "U": _TEXTS, "S": _TEXTS, "T": _TEXTS, "V": "fields of a record"}
"""Names of values that are no numbers, by kind of a NumPy dtype."""
_CELLS: Sequence[tuple[type | tuple[type, ...], str]] = (
    ((str, bytes), _TEXTS),
    ((complex, np.complexfloating), _COMPLEX),
    ((datetime.timedelta, np.timedelta64), _DURATIONS),
    ((datetime.date, datetime.time, np.datetime64), _DATES),
)
"""Names of values that are no numbers, by type of an object."""
_NESTED = (Collection, np.ndarray)


@dataclass(frozen=True, eq=False)
class Features:
    """Features `X` float64 (n, k), NaN for a missing cell; `names` (k,) of columns, or None.

    `index`: pandas's index of the rows; None if they have none.
    """

    X: Matrix
    names: tuple[str, ...] | None
    index: Any = None

    def check_finite(self, where: str) -> None:
        """Raises InputError, naming the first such column, if a cell is missing or infinite."""
        if (bad := np.flatnonzero(~np.isfinite(self.X).all(axis=0))).size:
            raise InputError(
                f"{where}: features have missing or infinite values in {self.column(int(bad[0]))}; fill them by a "
                "public rule, or leave that column out"
            )

    def column(self, place: int) -> str:
        """Name of a column in an error."""
        return f"column {place}" if self.names is None else f"column {self.names[place]!r}"


def features_of(where: str, value: Any, names: Sequence[str] | None = None, owner: str = "") -> Features:
    """The features (n, k) of an array, of lists of rows, or of a table with named columns.

    `names`: the columns that a table must have, in any order, and no other; the result has them in this order.
    `owner`: the holder of these columns, for errors. Raises InputError.
    """
    if issparse(value):
        raise InputError(f"{where}: features are a sparse matrix; give X.toarray()")
    frame = _frame(where, value, names, owner)
    if frame is not None:
        return frame
    X = _numbers(where, "features", value)
    if X.ndim != 2 or not X.size:
        raise InputError(f"{where}: features have the shape {X.shape}; wanted (n, k), a row for each record")
    return Features(X, None)


def labels_of(where: str, value: Any) -> tuple[npt.NDArray[Any], Any]:
    """The labels (n,), numbers or texts, None or NaN if missing; and their pandas index.

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


def _frame(where: str, value: Any, wanted: Sequence[str] | None, owner: str) -> Features | None:
    """The features of a table with named columns; None for any other object."""
    if (named := named_columns(where, value)) is None:
        return None
    names, columns = named
    if wanted is not None:
        check_names(where, names, wanted, owner)
    found = dict(zip(names, columns, strict=True))
    names = names if wanted is None else tuple(wanted)
    X = np.empty((len(value), len(names)))
    for place, name in enumerate(names):
        X[:, place] = _column(f"{where}: column {name!r}", found[name])
    return Features(X, names, getattr(value, "index", None))


def check_names(where: str, names: Sequence[str], wanted: Sequence[str], owner: str) -> None:
    """Raises InputError unless `names` are `wanted`, in any order; `owner`: their holder."""
    if missing := [each for each in wanted if each not in names]:
        raise InputError(f"{where}: column {missing[0]!r} of {owner} is not there")
    if more := [each for each in names if each not in wanted]:
        if len(more) == 1:
            raise InputError(f"{where}: column {more[0]!r} is not one of {owner}; drop it first")
        raise InputError(f"{where}: columns {quoted(more)} are not of {owner}; drop them first")


def named_columns(where: str, value: Any) -> tuple[tuple[str, ...], Iterable[Any]] | None:
    """Names and columns of a table; None for other objects. Raises InputError."""
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
    """The columns by position, since their names may be no texts."""
    return (frame.iloc[:, place] if hasattr(frame, "iloc") else frame[:, place] for place in range(count))


def _column(where: str, column: Any) -> Matrix:
    """One column of a table as float64 (n,), NaN for a missing cell. Raises InputError."""
    if isinstance(column, pa.Array | pa.ChunkedArray):
        column = _of_arrow(column)
    if hasattr(column, "isna"):  # missing cells of pandas's nullable columns are objects
        blank = np.asarray(column.isna())
        if blank.any() and column.dtype.kind not in "Mm":
            found = np.full(len(column), np.nan)
            found[~blank] = _numbers(where, "values", column[~blank])
            return found
    return _numbers(where, "values", column)


def _of_arrow(values: pa.Array | pa.ChunkedArray) -> Any:
    """The values as a pandas column, decoded: pandas refuses a dictionary with 0.0 and -0.0."""
    return decoded(pa.chunked_array([values]) if isinstance(values, pa.Array) else values).to_pandas()


def _numbers(where: str, what: str, values: Any) -> Matrix:
    """Numbers of any type as float64, None as NaN. Raises InputError for others."""
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
    """An array of one type from objects; None for a missing label. Raises InputError."""
    if (other := kind_of_objects(y)) not in (None, _TEXTS):
        raise InputError(f"{where}: labels are {other}; make them numbers or texts")
    if holder := next((each for each in set(map(type, y)) if issubclass(each, _NESTED) and each is not str), None):
        # Arrow would descend into a list that contains itself until the process crashes.
        raise InputError(f"{where}: labels are of type {holder.__name__}; make them numbers or texts")
    try:
        return np.asarray(pa.array(y, from_pandas=True).to_pandas())
    except (pa.ArrowException, TypeError, ValueError):
        raise InputError(f"{where}: labels are of several types; make all of them numbers, or texts") from None


def kind_of_objects(values: npt.NDArray[Any]) -> str | None:
    """The kind of the first objects that are no numbers (dates, texts, ...), or None."""
    types = {type(cell) for cell in values.flat}
    return next((other for kinds, other in _CELLS if any(issubclass(each, kinds) for each in types)), None)


def _masked(where: str, what: str) -> InputError:
    return InputError(f"{where}: {what} are masked; fill what is missing, or leave these records out")


def no_numbers(where: str, what: str, other: str, wanted: str = "numbers") -> InputError:
    return InputError(f"{where}: {what} are {other}; make {wanted} of them first")
