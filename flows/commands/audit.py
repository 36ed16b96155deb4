"""`fedcore audit CONFIG`: instruments that attack a synthetic silo through the code of real ones."""

from __future__ import annotations

import json
import math
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from fedcore.directed_rounding import shown_down, shown_up
from flows.commands.typed_numbers import whole
from flows.terminal.console import Terminal

PARTS = {
    "gradient-difference": "released between restarts",
    "evaluation": "released about held-out records",
    "statistics": "released before it",
}
"""Titles of tables by further audited kinds of answer, in the order of the tables."""
STAMP = (
    "synthetic records and keys only: no record of a silo was read; a pass is not a proof (docs/explanation/audits.md)"
)


def audit(
    config: Annotated[Path, typer.Argument(help="YAML file, for instance conf/experiment/digits.yaml")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="values that replace the file's, for instance privacy.epsilon=2")
    ] = None,
    silo: Annotated[str | None, typer.Option(help="take size and plan of this silo; default: the smallest")] = None,
    seed: Annotated[int, typer.Option(help="of the auditor's records, canaries and keys", **whole(0))] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="print only JSON on standard output")] = False,
) -> None:
    """Look for privacy bugs on a synthetic silo with the plan of CONFIG. Exit code 1: an instrument alarmed."""
    from fedcore.experiment.loading import load_experiment

    experiment = load_experiment(config, overrides or [])
    values = _audit(experiment, silo, seed)
    if as_json:
        print(json.dumps(values, indent=2))
    else:
        _show(values)
    if not values["passed"]:
        raise typer.Exit(1)


def _audit(experiment: Any, silo: str | None, seed: int) -> dict[str, Any]:
    """The audit as plain values, with a part for each further kind of answer that the experiment has.

    `statistics`: moments that silos release before the run. `evaluation`: histograms of held-out records.
    `gradient-difference`: rounds of differences.

    Raises InputError for a plan without noise, an unknown silo, or rounds that no instrument can examine.
    """
    import numpy as np
    from threadpoolctl import threadpool_limits

    from fedcore.audit.audited_silo import AuditedSilo, auditable
    from fedcore.audit.suite import audit as run_audit
    from fedcore.experiment.experiment import make_plan
    from fedcore.experiment.problem import training_loss
    from fedcore.experiment.statistics import make_statistics
    from fedcore.ledger.ledger import Ledger
    from fedcore.ledger.memory import MemoryLedger
    from fedcore.ledger.sqlite import SqliteLedger
    from fedcore.planning.evaluation import EVALUATION
    from fedcore.silo.private_silo import PrivateSilo

    plan, before = make_plan(experiment), make_statistics(experiment)
    rng = np.random.default_rng(seed)
    name = silo if silo is not None else min(plan.problem.silos, key=lambda facts: facts.n).name
    opener = partial(PrivateSilo, guarded=experiment.privacy.noise == "guarded")
    loss = training_loss(experiment, plan.problem)
    of_training = AuditedSilo(plan, experiment.algorithm, loss, name, rng.bytes(32), opener, PrivateSilo)
    kinds = of_training.kinds  # every kind: one without an audit would pass unexamined
    audited_silos = [replace(of_training, kind=kind) for kind in kinds]
    parts = [("evaluation" if kind == EVALUATION else kind, kind) for kind in kinds[1:]]
    if before is not None:
        method, planned = before
        audited_silos.append(AuditedSilo(planned, method, None, name, rng.bytes(32), opener, PrivateSilo))
        parts.append(("statistics", method.name))
    for audited in audited_silos:
        auditable(audited)
    done: list[Any] = []
    # One BLAS thread, as at a site: their number changes the last bits of a sum, which key the noise.
    with tempfile.TemporaryDirectory() as folder, threadpool_limits(limits=1, user_api="blas"):

        def ledger(of: str) -> Ledger:
            if experiment.privacy.ledger != "sqlite":
                return MemoryLedger(of)
            place = Path(folder) / str(len(done))
            place.mkdir()
            return SqliteLedger(of, place / f"{of}.sqlite", place / f"{of}.anchor")

        for audited in audited_silos:
            done.append(run_audit(audited, rng, ledger, len(audited_silos)))
    about = {"experiment": experiment.name, "method": experiment.algorithm.name, "seed": seed}
    values = {**about, "unit": plan.problem.unit, **done[0].as_json()}
    for (part, kind), outcome in zip(parts, done[1:], strict=True):
        values[part] = {"method": kind, **outcome.as_json()}
    values["passed"] = all(each.passed for each in done)
    return values


def _show(values: dict[str, Any]) -> None:
    out = Terminal(highlight=False)
    unit = values["unit"]
    _table(out, f"{values['experiment']}, {values['method']}: synthetic silo like {values['silo']}", unit, values)
    for part, title in PARTS.items():
        if part in values:
            _table(out, f"{title}, {values[part]['method']}: the same silo", unit, values[part])
    out.print(STAMP)


def _table(out: Terminal, title: str, unit: str, values: dict[str, Any]) -> None:
    from flows.reports.table import plain_table

    table = plain_table(f"{title} ({values['n']} {unit}, {values['dim']} numbers in an answer)")
    for head in ("instrument", "result", "statistic", "threshold", "false alarm"):
        table.add_column(head, justify="left" if head in ("instrument", "result") else "right")
    for finding in values["findings"]:
        measured = finding["statistic"] is not None
        passed = "pass" if finding["passed"] else "ALARM"
        table.add_row(
            finding["instrument"],
            "-" if not measured and finding["passed"] else passed,
            *_measured(finding),
            f"{finding['false_alarm']:.2g}" if measured else "-",
        )
    out.print(table)
    for finding in values["findings"]:
        out.print(f"{finding['instrument']}: {finding['detail']}.", markup=False)
    if values["one_run_power"] is not None:
        out.print(f"beforehand: {values['one_run_power']['sentence']}.", markup=False)


def _measured(finding: dict[str, Any]) -> tuple[str, str]:
    """Statistic and threshold as text. A measured bound on epsilon is rounded down, the accounted epsilon up."""
    from fedcore.audit.one_run import BOUND

    low, high = (shown_down, shown_up) if finding["instrument"] == BOUND else (_number, _number)
    return low(finding["statistic"]), high(finding["threshold"])


def _number(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.4g}"
