"""Metrics of a run's rounds: traffic, public and simulated measures, their tracking, and patience's losses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

import numpy as np

from fedcore.arrays import Vector
from fedcore.directed_rounding import number_up
from fedcore.errors import AbandonedError, InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment
from fedcore.experiment.patience import PatienceConfig, Spell, Verdict
from fedcore.experiment.served.phase_model import phase_model
from fedcore.experiment.spending import is_shown, spent_so_far
from fedcore.messages import Query
from fedcore.planning.phase import Phase
from fedcore.planning.plan import Plan
from tasks.run_file import rows_of_phase
from tasks.statement import phase_budget, phase_parameters
from tasks.tracking.tracker import TrackedRun

MESSAGES = "shuffler/messages"
"""Number of messages in the batch of a shuffled round."""
TRAIN_LOSS = "simulation/train_loss"
"""NOT PRIVATE: the mean loss over all silos' records."""
MOST_WAITING = 10_000
"""Most entries, of a kilobyte each, that wait in memory for MLflow. Later rounds are read from the checkpoint, once
half of these are written."""


class Traffic:
    """Numbers sent up and down in all rounds so far."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._floats = 0, 0

    def resume(self, values: Mapping[str, float]) -> None:
        """Goes on from the newest round's values."""
        self._floats = int(values["communication/floats_up"]), int(values["communication/floats_down"])

    def counted(self, query: Query, phase: Phase, came: int) -> dict[str, float]:
        """Values of a round in which `came` answers were folded."""
        sent, received = self._floats
        here = phase.at(query.round)
        sent += came * here.question.sent(self._plan.problem.objective.dim)
        received += sum(array.size for name in query.participants for array in query.arrays_for(name).values())
        self._floats = sent, received
        values = {
            "communication/floats_up": float(sent),
            "communication/floats_down": float(received),
            "gradient_evaluations": 0.0
            if phase.evaluates
            else float(
                here.schedule.answers
                * here.question.gradients
                * sum(here.by_silo[name].batch for name in query.participants)
            ),
        }
        if self._plan.problem.trust.shuffle is not None:
            values[MESSAGES] = float(came)
        return values


def is_evaluated(experiment: Experiment, query: Query) -> bool:
    """True if the config asks for an evaluation after this round; the last round of a phase is always evaluated."""
    plan, tracking = experiment.plan, experiment.config.tracking
    position = plan.position(query.phase, query.round)
    due = query.round % tracking.evaluate_every == 0 and position > tracking.evaluate_from * plan.rounds
    return due or query.round == plan.phases[query.phase - 1].rounds


def public_metrics(experiment: Experiment, query: Query, w: Vector | None) -> dict[str, float]:
    """Epsilons spent up to this round, where they are shown, and test loss and error of the model `w`, if any."""
    plan, values = experiment.plan, dict[str, float]()
    if plan.problem.budget.private and is_shown(plan, query.phase, query.round):
        spent = spent_so_far(plan, experiment.statistics, query.phase, query.round)
        values |= {f"privacy/{name}_so_far": number_up(epsilon) for name, epsilon in spent.items()}
    test = experiment.dataset.test
    if w is None or test is None:
        return values
    losses, wrong = experiment.model.evaluate(w, test.X, test.y)
    values["test/loss"] = float(np.mean(losses))
    if wrong is not None:
        values["test/error"] = float(np.mean(wrong))
    return values


def simulation_metrics(config: ExperimentConfig, parts: Sequence[tuple[int, float, float]]) -> dict[str, float]:
    """NOT PRIVATE: mean loss and error over all silos. `parts`: each silo's records, sum of losses and errors."""
    records = sum(part[0] for part in parts)
    values = {TRAIN_LOSS: sum(part[1] for part in parts) / records}
    if config.model.loss.labels.classes:
        values["simulation/train_error"] = sum(part[2] for part in parts) / records
    return values


def training_round(plan: Plan, phase: int, round: int) -> int:
    """Number of rounds of training up to and including this one, from 1."""
    return sum(each.rounds for each in plan.phases[: phase - 1] if not each.evaluates) + round


def judged_losses(
    run: str, plan: Plan, rule: PatienceConfig, rows: Iterable[tuple[int, int, Mapping[str, float]]]
) -> Iterator[tuple[int, float]]:
    """Training round and loss wherever patience looks. `rows`: phase, round and values, in order.

    Raises InputError if a row has no loss where patience looks: the run was begun without patience.
    """
    for phase, round, values in rows:
        number = training_round(plan, phase, round)
        if plan.phases[phase - 1].evaluates or not rule.is_due(number):
            continue
        if TRAIN_LOSS not in values:
            raise InputError(
                f"run {run} has no training loss of round {number}, at which patience.every = {rule.every} looks: it "
                "was begun without this patience; set repetition to another number to run it anew"
            )
        yield number, values[TRAIN_LOSS]


class Judge:
    """The state of patience for one run. `verdict`: None while the run goes on."""

    def __init__(self, run: str, plan: Plan, rule: PatienceConfig) -> None:
        self._run, self._plan, self._rule = run, plan, rule
        self._spell = Spell(rule)
        self.verdict: Verdict | None = None

    def resume(self, rows: Iterable[tuple[int, int, Mapping[str, float]]]) -> None:
        """Reads the losses of completed rounds. Raises InputError if one is missing where patience looks."""
        self._spell, self.verdict = Spell(self._rule), None
        for round, loss in judged_losses(self._run, self._plan, self._rule, rows):
            self.verdict = self.verdict or self._spell.look(round, loss)

    def looks(self, query: Query) -> bool:
        """True if patience needs the training loss after this round."""
        return not self._plan.phases[query.phase - 1].evaluates and self._rule.is_due(self._round(query))

    def look(self, query: Query, values: Mapping[str, float]) -> None:
        """Judges a round's values. Raises AbandonedError if they end the run."""
        if not self.looks(query):
            return
        if (verdict := self._spell.look(self._round(query), values[TRAIN_LOSS])) is not None:
            self._abandon(verdict)

    def diverged(self, query: Query, reason: str) -> NoReturn:
        """Raises AbandonedError: this round gave no finite model."""
        self._abandon(Verdict(self._round(query), reason, diverged=True))

    def _abandon(self, verdict: Verdict) -> NoReturn:
        self.verdict = verdict
        raise AbandonedError(verdict.sentence)

    def _round(self, query: Query) -> int:
        return training_round(self._plan, query.phase, query.round)


class TrackedRounds:
    """Sends the rounds of one run to the tracker, if there is one. `checkpoint`: the run's file.

    A round's metrics are sent before the round is in the checkpoint, so those of a phase's last round never wait.
    """

    def __init__(self, experiment: Experiment, tracker: TrackedRun | None, checkpoint: Path) -> None:
        self._plan, self._experiment, self.tracker = experiment.plan, experiment, tracker
        self._checkpoint = checkpoint
        self._left: tuple[int, int, int] | None = None
        """Phase, first and last round that were left out."""

    def begin(self, phase: Phase) -> None:
        if self.tracker is not None:
            shown = self._experiment.context.method.shown(phase)
            self.tracker.begin_phase(phase.index, {**phase_parameters(phase), **shown})

    def row(self, phase: int, round: int, values: Mapping[str, float]) -> None:
        if self.tracker is None:
            return
        room = MOST_WAITING if self._left is None else MOST_WAITING // 2
        if self.tracker.waiting >= room and round < self._plan.phases[phase - 1].rounds:
            self._left = (phase, round if self._left is None else self._left[1], round)
            return
        self.catch_up()
        self.tracker.metrics(phase, round, values, self._plan.position(phase, round))

    def catch_up(self) -> None:
        """Sends the rounds that were left out; the checkpoint has them, or will have them soon."""
        if self._left is not None:
            phase, first, last = self._left
            self._read(phase, first, last - first + 1)
            self._left = None

    def end(self, phase: Phase, w: Vector) -> None:
        if self.tracker is not None:
            model = None if phase.evaluates else phase_model(self._experiment, w)
            self.tracker.end_phase(phase.index, phase_budget(phase), model)

    def again(self, done: Mapping[int, int], models: Mapping[int, Vector], begun: int | None) -> None:
        """Sends everything that is completed once more. `done`: rounds by phase; `begun`: the phase in progress."""
        for phase in self._plan.phases:
            rounds = done.get(phase.index, 0)
            if rounds or phase.index == begun:
                self.begin(phase)
                self._read(phase.index, 1, rounds)
            if phase.index in models:
                self.end(phase, models[phase.index])

    def _read(self, phase: int, first: int, rounds: int) -> None:
        """Sends `rounds` rounds from `first` on, which the tracker's thread reads in portions."""
        if self.tracker is not None and rounds:
            rows = partial(rows_of_phase, self._checkpoint, phase, first, rounds)
            self.tracker.metrics_of(phase, rows, self._plan.position(phase, 0))
