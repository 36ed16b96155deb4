"""A run in progress: rounds, checkpoints and metrics; at the end its ledgers are compared with the plan and closed.

Order of a round: the state and the next query are stored on disk; the query is sent; the silos answer; the answers
are folded into the state. A killed run starts again at the stored query and sends the same bytes. So each site repeats
at most that one round, with the same keys and to the same bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import chain

import numpy as np

from fedcore.errors import AbandonedError, DivergedError, InputError
from fedcore.experiment.experiment import Experiment
from fedcore.experiment.held_out import evaluations
from fedcore.experiment.patience import PatienceConfig, Verdict
from fedcore.experiment.result import AbandonedRun, HeldOut, RunResult
from fedcore.federation.comparison import compare, compare_shuffled, with_missing
from fedcore.federation.in_process import Backend
from fedcore.federation.receipts import Receipts
from fedcore.messages import Query, Releases
from fedcore.planning.phase import Phase
from fedcore.silo.account import SiloAccount
from tasks.binding import bind
from tasks.calls import Calls, Stopwatch, alone
from tasks.round_metrics import (
    MESSAGES,
    Judge,
    TrackedRounds,
    Traffic,
    is_evaluated,
    public_metrics,
    simulation_metrics,
)
from tasks.run_result import abandoned_run, run_result
from tasks.run_store import MetricRow, RunStore
from tasks.statement import evaluation_metrics
from tasks.tracking.tracker import TrackedRun

COUNTED = "counted"
"""Key of the run's file: the round whose stored query names the silos that are counted."""
Progress = Callable[[str, int, int], None]
"""Called before the first round and after each with (run, rounds done, rounds planned)."""


class Training:
    """A run between its first and its last round. Not thread-safe: one driver, one thread.

    `patience`: the rule that may abandon the run. It then sets `verdict`, and `abandon_calls` replaces `last_calls`.
    """

    def __init__(
        self,
        experiment: Experiment,
        backend: Backend | None,
        store: RunStore,
        tracker: TrackedRun | None = None,
        progress: Progress | None = None,
        patience: PatienceConfig | None = None,
    ) -> None:
        self.experiment = experiment
        self._backend = backend
        self._store = store
        self._tracked = TrackedRounds(experiment, tracker, store.path)
        self._progress = progress
        self._course = experiment.context
        self._shuffled = experiment.plan.problem.trust.shuffle is not None
        self._skips = experiment.config.participation.absent == "skip"
        self._method = self._course.method
        self._receipts = Receipts(store.receipts, None)
        self._row: MetricRow | None = None
        self._model: tuple[int, np.ndarray] | None = None
        self._traffic = Traffic(experiment.plan)
        self._judge = None if patience is None else Judge(experiment.run, experiment.plan, patience)

    def load(self) -> None:
        """Loads the run's checkpoint, or begins the run. Raises InputError."""
        bind(self._store, self.experiment)
        loaded = self._store.load(self._method.state)
        if loaded is None:
            self._state = self._method.init(self.experiment.start())
            self._query: Query | None = self._course.query(self._state)
        else:
            self._state, self._query = loaded
        self._receipts = Receipts(self._store.receipts, self._store.newest_receipts())
        if (newest := self._store.newest_row()) is not None:
            self._traffic.resume(newest.values)
        if self._judge is not None:
            self._judge.resume((row.phase, row.round, row.values) for row in self._store.metric_rows())

    def start(self) -> None:
        """Loads the run, opens the silos and sends MLflow what it may have missed. Raises InputError, SiloError."""
        self.load()
        if self.experiment.plan.problem.trust.shuffle is not None and not hasattr(self.backend, "batch"):
            raise InputError("privacy.trust = shuffler: no shuffler is between silos and driver: nothing is sent")
        self.backend.open()
        self.backend.restore(self.experiment.run, self._receipts)
        self.track_again()
        if self._query is not None:
            self._report_progress(self._query.phase, self._query.round - 1)

    @property
    def backend(self) -> Backend:
        """The backend of the silos. Raises RuntimeError for a run that was opened without one."""
        if self._backend is None:
            raise RuntimeError(f"run {self.experiment.run} was opened without its silos")
        return self._backend

    @property
    def verdict(self) -> Verdict | None:
        """The verdict of patience that abandons the run; None while it goes on."""
        return None if self._judge is None else self._judge.verdict

    @property
    def phase(self) -> int | None:
        """Phase of the next round; None when all rounds are done."""
        return None if self._query is None else self._query.phase

    @property
    def round(self) -> int:
        """Next round, from 1 within its phase; 0 when all rounds are done."""
        return 0 if self._query is None else self._query.round

    @property
    def model(self) -> np.ndarray:
        return self._method.output(self._state)

    def advance(self) -> None:
        """One round, from the checkpoint to the metrics."""
        alone(self.round_calls())

    def round_calls(self) -> Calls[None]:
        """One round, from the checkpoint to the metrics, stopping at each call that silos have to answer.

        Raises AbandonedError once patience has ended the run.
        """
        query = self._query
        if self.verdict is not None:
            raise AbandonedError(self.verdict.sentence)
        if query is None:
            raise RuntimeError(f"run {self.experiment.run} has no round left")
        watch = Stopwatch()
        phase = self.experiment.plan.phases[query.phase - 1]
        if query.round == 1:
            self._tracked.begin(phase)
        self._checkpoint()
        before = self._state
        try:
            query, came = yield from self._answered(query, watch)
            self._query = self._course.query(self._state)
        except DivergedError as error:
            if self._judge is None:
                raise
            self._state = before  # the newest finite state
            self._judge.diverged(query, str(error))
        values = yield from self._values(query, phase, came, watch)
        values |= self._method.curve(before, self._state, phase)
        values["system/round_seconds"] = watch.seconds
        self._row = MetricRow(query.phase, query.round, values)
        self._tracked.row(query.phase, query.round, values)
        if query.round == phase.rounds:
            self._model = (phase.index, self.model)
            self._tracked.end(phase, self.model)
        self._report_progress(query.phase, query.round)
        if self._judge is not None:
            self._judge.look(query, values)

    def _answered(self, query: Query, watch: Stopwatch) -> Calls[tuple[Query, int]]:
        """Sends the query, and folds the answers into the state.

        Returns their number, and the query to the silos that were counted.
        """
        if not self._shuffled:
            query, releases = yield from self._gathered(query, watch)
            try:
                self._state = self._course.fold(self._state, query, releases)
            except DivergedError:
                self._take_receipts(releases)  # the silos have released and charged them
                raise
            self._take_receipts(releases)
            return query, len(releases)
        # A batch has no receipts: a digest beside a silo's name would match an answer, and undo the shuffling.
        batch = yield from watch.call(self.backend, "batch", query)
        self._state = self._course.fold_batch(self._state, query, batch)
        return query, len(batch.payloads)

    def _gathered(self, query: Query, watch: Stopwatch) -> Calls[tuple[Query, Releases]]:
        """Answers to the query; where silos may be skipped, those of the silos that it is then narrowed to.

        Who is counted is stored before an answer is used. So a resumed round counts the same silos, and a late answer
        is never folded in.
        """
        at = f"{query.phase}.{query.round}"
        if not self._skips or self._store.meta().get(COUNTED) == at:
            releases = yield from watch.call(self.backend, "ask", query)
            return query, releases
        releases = yield from watch.call(self.backend, "gather", query)
        query = query.among(releases.silos)
        self._store.save(self._state, query)
        self._store.set_meta(**{COUNTED: at})
        return query, releases

    def finish(self) -> RunResult:
        """Saves the last round, compares ledgers with the plan, closes the run there, and returns the result.

        Raises SiloError if a ledger shows more than the plan allows; no result is published then.
        """
        return alone(self.last_calls())

    def last_calls(self) -> Calls[RunResult]:
        """`finish`, stopping at each call that silos have to answer."""
        accounts = yield from self._closed()
        rows = self._store.metric_rows()
        return run_result(self.experiment, accounts, self._receipts, rows, self.model, self._evaluations())

    def abandon_calls(self, sweep: str | None) -> Calls[AbandonedRun]:
        """`last_calls` for a run with a verdict: its silos release nothing after that."""
        if self.verdict is None:
            raise RuntimeError(f"run {self.experiment.run} was not abandoned")
        accounts = yield from self._closed()
        return abandoned_run(self.experiment, accounts, self._receipts, self.verdict, sweep)

    def _closed(self) -> Calls[list[SiloAccount]]:
        """Saves the run, compares the silos' accounts with the queries, closes it there, and returns the accounts."""
        self._checkpoint()
        self._tracked.catch_up()
        watch = Stopwatch()
        accounts = yield from watch.call(self.backend, "accounts", self.experiment.run)
        if self._shuffled:
            came = sum(int(row.values[MESSAGES]) for row in self._store.metric_rows())
            questions, query = self._course.questions_before(self._query), self._query
            if query is not None and self.verdict is not None and self.verdict.diverged:
                questions = chain(questions, ((silo, query.phase, query.round) for silo in query.participants))
            compare_shuffled(self.experiment.plan, questions, came, accounts)
        else:
            received = Counter(receipt.silo for receipt in self._receipts)
            asked = Counter(silo for silo, _, _ in self._course.questions_before(self._query)) if self._skips else None
            compare(self.experiment.plan, received, accounts, asked)
            if self._skips:
                accounts = with_missing(self.experiment.plan, received, accounts)
        yield from watch.call(self.backend, "close_run", self.experiment.run)
        return accounts

    def _report_progress(self, phase: int, round: int) -> None:
        if self._progress is not None:
            plan = self.experiment.plan
            self._progress(self.experiment.run, plan.position(phase, round), plan.rounds)

    def _take_receipts(self, releases: Releases) -> None:
        self._receipts.take(releases)

    def _checkpoint(self) -> None:
        self._store.save(self._state, self._query, self._row, self._receipts.new, self._model)
        self._receipts.saved()
        self._row, self._model = None, None

    def _values(self, query: Query, phase: Phase, came: int, watch: Stopwatch) -> Calls[dict[str, float]]:
        """Metric values of a round in which `came` answers were folded."""
        config, w = self.experiment.config, self.model
        values = self._traffic.counted(query, phase, came)
        evaluated, judged = is_evaluated(self.experiment, query), self._judge is not None and self._judge.looks(query)
        if evaluated:
            values |= public_metrics(self.experiment, query, None if phase.evaluates else w)
            if phase.evaluates:
                return values | evaluation_metrics(self._evaluations()[-1], config.data.label_values)
        if judged or (evaluated and config.simulation_metrics):
            parts = yield from watch.call(self.backend, "simulated", self.experiment.run, w)
            values |= simulation_metrics(config, parts)
        return values

    def _evaluations(self) -> list[HeldOut]:
        return evaluations(self.experiment.plan, self._state, self.experiment.config.data.label_values)

    def track_again(self) -> None:
        """Sends the rounds that earlier drivers completed once more; the tracker drops what MLflow already has."""
        begun = None if self._query is None or self.round == 1 else self._query.phase
        self._tracked.again(self._store.done(), self._store.models(), begun)
