"""Tables with a real label, split into silos by the label's size (Lowy and Razaviyayn).

Source: Lowy and Razaviyayn 2023, the experiment on medical insurance charges (spec isrl-dp-fl, 9.2 and 9.3). Records
are sorted by label and cut into N groups of ceil(n / N), the rest last, so silos differ as much as possible. Labels
thereby decide which silo holds a record, and the guarantee holds given that. Unlike in the paper's script all silos
standardise by the same constants, which are fixed in advance and come from no silo's records.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from fedcore.data.schema import Column, Schema
from fedcore.data.sources import insurance
from fedcore.data.sources.streams import silo_names, stream
from fedcore.data.table import Generated, Table
from fedcore.errors import InputError
from fedcore.hyperparameters import Count, Real, Section
from fedcore.limits import MOST_SILOS
from fedcore.paths import LocalPath

TableName = Literal["diabetes", "insurance"]

_SPLIT = 110  # purpose of random streams
_DIABETES_RECORDS = 442


class RegressionData(Section):
    """A public table with a real label, split into silos by the label's size."""

    source: Literal["regression"] = "regression"
    table: TableName = "diabetes"
    """diabetes: scikit-learn's, 442 records, without a file; insurance: `insurance.csv` in `folder`."""
    folder: LocalPath | None = None
    """With table insurance: folder of its file; relative paths start at the working folder."""
    silos: Count = Field(5, ge=1, le=MOST_SILOS)
    """N: groups of ceil(n / N) records, the rest in the last one."""
    test_fraction: Real = Field(0.2, gt=0, lt=1)
    """Part of each silo's records set aside, rounded up; the union over silos is the public test set."""

    @property
    def label_values(self) -> None:
        """None: the label is a number."""
        return None

    @property
    def label_range(self) -> tuple[float, float]:
        """Public range of the label, which is clipped to it and mapped to -1 to 1 for training."""
        return TABLES[self.table].label_range

    @property
    def described(self) -> Schema:
        """Schema of the feature columns, with public constants."""
        return TABLES[self.table].schema

    @model_validator(mode="after")
    def _folder_fits_table(self) -> RegressionData:
        if self.table == "insurance" and self.folder is None:
            raise ValueError(f"data.folder is missing: table insurance needs the folder that has {insurance.FILE}")
        if self.table == "diabetes" and self.folder is not None:
            raise ValueError("data.folder has no meaning with data.table = diabetes, which needs no file: leave it out")
        return self


@dataclass(frozen=True)
class RegressionTable:
    """Public description of a table: its columns with their constants, and the label's range."""

    label: str
    label_range: tuple[float, float]
    schema: Schema


def _standardised(constants: Mapping[str, tuple[float, float, float]]) -> Schema:
    """Columns from (centre, scale, limit)."""
    return tuple(Column(name=name, centre=c, scale=s, limit=limit) for name, (c, s, limit) in constants.items())


# Round numbers of the usual size of such columns; categories and numbers of children stay unchanged. The range of
# charges is symmetric, so that a model of zeros predicts 0, as in the paper.
TABLES: dict[TableName, RegressionTable] = {
    "insurance": RegressionTable(
        insurance.LABEL,
        (-65_000.0, 65_000.0),
        _standardised(
            {
                "age": (40, 14, 2),
                "sex": (0, 1, 1),
                "bmi": (30, 6, 4),
                "children": (0, 1, 5),
                "smoker": (0, 1, 1),
                "region": (0, 1, 3),
            }
        ),
    ),
    "diabetes": RegressionTable(
        "progression",
        (0.0, 350.0),
        _standardised(
            {
                "age": (50, 13, 3),
                "sex": (1.5, 0.5, 1),
                "bmi": (26, 4.5, 3),
                "bp": (95, 14, 3),
                "s1": (190, 35, 3),
                "s2": (115, 30, 3),
                "s3": (50, 13, 3),
                "s4": (4, 1.3, 3),
                "s5": (4.6, 0.5, 3),
                "s6": (90, 12, 3),
            }
        ),
    ),
}


def silo_sizes(data: RegressionData) -> dict[str, int]:
    """Training records of each silo, by name and in order: public sizes.

    Raises InputError for a silo with fewer than 3 records, or fewer than 2 for training, and for a file that cannot be
    used.
    """
    sizes = _group_sizes(_records(data), data.silos)
    return {
        name: size - _set_aside(size, data.test_fraction)
        for name, size in zip(silo_names(data.silos), sizes, strict=True)
    }


def regression(data: RegressionData, seed: int) -> Generated:
    """Silos `silo-000` (smallest labels), ..., and the union of their test parts.

    Every record is in one place. Equal labels stay in the table's order. Raises InputError as `silo_sizes` does.
    """
    table, described = _table(data), TABLES[data.table]
    order = np.argsort(table.labels, kind="stable")
    ends = np.cumsum(_group_sizes(len(order), data.silos))[:-1]
    held: dict[str, Table] = {}
    aside: list[np.ndarray] = []
    for index, (name, group) in enumerate(zip(silo_names(data.silos), np.split(order, ends), strict=True)):
        drawn = stream(seed, _SPLIT, index).permutation(group)
        test, train = np.split(drawn, [_set_aside(len(group), data.test_fraction)])
        aside.append(test)
        held[name] = _rows(table, train)
    names = tuple(column.name for column in described.schema)
    return Generated(names, described.label, held, _rows(table, np.concatenate(aside)))


def fingerprint(data: RegressionData) -> str:
    """SHA-256 (hex) of the table's numbers. Raises InputError as `silo_sizes` does."""
    table = _table(data)
    total = hashlib.sha256()
    for array in (table.features, table.labels):
        total.update(f"{array.shape}".encode())
        total.update(np.ascontiguousarray(array).data)
    return total.hexdigest()


def _records(data: RegressionData) -> int:
    return _DIABETES_RECORDS if data.table == "diabetes" else len(_table(data).labels)


def _table(data: RegressionData) -> Table:
    return _diabetes() if data.folder is None else insurance.load_insurance(data.folder)


@cache
def _diabetes() -> Table:
    """The diabetes table (Efron et al. 2004) of scikit-learn, in the columns' own units."""
    from sklearn import datasets

    features, labels = datasets.load_diabetes(return_X_y=True, scaled=False)
    return Table(np.asarray(features, dtype=np.float64), np.asarray(labels, dtype=np.float64))


def _group_sizes(records: int, silos: int) -> list[int]:
    """Sizes of groups: ceil(records / silos), the rest last. Raises InputError."""
    most = math.ceil(records / silos)
    last = records - most * (silos - 1)
    if last < 3:
        raise InputError(
            f"data.silos = {silos}: {records} records in groups of {most} leave {max(last, 0)} to the last silo, which "
            "needs at least 3; choose another number of silos"
        )
    return [most] * (silos - 1) + [last]


def _set_aside(size: int, fraction: float) -> int:
    """Number of test records of a silo with `size` records, rounded up as in scikit-learn."""
    test = math.ceil(fraction * size - 1e-9)
    if size - test < 2:
        raise InputError(
            f"data.test_fraction = {fraction} sets aside {test} of a silo's {size} records; it must leave 2: less"
        )
    return test


def _rows(table: Table, rows: np.ndarray) -> Table:
    chosen = np.sort(rows)
    return Table(np.ascontiguousarray(table.features[chosen]), table.labels[chosen])
