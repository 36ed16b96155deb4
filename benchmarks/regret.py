"""The regret of `fedcore advise` on silos that are not in its table: `python -m benchmarks.regret FOLDER`.

Each method gets the settings of the row most like the config, as in advice. The error is the mean over seeds, which
split the records. Regret is the advised method's error minus the lowest of all methods. It is biased upwards, because
the lowest of several noisy means is too low. The regret of always using mbsgd is shown beside it. The advice reads no
records of these silos.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
from pathlib import Path

import yaml
from scipy.stats import t

import fedcore
from benchmarks.held_out import HELD_OUT, HeldOut
from fedcore.advice.advice import applied, nearest, with_method
from fedcore.advice.shipped import ROWS, advice_rows
from fedcore.advice.table import Facts, Row
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.loading import load_experiment
from flows.reports.table import markdown_table

USUAL = "mbsgd"


def errors(
    held: HeldOut, table: tuple[Row, ...], source: Path, seeds: int, root: Path
) -> tuple[str, dict[str, list[float]]]:
    """The advised method, and the test errors by seed of each method that fits the config."""
    advised, found = "", dict[str, list[float]]()
    for seed in range(seeds):
        written = held.write(root / f"{held.name}-{seed}", source, seed)
        with contextlib.chdir(written.parent):  # silos' paths are part of the noise's address
            config = load_experiment(written)
            if not advised:
                advised = applied(config, table)[0].method
            for method, settings in nearest(table, Facts.of(config)).items():
                try:
                    found.setdefault(method, []).append(_error(with_method(config, settings)))
                except InputError:  # a method that does not fit, for instance one that needs all silos
                    found.pop(method, None)
    return advised, {method: each for method, each in found.items() if len(each) == seeds}


def _error(config: ExperimentConfig) -> float:
    path = Path("with-method.yaml")
    path.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    error = fedcore.train(path).test_error
    if error is None:
        raise InputError(f"{config.name}: there are no test records")
    return error


def _difference(errors: list[float], of: list[float]) -> str:
    """Mean of the paired differences over seeds, with the half width of its 95 % interval."""
    each = [a - b for a, b in zip(errors, of, strict=True)]
    half = t.ppf(0.975, len(each) - 1) * statistics.stdev(each) / len(each) ** 0.5
    return f"{statistics.fmean(each):.3f} ± {half:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where insurance.csv and gas-turbine.csv(.gz) are")
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--table", type=Path, default=ROWS)
    parser.add_argument("--only", nargs="*", help="names of configs")
    options = parser.parse_args()
    table = advice_rows(options.table)
    chosen = [held for held in HELD_OUT if not options.only or held.name in options.only]
    heads = ("config", "epsilon", "advised", "error", "best", "its error", "regret", f"of {USUAL}")
    columns: dict[str, list[str]] = {name: [] for name in heads}
    regrets, usual = list[float](), list[float]()
    with tempfile.TemporaryDirectory() as folder:
        for held in chosen:
            advised, found = errors(held, table, options.folder.resolve(), options.seeds, Path(folder))
            means = {method: statistics.fmean(each) for method, each in found.items()}
            best = min(means, key=lambda method: means[method])
            regrets.append(means[advised] - means[best])
            usual.append(means[USUAL] - means[best])
            row = (
                held.name,
                f"{held.epsilon:g}",
                advised,
                f"{means[advised]:.3f}",
                best,
                f"{means[best]:.3f}",
                _difference(found[advised], found[best]),
                _difference(found[USUAL], found[best]),
            )
            for column, value in zip(columns.values(), row, strict=True):
                column.append(value)
            line = ", ".join(f"{method} {mean:.4f}" for method, mean in sorted(means.items(), key=lambda each: each[1]))
            print(f"{held.name}: {line}", flush=True)
    print(markdown_table(columns))
    print(f"mean regret {statistics.fmean(regrets):.4f}, of {USUAL} {statistics.fmean(usual):.4f}")


if __name__ == "__main__":
    main()
