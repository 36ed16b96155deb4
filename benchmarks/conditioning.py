"""`python -m benchmarks.conditioning`: rounds that methods take on ill-conditioned least squares, without noise.

Real silos in this process answer in full batches. Eigenvalues of the pooled objective are spaced evenly in the
logarithm from 1/kappa, half of which is the ridge, to 1. Each direction has an equal share of the gap at the start.
Rounds are counted until the gap falls to the given fraction. Slopes are of log rounds over log kappa; spec isrl-dp-fl
derives 1 for mbsgd (6.1) and 1/2 for accelerated-mbsgd (6.5).
"""

from __future__ import annotations

import os

os.environ |= {name: "1" for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")}

import argparse
import sys
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from fedcore.accounting.calibration import Budget
from fedcore.algorithms import AcceleratedMbsgd, Mbsgd
from fedcore.data.records import Records
from fedcore.federation.in_process import InProcess
from fedcore.federation.rounds import RunContext, rounds
from fedcore.ledger.memory import MemoryLedger
from fedcore.losses import Squared
from fedcore.planning.problem import ObjectiveFacts, Problem, SiloFacts
from fedcore.randomness import driver_key
from fedcore.silo.agreement import Agreement
from fedcore.silo.keys import SeededKeys
from fedcore.silo.private_silo import PrivateSilo
from fedcore.silo.site import Site

SILOS, RECORDS, DIM = 4, 40, 20
MOST = 10**6
METHODS: dict[str, Any] = {
    "mbsgd, step 1 / beta": Mbsgd(rounds=MOST, step=1.0, average="last"),
    "accelerated-mbsgd, multi-stage": AcceleratedMbsgd(rounds=20_000, form="multi-stage"),
    "accelerated-mbsgd, one-stage": AcceleratedMbsgd(rounds=20_000, form="one-stage"),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conditioning", description=__doc__)
    parser.add_argument("--kappas", type=float, nargs="+", default=[1e2, 1e3, 1e4])
    parser.add_argument("--accuracies", type=float, nargs="+", default=[1e-3, 1e-6])
    options = parser.parse_args()
    for accuracy in options.accuracies:
        table = Table(title=f"rounds until the gap is {accuracy:g} of that of the start, by condition number")
        table.add_column("method")
        for column in (*(f"{kappa:g}" for kappa in options.kappas), "slope"):
            table.add_column(column, justify="right")
        for name, method in METHODS.items():
            taken = [rounds_taken(method, kappa, accuracy) for kappa in options.kappas]
            slope = np.polyfit(np.log(options.kappas), np.log(taken), 1)[0] if len(taken) > 1 else np.nan
            table.add_row(name, *(f"{each:,}" for each in taken), f"{slope:.2f}")
        Console(width=None if sys.stdout.isatty() else 110).print(table)


def rounds_taken(method: Any, kappa: float, accuracy: float, seed: int = 0) -> int:
    """Rounds until the objective's gap is this fraction of the gap at w = 0. Raises RuntimeError if none reaches it."""
    eigenvalues, ridge = np.geomspace(1.0, kappa, DIM) / kappa, 0.5 / kappa
    rng = np.random.default_rng(seed)
    # The pooled second moments are these eigenvalues minus the ridge; each silo's own differ.
    X = np.linalg.qr(rng.standard_normal((SILOS * RECORDS, DIM)))[0] * np.sqrt(SILOS * RECORDS * (eigenvalues - ridge))
    minimiser = eigenvalues**-0.5 / np.linalg.norm(eigenvalues**-0.5)
    y = X @ (minimiser * eigenvalues / (eigenvalues - ridge))
    data = {f"s{i}": slice(i * RECORDS, (i + 1) * RECORDS) for i in range(SILOS)}
    problem = Problem(
        tuple(SiloFacts(name, RECORDS) for name in data),
        ObjectiveFacts(DIM, clip=1e6, smoothness=1.0 - ridge, diameter=10.0, ridge=ridge),
        Budget(None, 1e-4),
        participants=SILOS,
    )
    plan = method.plan(problem)
    site = Site(
        [PrivateSilo(name, Records(X[at], y[at]), SeededKeys(seed), MemoryLedger(name)) for name, at in data.items()]
    )
    backend = InProcess(site, Agreement("conditioning", problem, method, Squared(), plan.digest))
    backend.open()
    course = rounds(
        RunContext("conditioning", plan, method, driver_key(seed, 0, method.name)),
        method.init(np.zeros(DIM)),
        backend.ask,
    )

    def gap(w: np.ndarray) -> float:
        return float((eigenvalues * (w - minimiser) ** 2).sum())

    for number, (_, _, state) in enumerate(course, start=1):
        if gap(method.output(state)) <= accuracy * gap(np.zeros(DIM)):
            return number
    raise RuntimeError(f"{method.name} did not reach {accuracy:g} at condition number {kappa:g}")


if __name__ == "__main__":
    main()
