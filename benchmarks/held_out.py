"""Silos of other fields than the five-way table's, as files with a config, to evaluate `fedcore advise`.

Diabetes and wine come with scikit-learn; insurance.csv and gas-turbine.csv(.gz) are read from a folder
(docs/explanation/which-method.md names their sources). Ranges of columns are rounded from published descriptions. Most
labels are 1 if a number is above a round one near its published median.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from sklearn.datasets import load_diabetes, load_wine

LABEL = "label"
_TEST = 0.2  # of all records: the public test file


@dataclass(frozen=True)
class HeldOut:
    """A config over silos that are not in the advice table: a table, its split into silos, and the budget."""

    name: str
    table: str
    silos: int
    epsilon: float
    by: str | None = None
    """Column by whose order records are split, which makes silos unlike; None: a random split."""
    records: int | None = None
    """Number of records, drawn by the seed; None: all."""
    per_round: int | None = None
    """Number of silos in a round; None: all."""

    def write(self, folder: Path, source: Path, seed: int) -> Path:
        """Writes the files of silos and test records, and the config, whose path it returns. `seed`: of the split."""
        table, ranges = TABLES[self.table](source)
        rng = np.random.default_rng([seed, 20])
        table = table.iloc[rng.permutation(len(table))[: self.records]]
        cut = int(len(table) * _TEST)
        test, rest = table.iloc[:cut], table.iloc[cut:]
        if self.by is not None:
            rest = rest.sort_values(self.by, kind="stable")
        folder.mkdir(parents=True, exist_ok=True)
        test.to_csv(folder / "test.csv", index=False)
        silos = []
        for number, rows in enumerate(np.array_split(np.arange(len(rest)), self.silos)):
            path = folder / f"silo-{number:02d}.csv"
            rest.iloc[rows].to_csv(path, index=False)
            silos.append({"name": path.stem, "path": path.name})
        values: dict[str, Any] = {
            "name": self.name,
            "seed": seed,
            "data": {
                "source": "files",
                "silos": silos,
                "features": ranges,
                "label": LABEL,
                "classes": [0, 1],
                "test": "test.csv",
            },
            "participation": {"silos_per_round": self.per_round} if self.per_round else {},
            "privacy": {"epsilon": self.epsilon, "delta": 1e-5, "ledger": "memory"},
            "algorithm": {"name": "mbsgd", "rounds": 10, "step": 8.0},
            "model": {"diameter": 80.0},
            "tracking": {"mlflow": False},
        }
        config = folder / "config.yaml"
        config.write_text(yaml.safe_dump(values))
        return config


Ranges = dict[str, dict[str, Any]]


def _ranged(table: pd.DataFrame, ends: dict[str, tuple[float, float]], label: pd.Series) -> tuple[pd.DataFrame, Ranges]:
    table = table[list(ends)].assign(**{LABEL: label.astype(int)})
    return table, {name: {"range": list(pair), "missing": []} for name, pair in ends.items()}


def _diabetes(_: Path) -> tuple[pd.DataFrame, Ranges]:
    table, target = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
    ends = {
        "age": (20, 80),
        "sex": (1, 2),
        "bmi": (15, 45),
        "bp": (60, 140),
        "s1": (100, 300),
        "s2": (40, 240),
        "s3": (20, 100),
        "s4": (2, 10),
        "s5": (3, 6.5),
        "s6": (60, 125),
    }
    return _ranged(table, ends, target > 140)


def _wine(_: Path) -> tuple[pd.DataFrame, Ranges]:
    table, target = load_wine(return_X_y=True, as_frame=True)
    ends = {
        "alcohol": (11, 15),
        "malic_acid": (0.5, 6),
        "ash": (1, 3.5),
        "alcalinity_of_ash": (10, 30),
        "magnesium": (70, 160),
        "total_phenols": (0.5, 4),
        "flavanoids": (0, 5),
        "nonflavanoid_phenols": (0, 0.7),
        "proanthocyanins": (0, 4),
        "color_intensity": (1, 13),
        "hue": (0.4, 1.8),
        "od280/od315_of_diluted_wines": (1, 4),
        "proline": (250, 1700),
    }
    return _ranged(table, ends, target == 1)


def _insurance(source: Path) -> tuple[pd.DataFrame, Ranges]:
    table = pd.read_csv(source / "insurance.csv")
    table = table.assign(sex=table.sex == "male", smoker=table.smoker == "yes").astype({"sex": int, "smoker": int})
    table["place"] = table.region.astype("category").cat.codes
    ends = {"age": (18, 65), "sex": (0, 1), "bmi": (15, 50), "children": (0, 5), "smoker": (0, 1), "place": (0, 3)}
    return _ranged(table, ends, table.charges > 12_000)


def _gas_turbine(source: Path) -> tuple[pd.DataFrame, Ranges]:
    found = next(path for path in (source / "gas-turbine.csv", source / "gas-turbine.csv.gz") if path.exists())
    table = pd.read_csv(found)
    names = ("AT", "AP", "AH", "AFDP", "GTEP", "TIT", "TAT", "CDP", "TEY", "CO", "NOX")
    table.columns = pd.Index(names)  # of UCI; the file that spells them out has the same order of columns
    ends = {
        "AT": (-5, 40),
        "AP": (985, 1040),
        "AH": (20, 100),
        "AFDP": (2, 8),
        "GTEP": (17, 41),
        "TIT": (1000, 1100),
        "TAT": (510, 551),
        "CDP": (100, 180),
        "TEY": (9, 16),
    }
    return _ranged(table, ends, table.NOX > 64)


TABLES: dict[str, Callable[[Path], tuple[pd.DataFrame, Ranges]]] = {
    "diabetes": _diabetes,
    "wine": _wine,
    "insurance": _insurance,
    "gas turbine": _gas_turbine,
}

HELD_OUT = (
    HeldOut("diabetes-5", "diabetes", 5, 1.0),
    HeldOut("diabetes-10", "diabetes", 10, 4.0, by="age"),
    HeldOut("wine-3", "wine", 3, 3.0),
    HeldOut("wine-5", "wine", 5, 8.0),
    HeldOut("insurance-4", "insurance", 4, 0.5, by="place"),
    HeldOut("insurance-10-half", "insurance", 10, 2.0, by="age", per_round=5),
    HeldOut("insurance-3", "insurance", 3, 6.0, by="bmi"),
    HeldOut("turbine-5", "gas turbine", 5, 0.5, by="AT"),
    HeldOut("turbine-40", "gas turbine", 40, 1.0, by="TEY"),
    HeldOut("turbine-20-half", "gas turbine", 20, 1.5, records=4000, per_round=10),
)
