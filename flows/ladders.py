"""States of the ladders of a sweep with patience, from the runs' states and losses on disk."""

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

RungState = Literal["chosen", "abandoned", "open", "not tried"]


@dataclass(frozen=True)
class Rung:
    """One value of a ladder. State `open`: to be run or resumed; `not tried`: below a chosen or open value.

    `round`: the round of training after which the value was abandoned, for this `reason`.
    """

    value: float
    run: str
    state: RungState
    round: int | None = None
    reason: str | None = None
    diverged: bool = False
    published: bool = True
    """True if MLflow has all of the run, or the run is not tracked."""


@dataclass(frozen=True)
class LadderState:
    """State of one ladder. `apart`: the keys and values in which it differs from the sweep's other ladders."""

    key: str
    apart: dict[str, Any]
    rungs: tuple[Rung, ...]

    @property
    def chosen(self) -> Rung | None:
        return next((rung for rung in self.rungs if rung.state == "chosen"), None)

    @property
    def decided(self) -> bool:
        """True if a value is chosen or all are abandoned."""
        return all(rung.state != "open" for rung in self.rungs)

    @property
    def complete(self) -> bool:
        """True if the ladder is decided and MLflow has all of its runs."""
        return self.decided and all(rung.published for rung in self.rungs)

    def as_json(self) -> dict[str, Any]:
        """The chosen value (or None), abandoned ones with round and reason, open and untried ones."""
        chosen = self.chosen
        shown = ("value", "run", "round", "reason", "diverged")
        by: dict[RungState, list[Rung]] = {}
        for rung in self.rungs:
            by.setdefault(rung.state, []).append(rung)
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


def ladder_states(home: Home, config: SweepConfig, runs: RecordedRuns | None = None) -> list[LadderState]:
    """All ladders of the sweep, none without patience. Raises InputError for a run that this patience cannot judge."""
    rule, runs = config.patience, runs or RecordedRuns(home)
    return [] if rule is None else [_ladder_state(home, rule, ladder, runs) for ladder in config.ladders()]


def _ladder_state(home: Home, rule: PatienceConfig, ladder: Ladder, runs: RecordedRuns) -> LadderState:
    rungs: list[Rung] = []
    above: RungState = "abandoned"
    for value, cell in zip(ladder.values, ladder.cells, strict=True):
        if above == "abandoned":
            rungs.append(rung_of(home, rule, value, cell, runs))
            above = rungs[-1].state
        else:
            rungs.append(Rung(value, runs.run(cell), "not tried"))
    return LadderState(rule.key, ladder.apart, tuple(rungs))


def rung_of(
    home: Home, rule: PatienceConfig, value: float, cell: ExperimentConfig, runs: RecordedRuns | None = None
) -> Rung:
    """State of a value below abandoned ones only. Raises InputError if the rule cannot judge its ended run.

    The rule judges the stored losses, whichever sweep ran the run, so a finished run's value may be abandoned.
    """
    run = run_id(cell) if runs is None else runs.run(cell)
    record = read_run(home, run)
    here = Rung(value, run, "open")
    if record is None or record.state not in ("FINISHED", "ABANDONED"):
        return here
    published = record.tracked or not cell.tracking.mlflow
    ended = record.abandoned
    verdict = verdict_on(home, rule, cell, run) if ended is None or not ended.diverged else ended
    if verdict is not None:
        return replace(
            here,
            state="abandoned",
            round=verdict.round,
            reason=verdict.reason,
            diverged=verdict.diverged,
            published=published,
        )
    if ended is not None:
        raise InputError(f"{ended.refusal} (this sweep's patience would not have abandoned it there)")
    return replace(here, state="chosen", published=published)


def verdict_on(home: Home, rule: PatienceConfig, cell: ExperimentConfig, run: str | None = None) -> Verdict | None:
    """The rule's verdict on a cell's run, by the losses in its checkpoint. `run`: its id, if a former one.

    Raises InputError if losses are missing.
    """
    run = run_id(cell) if run is None else run
    return rule.verdict(list(judged_losses(run, make_plan(cell), rule, read_rows(store_path(home, run)))))


def tried_cells(home: Home, config: SweepConfig, runs: RecordedRuns | None = None) -> list[ExperimentConfig]:
    """Cells that the sweep has reached: all but those not tried; without patience, all."""
    cells, runs = list(config.cells()), runs or RecordedRuns(home)
    if config.patience is None:
        return cells
    found = {
        rung.run for ladder in ladder_states(home, config, runs) for rung in ladder.rungs if rung.state != "not tried"
    }
    return [cell for cell in cells if runs.run(cell) in found]


def with_choice(config: SweepConfig, results: Iterable[RunResult]) -> list[RunResult]:
    """The results as a sweep shows them: their noise statements include patience's choice."""
    if config.patience is None:
        return list(results)
    return [config.patience.with_statement(result) for result in results]


def check_looks(config: SweepConfig) -> None:
    """Raises InputError if a cell's training ends before the first look of patience."""
    if config.patience is None:
        return
    for cell in config.cells():
        rounds = make_plan(cell).training_rounds
        if rounds < config.patience.every:
            raise InputError(
                f"patience.every = {config.patience.every}: {cell.algorithm.name} has {rounds} rounds of training, and "
                "none of them would be looked at; take fewer"
            )
