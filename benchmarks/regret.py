"""The regret of `fedcore advise` on silos that its table has not seen: `python -m benchmarks.regret FOLDER`.

Each method gets the settings of the row most like the config, as advice does; the error is the mean over seeds, which
deal the records. Regret: the error of the advised method less the lowest of all methods; that of always taking mbsgd is
shown beside it. Nothing of these silos is looked at by the advice.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import yaml

import fedcore
from benchmarks.held_out import HELD_OUT, HeldOut
from fedcore.advice.advice import applied, nearest, with_method
from fedcore.advice.table import Facts, Row
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.loading import load_experiment
from flows.reports.table import markdown_table
from flows.reproductions.table_file import TABLE, read_table

USUAL = "mbsgd"


def errors(held: HeldOut, table: tuple[Row, ...], source: Path, seeds: int, root: Path) -> tuple[str, dict[str, float]]:
    """The advised method, and the mean test error of each that goes with the config."""
    advised, found = "", dict[str, list[float]]()
    for seed in range(seeds):
        config = load_experiment(held.write(root / f"{held.name}-{seed}", source, seed))
        if not advised:
            advised = applied(config, table)[0].method
        for method, settings in nearest(table, Facts.of(config)).items():
            try:
                found.setdefault(method, []).append(_error(with_method(config, settings), root))
            except InputError:  # a method that does not go with it, as one that asks all silos
                found.pop(method, None)
    return advised, {method: statistics.fmean(each) for method, each in found.items() if len(each) == seeds}


def _error(config: ExperimentConfig, root: Path) -> float:
    path = root / "with-method.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    error = fedcore.train(path).test_error
    if error is None:
        raise InputError(f"{config.name}: there are no test records")
    return error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where insurance.csv and gas-turbine.csv(.gz) are")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--only", nargs="*", help="names of configs")
    asked = parser.parse_args()
    table = read_table(asked.table)
    chosen = [held for held in HELD_OUT if not asked.only or held.name in asked.only]
    columns: dict[str, list[str]] = {
        name: [] for name in ("config", "epsilon", "advised", "error", "best", "its error", "regret", f"of {USUAL}")
    }
    regrets, usual = list[float](), list[float]()
    with tempfile.TemporaryDirectory() as folder:
        for held in chosen:
            advised, found = errors(held, table, asked.folder, asked.seeds, Path(folder))
            best = min(found, key=lambda method: found[method])
            regrets.append(found[advised] - found[best])
            usual.append(found[USUAL] - found[best])
            row = (
                held.name, f"{held.epsilon:g}", advised, f"{found[advised]:.3f}", best, f"{found[best]:.3f}",
                f"{regrets[-1]:.3f}", f"{usual[-1]:.3f}",
            )  # fmt: skip
            for column, value in zip(columns.values(), row, strict=True):
                column.append(value)
            print(held.name, {method: round(error, 4) for method, error in sorted(found.items(), key=lambda e: e[1])})
    print(markdown_table(columns))
    print(f"mean regret {statistics.fmean(regrets):.4f}, of {USUAL} {statistics.fmean(usual):.4f}")


if __name__ == "__main__":
    main()
