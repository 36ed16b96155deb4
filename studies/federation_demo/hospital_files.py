"""Files of the parties: each hospital's records, schema and policy, and the coordinator's test data and sweep.

Records, columns and settings are those of the package: `conf/sweep/hospitals.yaml` and the experiment below it. So the
rows of the demo can be set beside those of the simulation.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from fedcore.configfile.reading import read_yaml
from fedcore.configfile.yaml_writer import yaml_text
from fedcore.data.sources.hospitals import HOSPITALS, hospitals
from fedcore.data.table import Generated, Table
from fedcore.directed_rounding import in_full
from fedcore.errors import InputError
from flows.commands.conf import CONF

SWEEP = CONF / "sweep" / "hospitals.yaml"
METHOD = "mbsgd"
FEDERATION = "heart"
EPSILONS = (1.0, 2.0, 5.0)
TEST, CONFIG = "test.csv", "sweep.yaml"


@dataclass(frozen=True)
class HospitalFiles:
    """Contents of the parties' files for a sweep at these targets of epsilon."""

    epsilons: Sequence[float] = EPSILONS

    @cached_property
    def _sweep(self) -> dict[str, Any]:
        return read_yaml(SWEEP, ())

    @cached_property
    def _experiment(self) -> dict[str, Any]:
        return read_yaml(SWEEP.parent / self._sweep["base"], ())

    @cached_property
    def _variants(self) -> list[dict[str, Any]]:
        """The sweep's variants of `METHOD` at the targets, in order. Raises InputError for a target that it lacks."""
        found = {
            variant["set"]["privacy"]["epsilon"]: variant["set"]
            for variant in self._sweep["variants"]
            if variant["set"]["algorithm"]["name"] == METHOD and variant["set"]["privacy"]["epsilon"] is not None
        }
        for epsilon in self.epsilons:
            if epsilon not in found:
                listed = ", ".join(map(in_full, found))
                raise InputError(f"--epsilon {in_full(epsilon)}: {SWEEP.name} has no {METHOD} at it; it has {listed}")
        return [found[epsilon] for epsilon in self.epsilons]

    @cached_property
    def _tables(self) -> Generated:
        return hospitals(self._experiment["data"]["split"])

    @property
    def _columns(self) -> dict[str, Any]:
        return {"features": self._experiment["data"]["features"], "label": self._tables.label, "classes": [0, 1]}

    @property
    def schema(self) -> str:
        """The federation's columns, as YAML for `fedcore silo init --schema`."""
        return yaml_text(self._columns)

    @property
    def policy(self) -> str:
        """A hospital's policy: the sweep's method and delta, each run up to its target, and all runs up to their sum.

        The draft of `fedcore silo init` allows one run epsilon 4 only.
        """
        delta = max(variant["privacy"]["delta"] for variant in self._variants)
        return yaml_text(
            {
                "methods": [METHOD],
                "losses": ["logistic"],
                "cap": {"epsilon": sum(self.epsilons), "delta": delta, "rule": "gdp"},
                "one_run": {"epsilon": max(self.epsilons), "delta": delta},
                "runs": len(self.epsilons),
                "expires": (datetime.now(UTC) + timedelta(days=1)).date().isoformat(),
            }
        )

    def sweep(self, test: Path) -> str:
        """The coordinator's sweep: the package's, of silos that are guarded and elsewhere. `test`: its test file."""
        privacy = {"noise": "guarded", "ledger": "sqlite"}
        base = {
            "data": {"source": "federation", "federation": FEDERATION, **self._columns, "test": str(test)},
            "participation": self._experiment["participation"],
            "privacy": privacy,
        }
        variants = [{"set": {**each, "privacy": {**each["privacy"], **privacy}}} for each in self._variants]
        return yaml_text({"name": "hospitals-apart", "base": base, "variants": variants})

    def write_records(self, path: Path, hospital: str) -> int:
        """Writes a hospital's table, and returns its number of records."""
        return _write(path, self._tables, self._tables.silos[hospital])

    def write_test(self, path: Path) -> int:
        """Writes the public test records, which no hospital trains on, and returns their number."""
        return _write(path, self._tables, self._tables.test)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the hospitals."""
        return tuple(HOSPITALS)


def _write(path: Path, tables: Generated, table: Table) -> int:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*tables.features, tables.label])
        for row, label in zip(table.features.tolist(), table.labels.tolist(), strict=True):
            writer.writerow([*map(_cell, row), label])
    return len(table.labels)


def _cell(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.15g}"
