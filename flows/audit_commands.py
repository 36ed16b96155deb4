"""`fedcore audit CONFIG`: instruments on a synthetic silo of an experiment, through the code that real silos run."""

from __future__ import annotations

import json
import math
import tempfile
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

STAMP = "synthetic records and keys only: no record of a silo was read; a pass is not a proof (docs/audits.md)"


def audit(
    config: Annotated[Path, typer.Argument(help="YAML file, for instance conf/experiment/digits.yaml")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="values over the file's, for instance privacy.epsilon=2")
    ] = None,
    silo: Annotated[str | None, typer.Option(help="whose size and plan to take; default: the smallest silo")] = None,
    seed: Annotated[int, typer.Option(min=0, help="of the auditor's records, canaries and keys")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON on standard output and nothing else")] = False,
) -> None:
    """Look for privacy bugs on a synthetic silo with the plan of CONFIG. Exit code 1: an instrument alarmed."""
    from fedcore.configfile import load_experiment

    experiment = load_experiment(config, overrides or [])
    values = _audit(experiment, silo, seed)
    if as_json:
        print(json.dumps(values, indent=2))
    else:
        _show(values)
    if not values["passed"]:
        raise typer.Exit(1)


def _audit(experiment: Any, silo: str | None, seed: int) -> dict[str, Any]:
    """The audit as plain values. Raises InputError for a plan without noise, or a silo that is not there."""
    import numpy as np
    from threadpoolctl import threadpool_limits

    from fedcore.audit.suite import audit as run_audit
    from fedcore.audit.transcript import Subject, linear_loss
    from fedcore.experiment import make_plan, training_loss
    from fedcore.privacy.durable_ledger import SqliteLedger
    from fedcore.privacy.ledger import Ledger, MemoryLedger
    from fedcore.privacy.silo import PrivateSilo

    plan = make_plan(experiment)
    rng = np.random.default_rng(seed)
    name = silo if silo is not None else min(plan.problem.silos, key=lambda facts: facts.n).name
    opener = partial(PrivateSilo, guarded=experiment.privacy.noise == "guarded")
    loss = linear_loss(training_loss(experiment, plan.problem))
    subject = Subject(plan, experiment.algorithm, loss, name, rng.bytes(32), opener)
    # As a site: the number of BLAS threads changes the last bits of a sum, and noise is keyed by them.
    with tempfile.TemporaryDirectory() as folder, threadpool_limits(limits=1, user_api="blas"):

        def ledger(of: str) -> Ledger:
            durable = experiment.privacy.ledger == "sqlite"
            if not durable:
                return MemoryLedger(of)
            return SqliteLedger(of, Path(folder) / f"{of}.sqlite", Path(folder) / f"{of}.anchor")

        done = run_audit(subject, rng, ledger)
    return {"experiment": experiment.name, "method": experiment.algorithm.name, "seed": seed, **done.as_json()}


def _show(values: dict[str, Any]) -> None:
    from flows.report import plain_table

    title = f"{values['experiment']}, {values['method']}: synthetic silo like {values['silo']}"
    table = plain_table(f"{title} ({values['n']} records, {values['dim']} weights)")
    for head in ("instrument", "result", "statistic", "threshold", "false alarm"):
        table.add_column(head, justify="left" if head in ("instrument", "result") else "right")
    for finding in values["findings"]:
        measured = finding["statistic"] is not None
        table.add_row(
            finding["instrument"], "-" if not measured else "pass" if finding["passed"] else "ALARM",
            *(_number(finding[key]) for key in ("statistic", "threshold")),
            f"{finding['false_alarm']:.2g}" if measured else "-",
        )  # fmt: skip
    out = Console(highlight=False)
    out.print(table)
    for finding in values["findings"]:
        out.print(f"{finding['instrument']}: {finding['detail']}.", markup=False)
    if values["one_run_power"] is not None:
        out.print(f"beforehand: {values['one_run_power']['sentence']}.", markup=False)
    else:
        out.print("secret samples: clipping, reused noise and the one-run bound are for plans of full batches.")
    out.print(STAMP)


def _number(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.4g}"
