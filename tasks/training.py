"""One run in progress: rounds, checkpoints, metrics and the comparison of plan and ledger at the end.

Order of a round: the state and the query that comes next are on disk before the query leaves; the silos answer; the
answers are folded into the state. A killed run starts again at the stored query and sends those same bytes, so each
site computes at most that one round again, and from the same keys, to the same bits.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.whole_silo import whole_silo_epsilon
from fedcore.algorithms.statistics.evaluated import histograms_of
from fedcore.errors import InputError, ShufflerError, SiloError
from fedcore.experiment.evaluation import measures
from fedcore.experiment.experiment import Experiment
from fedcore.experiment.held_out import held_out
from fedcore.experiment.identity import canonical, code_version
from fedcore.experiment.result import HeldOut, RunResult
from fedcore.experiment.spending import is_shown, spent_so_far
from fedcore.experiment.statistics import composed_epsilon, largest_composed, largest_honest_sampling, statistics_id
from fedcore.federation.in_process import Backend
from fedcore.messages import Query, Receipt, Release
from fedcore.planning.phase import Phase
from fedcore.planning.plan import Plan
from fedcore.planning.problem import unit_of
from fedcore.silo.site import SiloAccount
from tasks.calls import Calls, Stopwatch, alone
from tasks.run_store import MetricRow, RunStore
from tasks.statement import evaluation_metrics, phase_budget, phase_model, phase_parameters, stamp
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
        plan, config, w = self.experiment.plan, self.experiment.config, self.model
        budget, before = plan.problem.budget, self.experiment.statistics
        composed = self._composed(accounts)
        values: dict[str, Any] = {
            "run": self.experiment.run,
            "method": config.algorithm.name,
            "seed": config.seed,
            "trust": config.privacy.trust,
            "epsilon_target": budget.epsilon,
            **({} if budget.multiplier is None else {"noise_multiplier": budget.multiplier}),
            "epsilon_accounted": _finite(largest_composed(plan, before)),
            "epsilon_spent": _finite(max(composed.values())),
            "epsilon_paper": _finite(plan.epsilon_paper),
            **({} if plan.epsilon_shuffled is None else {"epsilon_shuffled": plan.epsilon_shuffled}),
            "epsilon_honest_sampling": largest_honest_sampling(plan, before),
            "delta": max(account.delta for account in accounts),
            **_whole_silo(plan),
            "unit": unit_of(plan.problem.person),
            "rounds": plan.rounds,
            "gradient_evaluations": int(sum(row.values["gradient_evaluations"] for row in rows)),
            "theorem": plan.theorem,
            "seconds": round(sum(row.values["system/round_seconds"] for row in rows), 3),
            "weights_sha256": hashlib.sha256(w.tobytes()).hexdigest(),
            "weights_shape": phase_model(self.experiment, w).weights_shape,
            "noise": stamp(config),
            "code": code_version(),
            "silos": self._silos(accounts, composed),
        }
        test = self.experiment.dataset.test
        if plan.problem.evaluation is not None:
            values["held_out"] = tuple(self._evaluations())
        trained = [row for row in rows if not plan.phases[row.phase - 1].evaluates]
        if test is not None:
            ends = self.experiment.dataset.sources[0].label_range
            parts = self.experiment.dataset.test_parts
            values |= measures(self.experiment.model, w, test, config.data.label_values, ends, parts)
            if "test_error" in values:
                values["test_error_tail"] = _tail(plan, trained)
        shown = {name: value for name, value in trained[-1].values.items() if name.startswith("simulation/")}
        if shown:
            values["simulation"] = {name.removeprefix("simulation/"): value for name, value in shown.items()}
        if before is not None:
            values["epsilon_statistics"] = _finite(before.epsilon_accounted)
            values["epsilon_training"] = _finite(max(account.epsilon for account in accounts))
            values["statistics"] = statistics_id(config)
        return RunResult.model_validate(values)

    def _silos(self, accounts: list[SiloAccount], composed: dict[str, float]) -> list[dict[str, Any]]:
        """`RunResult.silos` as plain values."""
        before, found = self.experiment.statistics, []
        target = self.experiment.plan.problem.budget.whole_silo
        released = self._released(accounts) if target is not None else {}
        for a in accounts:
            silo: dict[str, Any] = {
                "silo": a.silo, "n": a.n, "releases": a.releases, "epsilon": _finite(composed[a.silo]), "delta": a.delta
            }  # fmt: skip
            if before is not None:
                silo["epsilon_statistics"] = _finite(before.silo_epsilon(a.silo))
                silo["epsilon_training"] = _finite(a.epsilon)
            if target is not None:
                silo["epsilon_whole_silo"] = _finite(whole_silo_epsilon(released[a.silo], target.delta))
            found.append(silo)
        return found

    def _composed(self, accounts: list[SiloAccount]) -> dict[str, float]:
        """What the run has cost each silo, together with the statistics that its constants come from, if there are any.

        Of training the releases that took place, which `compare` has found in the ledger.
        """
        plan, before = self.experiment.plan, self.experiment.statistics
        if before is None:
            return {account.silo: account.epsilon for account in accounts}
        return {
            silo: composed_epsilon(plan, before, silo, mine) for silo, mine in self._released(accounts).items()
        }

    def _released(self, accounts: list[SiloAccount]) -> dict[str, list[GaussianRelease]]:
        """Events of what was received from each silo."""
        phases = self.experiment.plan.phases
        events: dict[str, list[GaussianRelease]] = {account.silo: [] for account in accounts}
        for receipt in self._receipts:
            events[receipt.silo].append(phases[receipt.phase - 1].event(receipt.silo, receipt.round))
        return events

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
        sent += came * phase.length(plan.problem)
        received += sum(array.size for name in query.participants for array in query.asked(name).values())
        self._floats = sent, received
        values = {
            "communication/floats_up": float(sent),
            "communication/floats_down": float(received),
            "gradient_evaluations": 0.0 if phase.evaluates else float(
                phase.answers * sum(phase.by_silo[name].batch for name in query.participants)
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
        """What silos have released about held-out records so far."""
        plan, classes = self.experiment.plan, self.experiment.config.data.label_values
        evaluation = plan.problem.evaluation
        if evaluation is None or classes is None:
            return []
        phases = [phase for phase in plan.phases if phase.evaluates]
        found = histograms_of(self._state)
        return [held_out(phase, evaluation, told, classes) for phase, told in zip(phases, found, strict=False)]

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


def _tail(plan: Plan, trained: list[MetricRow]) -> float:
    """Mean test error of the evaluated rounds among the last tenth of all: less of one round's noise than the last."""
    late = [row.values for row in trained[-max(1, plan.training_rounds // 10) :]]
    return float(np.mean([values["test/error"] for values in late if "test/error" in values]))


def compare(plan: Plan, receipts: Iterable[Receipt], accounts: Iterable[SiloAccount]) -> None:
    """What was released must be what was planned and received. Raises SiloError otherwise."""
    # The PLD accountant for subsampled Gaussians says 0.2 % too much at most, not the same for each number of answers.
    slack = 1e-9 if all(phase.rate == 1 for phase in plan.phases) else 3e-3
    expected = {silo.name: 0 for silo in plan.problem.silos}
    for receipt in receipts:
        expected[receipt.silo] += 1
    for account in accounts:
        planned = plan.silo_epsilon(account.silo)
        if account.releases != expected[account.silo] or account.epsilon > planned * (1 + slack):
            raise SiloError(
                account.silo,
                "plan",
                f"its ledger shows {account.releases} releases and epsilon {account.epsilon:.6g}, the driver "
                f"received {expected[account.silo]} and planned for epsilon {planned:.6g}",
            )


def _whole_silo(plan: Plan) -> dict[str, float | None]:
    """What a result says of the second target; nothing where there is none."""
    target, epsilon = plan.problem.budget.whole_silo, plan.epsilon_whole_silo
    if target is None or epsilon is None:
        return {}
    return {
        "epsilon_whole_silo_target": target.epsilon, "epsilon_whole_silo": _finite(epsilon),
        "delta_whole_silo": target.delta,
    }  # fmt: skip


def compare_shuffled(
    plan: Plan, asked: Sequence[tuple[str, int, int]], came: int, accounts: Sequence[SiloAccount]
) -> None:
    """What silos released must be what they were asked, at most, and at least what came in batches.

    `asked`: (silo, phase, round); whose messages came nobody here knows. Raises SiloError or ShufflerError otherwise.
    """
    counts = Counter(silo for silo, _, _ in asked)
    for account in accounts:
        planned = plan.silo_epsilon(account.silo)
        if account.releases > counts[account.silo] or account.epsilon > planned * (1 + 1e-9):
            raise SiloError(
                account.silo,
                "plan",
                f"its ledger shows {account.releases} releases and epsilon {account.epsilon:.6g}, the driver asked for "
                f"{counts[account.silo]} and planned for epsilon {planned:.6g}",
            )
    released = sum(account.releases for account in accounts)
    if came > released:
        sentence = f"{came} messages came in its batches, and ledgers show {released} releases: others sent some"
        raise ShufflerError("answer", sentence)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
