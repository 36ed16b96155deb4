"""One run in progress: rounds, checkpoints and metrics; at the end its ledgers are compared with the plan and closed.

Order of a round: the state and the query that comes next are on disk before the query leaves; the silos answer; the
answers are folded into the state. A killed run starts again at the stored query and sends those same bytes, so each
site computes at most that one round again, and from the same keys, to the same bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np

from fedcore.errors import InputError
from fedcore.experiment.experiment import Experiment
from fedcore.experiment.held_out import evaluations
from fedcore.experiment.identity import canonical, code_version
from fedcore.experiment.result import HeldOut, RunResult
from fedcore.experiment.spending import is_shown, spent_so_far
from fedcore.federation.comparison import compare, compare_shuffled
from fedcore.federation.in_process import Backend
from fedcore.messages import Query, Receipt, Release
from fedcore.planning.phase import Phase
from tasks.calls import Calls, Stopwatch, alone
from tasks.run_result import run_result
from tasks.run_store import MetricRow, RunStore
from tasks.statement import evaluation_metrics, phase_budget, phase_model, phase_parameters
from tasks.tracking import TrackedRun

MESSAGES = "shuffler/messages"
"""Of a shuffled round: how many came in its batch."""

Progress = Callable[[str, int, int], None]
"""Called after each round with (run, rounds done, rounds planned)."""


class Training:
    """A run between its first and its last round. Not thread-safe: one driver, one thread."""

    def __init__(
        self,
        experiment: Experiment,
        backend: Backend | None,
        store: RunStore,
        tracker: TrackedRun | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.experiment = experiment
        self._backend = backend
        self._store = store
        self._tracker = tracker
        self._progress = progress
        self._course = experiment.context
        self._shuffled = experiment.plan.problem.shuffle is not None
        self._method = self._course.method
        self._receipts: list[Receipt] = []
        self._new_receipts: list[Receipt] = []
        self._row: MetricRow | None = None
        self._model: tuple[int, np.ndarray] | None = None
        self._floats = 0, 0  # sent up and down in all rounds so far

    def load(self) -> None:
        """Takes up the run where its checkpoint is, or at its beginning. Raises InputError."""
        config, plan = self.experiment.config, self.experiment.plan
        identity = hashlib.sha256(canonical(config).encode()).hexdigest()
        digest = self.experiment.dataset.constants
        constants = {} if digest is None else {"constants": digest}
        self._store.bind(config=identity, plan=plan.digest, code=code_version(), **constants)
        loaded = self._store.load(self._method.state)
        if loaded is None:
            self._state = self._method.init(self.experiment.start())
            self._query: Query | None = self._course.query(self._state)
        else:
            self._state, self._query = loaded
        self._receipts = self._store.receipts()
        if rows := self._store.metric_rows():
            last = rows[-1].values
            self._floats = int(last["communication/floats_up"]), int(last["communication/floats_down"])

    def start(self) -> None:
        """`load`, then opens the silos and tells MLflow again what it may have missed. Raises InputError, SiloError."""
        self.load()
        if self.experiment.plan.problem.shuffle is not None and not hasattr(self.backend, "batch"):
            raise InputError("privacy.trust = shuffler: no shuffler is between silos and driver: nothing is sent")
        self.backend.open()
        self.backend.restore(self.experiment.run, self._receipts)
        self.track_again()

    @property
    def backend(self) -> Backend:
        """Where the silos are. Raises RuntimeError for a finished run, which needs none."""
        if self._backend is None:
            raise RuntimeError(f"run {self.experiment.run} was opened without its silos")
        return self._backend

    @property
    def phase(self) -> int | None:
        """Phase of the next round; None when all rounds are done."""
        return None if self._query is None else self._query.phase

    @property
    def round(self) -> int:
        """Round (from 1, within its phase) that comes next."""
        return 0 if self._query is None else self._query.round

    @property
    def model(self) -> np.ndarray:
        return self._method.output(self._state)

    def advance(self) -> None:
        """One round, from the checkpoint to the metrics."""
        alone(self.round_calls())

    def round_calls(self) -> Calls[None]:
        """One round, from the checkpoint to the metrics, stopping at each call that silos have to answer."""
        query = self._query
        if query is None:
            raise RuntimeError(f"run {self.experiment.run} has no round left")
        watch = Stopwatch()
        phase = self.experiment.plan.phases[query.phase - 1]
        self._begin_phase(phase)
        self._checkpoint()
        came = yield from self._answered(query, watch)
        self._query = self._course.query(self._state)
        last = query.round == phase.rounds
        values = yield from self._values(query, phase, came, last, watch)
        values["system/round_seconds"] = watch.seconds
        self._row = MetricRow(query.phase, query.round, values)
        if self._tracker is not None:
            self._tracker.metrics(query.phase, query.round, values)
        if last:
            self._model = (phase.index, self.model)
            self._end_phase(phase, self.model)
        if self._progress is not None:
            plan = self.experiment.plan
            self._progress(self.experiment.run, plan.position(query.phase, query.round), plan.rounds)

    def _answered(self, query: Query, watch: Stopwatch) -> Calls[int]:
        """Asks the silos, folds their answers into the state, and returns how many there are."""
        if not self._shuffled:
            releases = yield from watch.call(self.backend, "ask", query)
            self._state = self._course.fold(self._state, query, releases)
            self._keep_receipts(releases)
            return len(releases)
        # No receipts of a batch: a digest beside a silo's name would match an answer, and undo the shuffling.
        batch = yield from watch.call(self.backend, "batch", query)
        self._state = self._course.fold_batch(self._state, query, batch)
        return len(batch.payloads)

    def finish(self) -> RunResult:
        """Saves the end, compares ledgers with the plan, closes the run there, and returns the result as plain values.

        Raises SiloError if a ledger shows more than the plan allows: nothing is published then.
        """
        return alone(self.last_calls())

    def last_calls(self) -> Calls[RunResult]:
        """`finish`, stopping at each call that silos have to answer."""
        self._checkpoint()
        watch = Stopwatch()
        accounts = yield from watch.call(self.backend, "accounts", self.experiment.run)
        rows = self._store.metric_rows()
        if self._shuffled:
            came = sum(int(row.values[MESSAGES]) for row in rows)
            compare_shuffled(self.experiment.plan, self._course.asked_by(self._query), came, accounts)
        else:
            compare(self.experiment.plan, self._receipts, accounts)
        yield from watch.call(self.backend, "close_run", self.experiment.run)
        return run_result(self.experiment, accounts, self._receipts, rows, self.model, self._evaluations())

    def _keep_receipts(self, releases: list[Release]) -> None:
        self._new_receipts = [release.receipt for release in releases]
        self._receipts.extend(self._new_receipts)

    def _checkpoint(self) -> None:
        self._store.save(self._state, self._query, self._row, self._new_receipts, self._model)
        self._row, self._new_receipts, self._model = None, [], None

    def _values(
        self, query: Query, phase: Phase, came: int, last: bool, watch: Stopwatch
    ) -> Calls[dict[str, float]]:
        """Of a round in which `came` answers were folded."""
        plan, config = self.experiment.plan, self.experiment.config
        sent, received = self._floats
        here = phase.at(query.round)
        sent += came * here.sent(plan.problem)
        received += sum(array.size for name in query.participants for array in query.asked(name).values())
        self._floats = sent, received
        values = {
            "communication/floats_up": float(sent),
            "communication/floats_down": float(received),
            "gradient_evaluations": 0.0 if phase.evaluates else float(
                here.answers * here.gradients * sum(here.by_silo[name].batch for name in query.participants)
            ),
        }
        if self._shuffled:
            values[MESSAGES] = float(came)
        tracking, position = config.tracking, plan.position(query.phase, query.round)
        due = query.round % tracking.evaluate_every == 0 and position > tracking.evaluate_from * plan.rounds
        if not (last or due):
            return values
        if plan.problem.budget.private and is_shown(plan, query.phase, query.round):
            spent = spent_so_far(plan, self.experiment.statistics, query.phase, query.round)
            values |= {f"privacy/{name}_so_far": epsilon for name, epsilon in spent.items()}
        if phase.evaluates:
            return values | evaluation_metrics(self._evaluations()[-1])
        w, test = self.model, self.experiment.dataset.test
        if test is not None:
            losses, wrong = self.experiment.model.evaluate(w, test.X, test.y)
            values["test/loss"] = float(np.mean(losses))
            if wrong is not None:
                values["test/error"] = float(np.mean(wrong))
        if config.simulation_metrics:
            parts = yield from watch.call(self.backend, "simulated", self.experiment.run, w)
            records = sum(part[0] for part in parts)
            values["simulation/train_loss"] = sum(part[1] for part in parts) / records
            if config.model.loss.binary or config.model.class_ids:
                values["simulation/train_error"] = sum(part[2] for part in parts) / records
        return values

    def _evaluations(self) -> list[HeldOut]:
        return evaluations(self.experiment.plan, self._state, self.experiment.config.data.label_values)

    def _begin_phase(self, phase: Phase) -> None:
        if self._tracker is not None and self.round == 1:
            self._tracker.begin_phase(phase.index, phase_parameters(phase))

    def _end_phase(self, phase: Phase, w: np.ndarray) -> None:
        if self._tracker is not None:
            model = None if phase.evaluates else phase_model(self.experiment, w)
            self._tracker.end_phase(phase.index, phase_budget(phase), model)

    def track_again(self) -> None:
        """Sends what earlier drivers had completed once more; the tracker drops what MLflow already has."""
        if self._tracker is None:
            return
        rows, models = self._store.metric_rows(), self._store.models()
        for phase in self.experiment.plan.phases:
            mine = [row for row in rows if row.phase == phase.index]
            if mine or (self.phase == phase.index and self.round > 1):
                self._tracker.begin_phase(phase.index, phase_parameters(phase))
                for row in mine:
                    self._tracker.metrics(row.phase, row.round, row.values)
            if phase.index in models:
                self._end_phase(phase, models[phase.index])
