"""What is public of a table: its columns, each with the constants that scale it, its label, and how its files look."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedcore.data.schema import Column, Schema


@dataclass(frozen=True, kw_only=True)
class FileLayout:
    """Files of one table, as somebody publishes them: comma-separated, each plain or gzipped."""

    patterns: tuple[str, ...]
    """Names of the files, without .gz; all are needed. With a star: one or more, pooled in the order of their names."""
    columns: tuple[str, ...]
    """What is in each file, in order; what is neither feature nor label is left out."""
    headers: tuple[tuple[str, ...], ...] = ()
    """First lines that a file may have, in the order of `columns`; (): there is none, the first line is a record."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """A table whose columns are known to everybody: constants are written here once, and no run computes one."""

    label: str
    schema: Schema
    """Of the feature columns, in the order of the model's weights."""
    label_range: tuple[float, float] | None = None
    """Of a label that is a number; None: it has classes."""
    classes: tuple[str, ...] = ()
    """As the files name them, numbered from 0; (): the label is a number."""
    texts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Feature columns that are text in the files, with all that a cell may say, numbered from 0."""
    layouts: tuple[FileLayout, ...] = ()
    """Of its files, of which one has to be there; (): it comes with scikit-learn."""
    records: int | None = None
    """Of a table that comes with scikit-learn."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the feature columns."""
        return tuple(column.name for column in self.schema)


def standardised(constants: Mapping[str, tuple[float, float, float]]) -> Schema:
    """Columns from (centre, scale, limit)."""
    return tuple(Column(name=name, centre=c, scale=s, limit=limit) for name, (c, s, limit) in constants.items())


def counts(name: str, centre: float, scale: float, limit: float) -> Column:
    """A column of counts or sizes with a long tail: log(value + 1), of which `scale` is a factor."""
    return Column(name=name, centre=centre, scale=scale, limit=limit, log=True, plus=1)


def flag(name: str) -> Column:
    """A column of 0 and 1, which stays what it is."""
    return Column(name=name, centre=0, scale=1, limit=1)
