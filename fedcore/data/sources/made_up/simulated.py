"""Silos made up from public facts: numbers of records, columns, assumed signal and heterogeneity.

They stand for silos with unseen records: trying settings on them has no privacy cost.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedcore.data.schema import Column, Schema
from fedcore.data.sources.made_up.assumed import Assumptions, Made, made_up
from fedcore.data.sources.streams import silo_names
from fedcore.data.table import Generated, Table
from fedcore.data.tabular import Tabular
from fedcore.draws.elementary import exp, log
from fedcore.hyperparameters import Count
from fedcore.limits import MOST_CELLS, MOST_SILOS
from fedcore.planning.problem import SiloFacts

LABEL = "label"
Records = Annotated[Count, Field(le=MOST_CELLS)]


class SimulatedData(Tabular):
    """Made-up silos with real columns. Columns that are only named are numbers from 0 to 1."""

    source: Literal["simulated"] = "simulated"
    silos: Count = Field(25, ge=1, le=MOST_SILOS)
    records: Annotated[tuple[Records, ...], Field(max_length=MOST_SILOS)] | Records = 400
    """Records of each silo: one number, or a list by silo."""
    test_records: Records = Field(2000, ge=1)
    classes: Count | None = Field(2, ge=2, le=1000)
    """Classes of the label; null: a real label from -1 to 1."""
    assumed: Assumptions = Assumptions()
    """Assumptions about signal, heterogeneity, correlation and missing values."""

    @model_validator(mode="after")
    def _can_be_made(self) -> Self:
        if isinstance(self.records, tuple) and len(self.records) != self.silos:
            raise ValueError(f"data.records lists {len(self.records)} silos, and data.silos = {self.silos}")
        for n in self.sizes.values():
            if n < 2:
                raise ValueError(f"data.records = {n}: a silo needs at least 2")
        for column in self.described or ():
            for value in column.categories or ():
                if isinstance(value, str):
                    raise ValueError(f"data.features.{column.name}: made-up categories are numbers, not {value!r}")
        return self

    @property
    def sizes(self) -> dict[str, int]:
        """Records of each silo, by name and in order."""
        listed = self.records if isinstance(self.records, tuple) else (self.records,) * self.silos
        return dict(zip(silo_names(self.silos), listed, strict=True))

    @property
    def label_values(self) -> tuple[int, ...] | None:
        """The classes, in the order of their numbers; None for a real label."""
        return None if self.classes is None else tuple(range(self.classes))

    @property
    def label_range(self) -> tuple[float, float] | None:
        """Range of a real label; None for classes."""
        return (-1.0, 1.0) if self.classes is None else None


def simulated(data: SimulatedData, seed: int) -> Generated:
    """Raw records that the schema maps to those of `made_up`; missing values are NaN."""
    schema = data.described or tuple(Column(name=name, range=(0.0, 1.0)) for name in data.column_names)
    facts = [SiloFacts(name, n) for name, n in data.sizes.items()]
    silos, test = made_up(schema, facts, data.classes, data.assumed, data.test_records, seed)
    tables = {name: _table(made, schema, data.classes) for name, made in silos.items()}
    return Generated(data.column_names, LABEL, tables, _table(test, schema, data.classes))


def _table(made: Made, schema: Schema, classes: int | None) -> Table:
    starts = np.cumsum([0, *(len(column.names) for column in schema)])
    blocks = (made.features[:, start : start + len(c.names)] for c, start in zip(schema, starts[:-1], strict=True))
    columns = [_raw(column, block) for column, block in zip(schema, blocks, strict=True)]
    labels = made.labels if classes is None else made.labels.astype(np.int64)
    return Table(np.stack(columns, axis=1), labels)


def _raw(column: Column, features: NDArray[np.float64]) -> NDArray[np.float64]:
    """The column (n,) in its own units that the schema maps to these features (n, len(names))."""
    if column.categories is not None:
        values = np.array([float(value) for value in column.categories])
        ones = features[:, : len(values)]
        return np.where(ones.any(axis=1), values[ones.argmax(axis=1)], np.nan)
    unit = features[:, 0]
    if column.range is not None:
        low, high = log(np.array(column.range)) if column.log else np.array(column.range)
        inner = low + (unit + 1.0) / 2.0 * (high - low)
        raw = exp(inner) if column.log else inner
    else:
        centre, scale = float(column.centre or 0.0), float(column.scale or 1.0)
        grown = exp(unit * log(np.array(scale))) if column.log else unit
        raw = (centre + column.plus) * grown - column.plus if column.log else centre + unit * scale
    return np.where(features[:, -1] == 1.0, np.nan, raw) if column.marked else raw
