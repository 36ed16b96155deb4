"""The Prefect flow of a sweep: every cell a sub-flow run, one after another on one cluster."""

from __future__ import annotations

from typing import Any

from prefect import flow, runtime
from prefect.client.orchestration import get_client

from fedcore.errors import InputError, SiloError
from fedcore.experiment.experiment import make_plan
from fedcore.experiment.sweep import SweepConfig, Variant
from fedcore.home import Home
from flows.drive import EXPECTED, stoppable, stopped_by
from flows.experiment import parameters, run_flow
from flows.reports.table import write_report
from flows.runs import drive_lock
from flows.session import Session
from flows.sweep_files import save_sweep, sweep_id


@flow(name="sweep", flow_run_name="{name}", persist_result=False, retries=0)
def sweep_flow(
    name: str,
    base: dict[str, Any] | None = None,
    variants: tuple[Variant, ...] = (Variant(),),
    grid: dict[str, list[Any]] | None = None,
) -> dict[str, Any]:
    """Runs all cells that are not finished; returns the ids, and writes the report.

    A cell that fails does not stop the others; the sweep then fails at its end and names them.
    """
    config = SweepConfig(name=name, base=base or {}, variants=variants, grid=grid or {})
    cells, sweep = config.cells(), sweep_id(config)
    home = Home.current()
    with drive_lock(home, sweep, "sweep"), Session.of_driver(home) as session, stoppable():
        _tag(sweep)
        save_sweep(home, config)
        planned = sum(make_plan(cell).rounds for cell in cells)
        tracked = any(cell.tracking.mlflow for cell in cells)
        if tracked:
            session.tracker.begin_sweep(sweep, name, {"cells": len(cells), "rounds": planned})
        status, results = "KILLED", []
        failures: list[Exception] = []
        try:
            for cell in cells:
                try:
                    results.append(run_flow(**parameters(cell), sweep=sweep, flow_rounds=planned))
                except EXPECTED as error:
                    if stopped_by() is not None:
                        raise
                    failures.append(error)
            status = "FAILED" if failures else "FINISHED"
        finally:
            report = write_report(home, sweep, results) if results else None
            if tracked:
                session.tracker.finish_sweep(
                    status,  # type: ignore[arg-type]
                    report.columns if report else None,
                    [report.plot] if report and report.plot else (),
                )
        if failures:
            first, count = failures[0], f"{len(failures)} of {len(cells)} cells"
            if isinstance(first, SiloError):
                # Not the input is to be mended: the exit code tells the two apart.
                said = f"{first.sentence}; {count} of sweep {sweep} failed, the others' results stay"
                raise SiloError(first.silo, first.code, said)
            raise InputError(f"sweep {sweep}: {count} failed; the first: {first}")
    return {"sweep": sweep, "runs": [result.run for result in results]}


def _tag(sweep: str) -> None:
    with get_client(sync_client=True) as client:
        client.update_flow_run(runtime.flow_run.id, tags=[f"sweep:{sweep}"])
