"""The Prefect flow of a sweep: its cells, each with a flow run of its own below the sweep's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from prefect import flow, get_run_logger, runtime
from prefect.client.orchestration import get_client

from fedcore.errors import AbandonedError, InputError, SiloError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import make_plan
from fedcore.experiment.identity import run_id
from fedcore.experiment.patience import Ladder, PatienceConfig
from fedcore.experiment.result import RunResult
from fedcore.experiment.sweep import SweepConfig, Variant
from fedcore.home import Home
from flows.cells.flow_runs import CellFlowRun, CellFlowRuns, state_of
from flows.driver.session import Session
from flows.driver.signals import stoppable, stopped_by
from flows.ladders import rung_of, with_choice
from flows.pages.flow_run import flow_tags, outcome
from flows.pages.links import flow_page
from flows.pages.names import shown_name
from flows.pages.sweep_publication import SweepPublication
from flows.reports.settings import Settings
from flows.reports.table import write_report
from flows.run_lock import drive_lock
from flows.runs import REFUSALS, read_result, read_run
from flows.schedules.adds import firing_adds
from flows.schedules.firing import Firing, SkippedError, skipped_state
from flows.sweep_files import is_over, progress, save_sweep, sweep_id, write_ladders
from flows.training import EXPECTED, train_calls
from tasks.calls import Calls, in_step
from tasks.phases import rounds_are_tasks
from tasks.statistics import release
from tasks.training import Training

CELLS_IN_STEP = 64
"""Most cells that run in step; for each, the sites hold the records in an order of its own."""
LARGEST = 2**29
"""Most bytes of records that the cells in step hold."""


@flow(name="sweep", flow_run_name="{name}", persist_result=False, retries=0)
def sweep_flow(
    name: str,
    base: dict[str, Any] | None = None,
    variants: tuple[Variant, ...] = (Variant(),),
    grid: dict[str, list[Any]] | None = None,
    patience: PatienceConfig | None = None,
) -> dict[str, Any]:
    """Runs the unfinished cells, with patience those that it reaches; writes the report; the ids.

    A cell that fails does not stop the others; the sweep then fails at its end and names the first. In a schedule's
    firing, `orchestration.scheduled` of the cells selects unfinished cells or a new repetition.
    """
    config = SweepConfig(name=name, base=base or {}, variants=variants, grid=grid or {}, patience=patience)
    try:
        with Firing.carried_out(str(runtime.flow_run.id)) as firing:
            if firing is None:
                return _carried_out(config)
            return _carried_out(_fired(config, firing), firing.tags)
    except SkippedError as skipped:
        return skipped_state(skipped)


def _fired(config: SweepConfig, firing: Firing) -> SweepConfig:
    """The config of a schedule's firing; logs what the firing adds to accounts."""
    home, repeats = Home.current(), config.repeats
    if repeats:
        first = config.cells()[0].repetition
        config = config.repeated(firing.repetition(first, lambda count: is_over(home, config.repeated(count))))
    for sentence in firing_adds(config.cells(), repeats):
        get_run_logger().info(sentence)
    return config


def _carried_out(config: SweepConfig, tags: Sequence[str] = ()) -> dict[str, Any]:
    cells, sweep, patience = config.cells(), sweep_id(config), config.patience
    home = Home.current()
    with drive_lock(home, sweep, "sweep") as lock, Session.of_driver(home) as session, stoppable():
        _tag(sweep, tags)
        save_sweep(home, config, str(runtime.flow_run.id))
        planned = sum(make_plan(cell).rounds for cell in cells)
        publication = SweepPublication(config, session)
        publication.begin(planned)
        runs_of = session.recorded_runs
        done, most, counted = progress(home, config, runs_of)
        get_run_logger().info(f"sweep {sweep}: {done} of {most} {counted} before")
        if (taken := runs_of.taken_over(cells)) is not None:
            get_run_logger().info(taken)
        status, results = "KILLED", dict[str, RunResult]()
        failures: list[Exception] = []
        flows = session.cell_flow_runs(str(runtime.flow_run.id))
        try:
            begun = _Cells(session, flows, sweep, planned, patience, publication.settings)
            runs = ((run_id(chain[0]), calls) for chain, calls in begun.chains(config))
            with closing(in_step(runs, _count_in_step(cells))) as ending:
                for _, made in ending:
                    if made is None:
                        continue  # a ladder without a surviving value
                    if isinstance(made, RunResult):
                        results[made.run] = made
                    elif stopped_by() is None and isinstance(made, EXPECTED):
                        failures.append(made)
                    else:
                        raise made
            status = "FAILED" if failures else "FINISHED"
        finally:
            finished = [results[run] for run in map(runs_of.run, cells) if run in results]
            finished = with_choice(config, finished)
            report = write_report(home, sweep, finished, config.patience, publication.settings) if finished else None
            publication.finish(status, report, finished)  # type: ignore[arg-type]
            session.hold_until_published(lock)
            flows.close()
        if failures:
            chains = f"{len(cells)} cells" if patience is None else f"{len(config.ladders())} ladders"
            first, count = min(failures, key=_may_be_mended), f"{len(failures)} of {chains}"
            if isinstance(first, SiloError):
                # SiloError, because its exit code differs from that of a mistake in the input.
                sentence = f"{first.sentence}; {count} of sweep {sweep} failed, the others' results stay"
                raise SiloError(first.silo, first.code, sentence)
            raise InputError(f"sweep {sweep}: {count} failed; the first: {first}")
        write_ladders(home, config, runs_of)
        if report is not None:
            publication.show(report)
    return {"sweep": sweep, "runs": [result.run for result in finished]}


def _may_be_mended(failure: Exception) -> bool:
    """False for a silo's final refusal, which is reported first, because it pauses a schedule."""
    return not (isinstance(failure, SiloError) and failure.code in REFUSALS)


def by_records(cells: Sequence[ExperimentConfig]) -> list[ExperimentConfig]:
    """The cells, grouped by their records, so that silos are opened once per group."""
    groups: dict[str, list[ExperimentConfig]] = {}
    for cell in cells:
        groups.setdefault(cell.model_dump_json(include={"data", "model", "seed"}), []).append(cell)
    return [cell for group in groups.values() for cell in group]


def _count_in_step(cells: Sequence[ExperimentConfig]) -> int:
    """Number of cells that run in step: 1 without workers, or with durable ledgers.

    Only calls to workers gain from more. The sites of one run at a time hold a durable ledger.
    """
    first = cells[0].cluster
    if not all(cell.cluster == first and cell.privacy.ledger == "memory" for cell in cells) or first.backend != "dask":
        return 1
    problems = [make_plan(cell).problem for cell in cells]
    size = max(8 * problem.objective.dim * sum(silo.n for silo in problem.silos) for problem in problems)
    return max(1, min(CELLS_IN_STEP, LARGEST // size))


class _Cells:
    """Cells of one sweep as sequences of calls, each cell with a flow run of its own."""

    def __init__(
        self,
        session: Session,
        flows: CellFlowRuns,
        sweep: str,
        planned: int,
        patience: PatienceConfig | None,
        varied: Mapping[str, Settings],
    ) -> None:
        self._session, self._flows, self._sweep, self._patience = session, flows, sweep, patience
        self._planned, self._varied = planned, varied

    def chains(self, config: SweepConfig) -> Iterator[tuple[Sequence[ExperimentConfig], Calls[RunResult | None]]]:
        """Chains that run side by side: single cells, or ladders, whose cells run in order."""
        if self._patience is None:
            for cell in by_records(config.cells()):
                yield (cell,), self._cell(cell)
            return
        first = {run_id(ladder.cells[0]): ladder for ladder in config.ladders()}
        for cell in by_records([ladder.cells[0] for ladder in first.values()]):
            ladder = first[run_id(cell)]
            yield ladder.cells, self._ladder(ladder, self._patience)

    def _ladder(self, ladder: Ladder, rule: PatienceConfig) -> Calls[RunResult | None]:
        """Result of the largest value that survives; None if none does."""
        home = self._session.home
        for value, cell in zip(ladder.values, ladder.cells, strict=True):
            rung = rung_of(home, rule, value, cell, self._session.recorded_runs)
            if rung.state == "open" or not rung.published:
                with contextlib.suppress(AbandonedError):
                    yield from self._cell(cell)
                rung = rung_of(home, rule, value, cell, self._session.recorded_runs)
            if rung.state == "chosen":
                return read_result(home, rung.run)
        return None

    def _cell(self, cell: ExperimentConfig) -> Calls[RunResult]:
        """Result of a cell: the recorded one, or that of a run with a flow run of its own."""
        run = self._session.recorded_runs.run(cell)
        record = read_run(self._session.home, run)
        if record is not None and record.complete and record.result is not None:
            return record.result
        session, flows, sweep = self._session, self._flows, self._sweep
        name = shown_name(cell, self._varied.get(run))
        shown = flows.begin(name, cell.model_dump(mode="json") | {"sweep": sweep}, flow_tags(cell, sweep, run))
        flows.write()
        as_tasks = rounds_are_tasks(cell.orchestration.tasks, self._planned)
        try:
            result = yield from train_calls(
                cell,
                session,
                lambda training: _rounds(training, flows, shown, as_tasks),
                sweep=sweep,
                name=name,
                flow_run=flow_page(session.pages, shown.id),
                release=lambda *arguments: _release(shown, *arguments),
                patience=self._patience,
            )
            if cell.tracking.mlflow:
                shown.artifact(*outcome(session, result))
        except BaseException as error:
            shown.end(state_of(error), str(error) or type(error).__name__)
            raise
        shown.end("COMPLETED")
        flows.write()
        return result


def _rounds(training: Training, flows: CellFlowRuns, shown: CellFlowRun, rounds_as_tasks: bool) -> Calls[None]:
    """Carries out the remaining rounds, phase by phase."""
    while (phase := training.phase) is not None:
        with shown.task(f"phase {phase}", "phase") as task:
            while training.phase == phase:
                if rounds_as_tasks:
                    with shown.task(f"round {phase}.{training.round}", "round", task):
                        yield from training.round_calls()
                else:
                    yield from training.round_calls()
                flows.write()


def _release(shown: CellFlowRun, *arguments: Any) -> Any:
    with shown.task("moments", "moments"):
        return release(*arguments)


def _tag(sweep: str, tags: Sequence[str]) -> None:
    with get_client(sync_client=True) as client:
        client.update_flow_run(runtime.flow_run.id, tags=[f"sweep:{sweep}", *tags])
