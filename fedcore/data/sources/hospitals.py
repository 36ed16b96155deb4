"""Heart disease in four hospitals: real public records, as four silos with missing values.

Files, their origin and licence (CC BY 4.0) are in `heart_disease/SOURCE.md`. Row numbers decide which records are test
data. The split of FLamby's benchmark leaves out records with missing values and is stratified by label. If silos chose
so themselves, the choice would reveal records. So its list of rows is fixed here, and the guarantee holds given it.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray
from pydantic import model_validator

from fedcore.data.table import Generated, Table
from fedcore.data.tabular import Tabular

HOSPITALS = {"cleveland": 303, "budapest": 294, "zurich-basel": 123, "long-beach": 200}
"""Records of each hospital, in order."""
COLUMNS = (
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
    "slope",
    "ca",
    "thal",
)
LABEL = "disease"
_FOLDER = Path(__file__).parent / "heart_disease"
_EVERY = 3  # every third row is a test record


class HospitalsData(Tabular):
    """The four hospitals, with a schema of the used columns; label: disease (1) or none (0)."""

    source: Literal["hospitals"] = "hospitals"
    split: Literal["index", "flamby"] = "index"
    """Choice of test data. index: every third row of each hospital, of all 920. flamby: the benchmark's rows, of 740;
    OUTSIDE OF THE GUARANTEE as far as rows were chosen by their contents."""

    @model_validator(mode="after")
    def _columns_are_there(self) -> HospitalsData:
        if self.described is None:
            raise ValueError("data.features needs a schema of each column: records of hospitals have missing values")
        for name in self.column_names:
            if name not in COLUMNS:
                raise ValueError(f"data.features.{name} is no column; there are {', '.join(COLUMNS)}")
        return self

    @property
    def label_values(self) -> tuple[int, ...]:
        """No disease, and disease."""
        return (0, 1)


@cache
def rows(split: Literal["index", "flamby"]) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Rows (from 0) of each hospital's silo and test records; public, reads no record."""
    if split == "flamby":
        listed = json.loads((_FOLDER / "flamby.json").read_text())
        return {name: (tuple(listed[name]["train"]), tuple(listed[name]["test"])) for name in HOSPITALS}
    found = {}
    for name, n in HOSPITALS.items():
        test = range(_EVERY - 1, n, _EVERY)
        found[name] = tuple(row for row in range(n) if row not in test), tuple(test)
    return found


def hospitals(split: Literal["index", "flamby"]) -> Generated:
    """The silos by hospital, and all test records in the same order; NaN for a missing value."""
    tables = {name: _read(name) for name in HOSPITALS}
    places = rows(split)
    silos = {name: _part(tables[name], places[name][0]) for name in HOSPITALS}
    tests = [_part(tables[name], places[name][1]) for name in HOSPITALS]
    test = Table(np.concatenate([t.features for t in tests]), np.concatenate([t.labels for t in tests]))
    return Generated(COLUMNS, LABEL, silos, test)


def _read(name: str) -> Table:
    types = {**dict.fromkeys(COLUMNS, pa.float64()), LABEL: pa.int64()}
    options = pa.csv.ConvertOptions(column_types=types)
    table = pa.csv.read_csv(_FOLDER / f"{name}.csv", pa.csv.ReadOptions(use_threads=False), convert_options=options)
    features = np.stack([table.column(column).to_numpy() for column in COLUMNS], axis=1)
    labels: NDArray[np.int64] = table.column(LABEL).to_numpy()
    return Table(features, labels)


def _part(table: Table, chosen: tuple[int, ...]) -> Table:
    at = list(chosen)
    return Table(np.ascontiguousarray(table.features[at]), table.labels[at])
