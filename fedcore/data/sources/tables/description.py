"""Public description of a table: its columns with constants, its label, its files' layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedcore.data.schema import Column, Schema


@dataclass(frozen=True, kw_only=True)
class FileLayout:
    """One published form of a table's files: comma-separated, each plain or gzipped."""

    patterns: tuple[str, ...]
    """Names of the files, without .gz; all are needed. With a star: one or more, pooled in the order of their names."""
    columns: tuple[str, ...]
    """Columns of each file, in order; those that are neither feature nor label are left out."""
    headers: tuple[tuple[str, ...], ...] = ()
    """Allowed first lines of a file, in the order of `columns`; (): the first line is a record."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """A table with public columns. Its constants are written here once; no run computes one."""

    label: str
    schema: Schema
    """Schema of the feature columns, in the order of the model's weights."""
    label_range: tuple[float, float] | None = None
    """Range of a label that is a number; None: it has classes."""
    classes: tuple[str, ...] = ()
    """Classes by their names in the files, numbered from 0; (): the label is a number."""
    texts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Feature columns that are text in the files, with all possible cells, numbered from 0."""
    layouts: tuple[FileLayout, ...] = ()
    """Published forms of its files, of which one suffices; (): a table of scikit-learn."""
    records: int | None = None
    """Number of records of a table of scikit-learn."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the feature columns."""
        return tuple(column.name for column in self.schema)


def standardised(constants: Mapping[str, tuple[float, float, float]]) -> Schema:
    """Columns from (centre, scale, limit)."""
    return tuple(Column(name=name, centre=c, scale=s, limit=limit) for name, (c, s, limit) in constants.items())


def counts(name: str, centre: float, scale: float, limit: float) -> Column:
    """A column of counts or sizes with a long tail: log(value + 1), with factor `scale`."""
    return Column(name=name, centre=centre, scale=scale, limit=limit, log=True, plus=1)


def flag(name: str) -> Column:
    """A column of 0 and 1, which stays unchanged."""
    return Column(name=name, centre=0, scale=1, limit=1)
