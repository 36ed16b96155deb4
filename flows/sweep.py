"""The Prefect flow of a sweep: its cells, each with a flow run of its own below the sweep's."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from prefect import flow, runtime
from prefect.client.orchestration import get_client

from fedcore.errors import InputError, SiloError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import make_plan
from fedcore.experiment.identity import run_id
from fedcore.experiment.result import RunResult
from fedcore.experiment.sweep import SweepConfig, Variant
from fedcore.home import Home
from flows.cell_flows import CellFlow, CellFlows, state_of
from flows.drive import EXPECTED, driven, stoppable, stopped_by
from flows.experiment import flow_page, flow_tags, outcome, shown_name
from flows.reports.table import write_report
from flows.runs import drive_lock, read_run
from flows.session import Session
from flows.sweep_files import save_sweep, sweep_id
from tasks.calls import Calls, in_step
from tasks.phases import rounds_are_tasks
from tasks.statistics import release
from tasks.training import Training

TOGETHER = 32
"""Cells that go in step, each with its records in an order of its own at the sites."""
LARGEST = 2**29
"""Bytes of all records that are in such orders at a time."""


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
        status, results = "KILLED", dict[str, RunResult]()
        failures: list[Exception] = []
        flows = CellFlows(home.prefect / "prefect.db", str(runtime.flow_run.id))
        try:
            runs = ((run_id(cell), _calls(cell, session, flows, sweep, planned)) for cell in by_records(cells))
            with closing(in_step(runs, _together(cells))) as ending:
                for run, made in ending:
                    if isinstance(made, RunResult):
                        results[run] = made
                    elif stopped_by() is None and isinstance(made, EXPECTED):
                        failures.append(made)
                    else:
                        raise made
            status = "FAILED" if failures else "FINISHED"
        finally:
            finished = [results[run] for run in map(run_id, cells) if run in results]
            report = write_report(home, sweep, finished) if finished else None
            if tracked:
                session.tracker.finish_sweep(
                    status,  # type: ignore[arg-type]
                    report.columns if report else None,
                    [report.plot] if report and report.plot else (),
                )
            flows.close()
        if failures:
            first, count = failures[0], f"{len(failures)} of {len(cells)} cells"
            if isinstance(first, SiloError):
                # Not the input is to be mended: the exit code tells the two apart.
                said = f"{first.sentence}; {count} of sweep {sweep} failed, the others' results stay"
                raise SiloError(first.silo, first.code, said)
            raise InputError(f"sweep {sweep}: {count} failed; the first: {first}")
    return {"sweep": sweep, "runs": [result.run for result in finished]}


def by_records(cells: Sequence[ExperimentConfig]) -> list[ExperimentConfig]:
    """The cells, those that ask the same records one after another: their silos are opened once."""
    groups: dict[str, list[ExperimentConfig]] = {}
    for cell in cells:
        groups.setdefault(cell.model_dump_json(include={"data", "model", "seed"}), []).append(cell)
    return [cell for group in groups.values() for cell in group]


def _together(cells: Sequence[ExperimentConfig]) -> int:
    """How many cells go in step. Calls to workers gain from it, function calls do not; a durable ledger is held by the
    sites of one run at a time."""
    first = cells[0].cluster
    if not all(cell.cluster == first and cell.privacy.ledger == "memory" for cell in cells) or first.backend != "dask":
        return 1
    problems = [make_plan(cell).problem for cell in cells]
    size = max(8 * problem.dim * sum(silo.n for silo in problem.silos) for problem in problems)
    return max(1, min(TOGETHER, LARGEST // size))


def _calls(
    cell: ExperimentConfig, session: Session, flows: CellFlows, sweep: str, planned: int
) -> Calls[RunResult]:
    """The result of a cell: the recorded one, or that of a run with a flow run of its own."""
    record = read_run(session.home, run_id(cell))
    if record is not None and record.complete and record.result is not None:
        return record.result
    shown = flows.begin(shown_name(cell), cell.model_dump(mode="json") | {"sweep": sweep}, flow_tags(cell, sweep))
    flows.write()
    as_tasks = rounds_are_tasks(cell.orchestration.tasks, planned)
    try:
        result = yield from driven(
            cell, session, lambda training: _rounds(training, flows, shown, as_tasks), sweep=sweep,
            flow_run=flow_page(session, shown.id), release=lambda *asked: _release(shown, *asked),
        )  # fmt: skip
        if cell.tracking.mlflow:
            shown.artifact(*outcome(session, result))
    except BaseException as error:
        shown.end(state_of(error), str(error) or type(error).__name__)
        raise
    shown.end("COMPLETED")
    flows.write()
    return result


def _rounds(training: Training, flows: CellFlows, shown: CellFlow, rounds_as_tasks: bool) -> Calls[None]:
    """All rounds that are left, phase by phase."""
    while (phase := training.phase) is not None:
        with shown.task(f"phase {phase}", "phase") as task:
            while training.phase == phase:
                if rounds_as_tasks:
                    with shown.task(f"round {phase}.{training.round}", "round", task):
                        yield from training.round_calls()
                else:
                    yield from training.round_calls()
                flows.write()


def _release(shown: CellFlow, *asked: Any) -> Any:
    with shown.task("moments", "moments"):
        return release(*asked)


def _tag(sweep: str) -> None:
    with get_client(sync_client=True) as client:
        client.update_flow_run(runtime.flow_run.id, tags=[f"sweep:{sweep}"])
