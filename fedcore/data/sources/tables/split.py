"""Public tables split at random into silos of equal size, and a test set that no silo holds.

Source: Murata and Suzuki 2023, the experiments of DIFF2 (spec diff2, section 6): 80 percent for training, in ten equal
parts. Unlike theirs, constants in the code scale columns and label, and no run computes one. Their authors knew the
public tables, or published descriptions, and rounded the values.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from fedcore.data.schema import Schema
from fedcore.data.sources.equal_parts import dealt, equal_sizes
from fedcore.data.sources.streams import stream
from fedcore.data.sources.tables.catalogue import BUNDLED, TABLES, FileTable, TableName
from fedcore.data.sources.tables.description import Description
from fedcore.data.sources.tables.files import count_records, digest_of, find_files, read_files
from fedcore.data.table import Generated, Table
from fedcore.hyperparameters import Count, Real, Section
from fedcore.limits import MOST_SILOS
from fedcore.paths import LocalPath

_SPLIT = 111  # purpose of a random stream


class TablesData(Section):
    """A public table, split at random into silos of equal size."""

    source: Literal["tables"] = "tables"
    table: TableName = "diabetes"
    """diabetes, breast-cancer, digits: scikit-learn's, without files; california, gas-turbine, blog-feedback,
    covertype, kdd99: from files in `folder`."""
    folder: LocalPath | None = None
    """Folder of a table's files, plain or .gz; relative paths start at the working folder."""
    silos: Count = Field(10, ge=1, le=MOST_SILOS)
    """N: each silo gets floor(n / N) of the n records that are not set aside; the fewer than N others are not used."""
    test_fraction: Real = Field(0.2, gt=0, lt=1)
    """Part of all records set aside first, rounded up, as the public test set."""

    @property
    def label_values(self) -> tuple[int, ...] | None:
        """The classes, in the order of their numbers; None: the label is a number."""
        return tuple(range(len(self.about.classes))) or None

    @property
    def label_range(self) -> tuple[float, float] | None:
        """Public range of a label that is a number, clipped to it and mapped to -1 to 1."""
        return self.about.label_range

    @property
    def described(self) -> Schema:
        """Schema of the feature columns, with public constants."""
        return self.about.schema

    @property
    def about(self) -> Description:
        """Public description of the table."""
        return TABLES[self.table]

    @model_validator(mode="after")
    def _folder_fits_table(self) -> TablesData:
        if self.about.layouts and self.folder is None:
            raise ValueError(
                f"data.folder is missing: table {self.table} needs the folder that has "
                f"{' and '.join(self.about.layouts[0].patterns)}"
            )
        if not self.about.layouts and self.folder is not None:
            raise ValueError(
                f"data.folder has no meaning with data.table = {self.table}, which needs no file: leave it out"
            )
        return self


def silo_sizes(data: TablesData) -> dict[str, int]:
    """Training records of each silo, by name and in order: public sizes, from lines of files.

    Raises InputError for silos with fewer than 2 records, a test_fraction that sets fewer than 2 aside, and files that
    are missing or damaged.
    """
    return equal_sizes(_records(data), data.silos, data.test_fraction)


def tables(data: TablesData, seed: int) -> Generated:
    """Silos `silo-000`, ... and the test set, drawn by the seed; no record is in two of them.

    Raises InputError as `silo_sizes` does, and for a file whose lines or cells do not fit.
    """
    sizes = silo_sizes(data)
    table = _table(data)
    test, silos = dealt(len(table.labels), sizes, data.test_fraction, stream(seed, _SPLIT))
    held = {name: _rows(table, rows) for name, rows in silos.items()}
    return Generated(data.about.names, data.about.label, held, _rows(table, test))


def fingerprint(data: TablesData) -> str:
    """SHA-256 (hex) of the table, whatever its folder. Raises InputError as `silo_sizes` does."""
    if data.folder is not None:
        return digest_of(find_files(data.folder, data.table, data.about))
    table, total = _table(data), hashlib.sha256()
    for array in (table.features, table.labels):
        total.update(f"{array.shape}".encode())
        total.update(np.ascontiguousarray(array).data)
    return total.hexdigest()


def check_table(name: FileTable, folder: str) -> None:
    """Raises InputError unless the folder has all files of the table, undamaged."""
    count_records(find_files(folder, name, TABLES[name]))


def _records(data: TablesData) -> int:
    if data.folder is None:
        return data.about.records or 0
    return count_records(find_files(data.folder, data.table, data.about))


def _table(data: TablesData) -> Table:
    """The table, uncached: it may take hundreds of megabytes, and runs of one seed read it once."""
    if data.folder is None:
        return BUNDLED[data.table]()
    return read_files(find_files(data.folder, data.table, data.about), data.about)


def _rows(table: Table, rows: np.ndarray) -> Table:
    return Table(table.features[rows], table.labels[rows])
