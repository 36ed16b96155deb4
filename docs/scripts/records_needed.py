"""The table in docs/how-to/schema.md of the records that a useful model needs.

`python docs/scripts/records_needed.py` prints the table. It simulates as `fedcore tune` does, with the same default
signal and heterogeneity, at the best point of its grid.
"""

from __future__ import annotations

from fedcore.configfile.reading import validated
from fedcore.data.sources.made_up.assumed import Assumptions
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.tuning import tune
from fedcore.planning.problem import SiloFacts

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
SIZES = (50, 200, 1000, 5000)
GRID = {"model.clip": [0.25, 0.5], "algorithm.step": [1.0, 4.0, 16.0], "algorithm.rounds": [40]}
SIMULATIONS = 10


def config(epsilon: float | None, columns: int) -> ExperimentConfig:
    """A config of numeric columns with a range, trained by mbsgd; epsilon None: without noise."""
    features = {f"x{k}": {"range": [0, 1]} for k in range(columns)}
    files = [{"name": "made-up", "path": "made-up.csv"}]
    privacy = {"trust": "none"} if epsilon is None else {"epsilon": epsilon, "delta": 1e-5}
    values = {
        "data": {"source": "files", "silos": files, "features": features, "label": "y"},
        "privacy": privacy,
        "algorithm": {"name": "mbsgd", "average": "last"},
    }
    return validated(ExperimentConfig, values, "records_needed")


def error(epsilon: float | None, silos: int, n: int, columns: int) -> float:
    """Error of the best point, averaged over the simulations."""
    facts = tuple(SiloFacts(f"silo-{k}", n) for k in range(silos))
    return tune(config(epsilon, columns), GRID, Assumptions(), SIMULATIONS, facts).best.error


def main() -> None:
    """Prints the table as Markdown."""
    print("| silos | columns | records each | " + " | ".join(f"{e:g}" for e in EPSILONS) + " | none |")
    print("|" + "---|" * (len(EPSILONS) + 4))
    for silos, columns in ((5, 10), (5, 40), (25, 10)):
        for n in SIZES:
            errors = [f"{error(epsilon, silos, n, columns):.2f}" for epsilon in (*EPSILONS, None)]
            print(f"| {silos} | {columns} | {n:,} | " + " | ".join(errors) + " |", flush=True)


if __name__ == "__main__":
    main()
