"""Where the ladders of a sweep with patience stand on disk: which values are abandoned, which is chosen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import make_plan
from fedcore.experiment.identity import run_id
from fedcore.experiment.patience import Ladder, PatienceConfig, Verdict
from fedcore.experiment.result import RunResult
from fedcore.experiment.sweep import SweepConfig
from fedcore.home import Home
from flows.recorded.former_ids import RecordedRuns
from flows.runs import read_run, store_path
from tasks.round_metrics import judged_losses
from tasks.run_file import read_rows

Standing = Literal["chosen", "abandoned", "open", "not tried"]


@dataclass(frozen=True)
class Rung:
    """One value of a ladder. `open`: to be run, or gone on with; `not tried`: below one that is chosen or open.

    `round`: of training, after which it was abandoned, for this `reason`.
    """

    value: float
    run: str
    standing: Standing
    round: int | None = None
    reason: str | None = None
    diverged: bool = False
    told: bool = True
    """Whether MLflow has all of it, where it is wanted."""


@dataclass(frozen=True)
class LadderState:
    """One ladder. `apart`: what tells it from the sweep's others."""

    key: str
    apart: dict[str, Any]
    rungs: tuple[Rung, ...]

    @property
    def chosen(self) -> Rung | None:
        return next((rung for rung in self.rungs if rung.standing == "chosen"), None)

    @property
    def decided(self) -> bool:
        """Whether a value is chosen, or all are abandoned."""
        return all(rung.standing != "open" for rung in self.rungs)

    @property
    def complete(self) -> bool:
        """Decided, and MLflow has all of it."""
        return self.decided and all(rung.told for rung in self.rungs)

    def as_json(self) -> dict[str, Any]:
        """What is chosen (None: nothing), what was abandoned, when and why, what is open, and what was not tried."""
        chosen = self.chosen
        shown = ("value", "run", "round", "reason", "diverged")
        by: dict[Standing, list[Rung]] = {}
        for rung in self.rungs:
            by.setdefault(rung.standing, []).append(rung)
        return {
            "key": self.key,
            "apart": self.apart,
            "decided": self.decided,
            "chosen": None if chosen is None else chosen.value,
            "run": None if chosen is None else chosen.run,
            "abandoned": [{name: asdict(rung)[name] for name in shown} for rung in by.get("abandoned", ())],
            "open": [rung.value for rung in by.get("open", ())],
            "not_tried": [rung.value for rung in by.get("not tried", ())],
        }


def standings(home: Home, config: SweepConfig, runs: RecordedRuns | None = None) -> list[LadderState]:
    """All ladders of the sweep, none without patience. Raises InputError for a run that this patience cannot judge."""
    rule, runs = config.patience, runs or RecordedRuns(home)
    return [] if rule is None else [_standing(home, rule, ladder, runs) for ladder in config.ladders()]


def _standing(home: Home, rule: PatienceConfig, ladder: Ladder, runs: RecordedRuns) -> LadderState:
    rungs: list[Rung] = []
    above: Standing = "abandoned"
    for value, cell in zip(ladder.values, ladder.cells, strict=True):
        if above == "abandoned":
            rungs.append(rung_of(home, rule, value, cell, runs))
            above = rungs[-1].standing
        else:
            rungs.append(Rung(value, runs.run(cell), "not tried"))
    return LadderState(rule.key, ladder.apart, tuple(rungs))


def rung_of(
    home: Home, rule: PatienceConfig, value: float, cell: ExperimentConfig, runs: RecordedRuns | None = None
) -> Rung:
    """A value whose turn it is. Raises InputError where its run has ended and the rule cannot judge it.

    The rule decides by the losses that are kept, whoever ran it: one that was finished may be abandoned all the same.
    """
    run = run_id(cell) if runs is None else runs.run(cell)
    record = read_run(home, run)
    here = Rung(value, run, "open")
    if record is None or record.state not in ("FINISHED", "ABANDONED"):
        return here
    told = record.tracked or not cell.tracking.mlflow
    ended = record.abandoned
    verdict = verdict_on(home, rule, cell, run) if ended is None or not ended.diverged else ended
    if verdict is not None:
        return replace(
            here, standing="abandoned", round=verdict.round, reason=verdict.reason, diverged=verdict.diverged, told=told
        )
    if ended is not None:
        raise InputError(f"{ended.refusal} (this sweep's patience would not have abandoned it there)")
    return replace(here, standing="chosen", told=told)


def verdict_on(home: Home, rule: PatienceConfig, cell: ExperimentConfig, run: str | None = None) -> Verdict | None:
    """The rule's verdict on the run of a cell by the losses in its checkpoint; `run`: its id, if not that of now.

    Raises InputError if some are not there.
    """
    run = run_id(cell) if run is None else run
    return rule.verdict(list(judged_losses(run, make_plan(cell), rule, read_rows(store_path(home, run)))))


def tried_cells(home: Home, config: SweepConfig, runs: RecordedRuns | None = None) -> list[ExperimentConfig]:
    """The cells that the sweep has come to: all of them without patience."""
    cells, runs = list(config.cells()), runs or RecordedRuns(home)
    if config.patience is None:
        return cells
    found = {
        rung.run for ladder in standings(home, config, runs) for rung in ladder.rungs if rung.standing != "not tried"
    }
    return [cell for cell in cells if runs.run(cell) in found]


def said_of_choice(config: SweepConfig, results: Iterable[RunResult]) -> list[RunResult]:
    """The results as a sweep shows them: with how patience chose them, beside what is said of their noise."""
    if config.patience is None:
        return list(results)
    return [config.patience.with_statement(result) for result in results]


def check_looks(config: SweepConfig) -> None:
    """Raises InputError if a cell has fewer rounds than the first look of patience."""
    if config.patience is None:
        return
    for cell in config.cells():
        rounds = make_plan(cell).training_rounds
        if rounds < config.patience.every:
            raise InputError(
                f"patience.every = {config.patience.every}: {cell.algorithm.name} has {rounds} rounds of training, and "
                "none of them would be looked at; take fewer"
            )
