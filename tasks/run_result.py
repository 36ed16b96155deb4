"""The result of an ended run, from its ledgers, its metrics and its last model."""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.whole_silo import whole_silo_epsilon
from fedcore.experiment.evaluation import measures
from fedcore.experiment.experiment import Experiment
from fedcore.experiment.identity import code_version
from fedcore.experiment.patience import Verdict
from fedcore.experiment.result import AbandonedRun, HeldOut, RunResult, stamp
from fedcore.experiment.served.phase_model import phase_model
from fedcore.experiment.statistics import composed_epsilon, largest_composed, largest_honest_sampling, statistics_id
from fedcore.messages import Receipt
from fedcore.planning.plan import Plan
from fedcore.planning.problem import unit_of
from fedcore.silo.account import SiloAccount
from tasks.run_store import MetricRow


def run_result(
    experiment: Experiment,
    accounts: Sequence[SiloAccount],
    receipts: Iterable[Receipt],
    rows: Iterable[MetricRow],
    w: np.ndarray,
    evaluations: Sequence[HeldOut],
) -> RunResult:
    """The result as plain values; the caller has compared ledgers with the plan (`fedcore.federation.comparison`).

    `accounts`: one per silo, from its ledger. `receipts`: of all releases received, none in a shuffled run. `rows`:
    of all rounds, in order. `w`: (d,), the last model. `evaluations`: of held-out records.
    """
    plan, config = experiment.plan, experiment.config
    budget, before, course = plan.problem.budget, experiment.statistics, _Course(plan, rows)
    composed = _composed(experiment, accounts, receipts)
    values: dict[str, Any] = {
        "run": experiment.run,
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
        "unit": unit_of(plan.problem.trust.person),
        "rounds": plan.rounds,
        "gradient_evaluations": int(course.gradient_evaluations),
        "theorem": plan.theorem,
        "seconds": round(course.seconds, 3),
        "weights_sha256": hashlib.sha256(w.tobytes()).hexdigest(),
        "weights_shape": phase_model(experiment, w).weights_shape,
        "noise": stamp(config),
        "code": code_version(),
        "silos": _silos(experiment, accounts, receipts, composed),
    }
    test = experiment.dataset.test
    if plan.problem.evaluation is not None:
        values["held_out"] = tuple(evaluations)
    if test is not None:
        ends = experiment.dataset.sources[0].label_range
        parts = experiment.dataset.test_parts
        values |= measures(experiment.model, w, test, config.data.label_values, ends, parts)
        if "test_error" in values:
            values["test_error_tail"] = course.tail
    shown = {name: value for name, value in course.last.items() if name.startswith("simulation/")}
    if shown:
        values["simulation"] = {name.removeprefix("simulation/"): value for name, value in shown.items()}
    if before is not None:
        values["epsilon_statistics"] = _finite(before.epsilon_accounted)
        values["epsilon_training"] = _finite(max(account.epsilon for account in accounts))
        values["statistics"] = statistics_id(config)
    return RunResult.model_validate(values)


def abandoned_run(
    experiment: Experiment,
    accounts: Sequence[SiloAccount],
    receipts: Iterable[Receipt],
    verdict: Verdict,
    sweep: str | None,
) -> AbandonedRun:
    """The record of a run that patience ended, with the privacy that it spent; arguments as for `run_result`."""
    composed = _composed(experiment, accounts, receipts)
    return AbandonedRun.model_validate(
        {
            "run": experiment.run,
            "sweep": sweep,
            "round": verdict.round,
            "rounds": experiment.plan.training_rounds,
            "reason": verdict.reason,
            "diverged": verdict.diverged,
            "epsilon_spent": _finite(max(composed.values())),
            "delta": max(account.delta for account in accounts),
            "silos": _silos(experiment, accounts, receipts, composed),
            "noise": stamp(experiment.config),
            "code": code_version(),
        }
    )


def _silos(
    experiment: Experiment, accounts: Sequence[SiloAccount], receipts: Iterable[Receipt], composed: dict[str, float]
) -> list[dict[str, Any]]:
    """`RunResult.silos` as plain values."""
    plan, before, found = experiment.plan, experiment.statistics, []
    target = plan.problem.budget.whole_silo
    released = _released(plan, accounts, receipts) if target is not None else {}
    for a in accounts:
        silo: dict[str, Any] = {
            "silo": a.silo,
            "n": a.n,
            "releases": a.releases,
            "epsilon": _finite(composed[a.silo]),
            "delta": a.delta,
            "disjoint": a.disjoint,
        }
        if before is not None:
            silo["epsilon_statistics"] = _finite(before.silo_epsilon(a.silo))
            silo["epsilon_training"] = _finite(a.epsilon)
        if target is not None:
            silo["epsilon_whole_silo"] = _finite(whole_silo_epsilon(released[a.silo], target.delta))
        found.append(silo)
    return found


def _composed(experiment: Experiment, accounts: Sequence[SiloAccount], receipts: Iterable[Receipt]) -> dict[str, float]:
    """Each silo's epsilon of the run, composed with that of the statistics released before it, if any.

    Only training releases that took place count; `compare` has found them in the ledger.
    """
    plan, before = experiment.plan, experiment.statistics
    if before is None:
        return {account.silo: account.epsilon for account in accounts}
    released = _released(plan, accounts, receipts)
    return {silo: composed_epsilon(plan, before, silo, mine) for silo, mine in released.items()}


def _released(
    plan: Plan, accounts: Sequence[SiloAccount], receipts: Iterable[Receipt]
) -> dict[str, list[GaussianRelease]]:
    """Accounting events of the releases received, by silo."""
    events: dict[str, list[GaussianRelease]] = {account.silo: [] for account in accounts}
    alike: dict[GaussianRelease, GaussianRelease] = {}  # one object for all rounds with equal events
    for receipt in receipts:
        event = plan.phases[receipt.phase - 1].event(receipt.silo, receipt.round)
        events[receipt.silo].append(alike.setdefault(event, event))
    return events


class _Course:
    """Sums and tails of a run's rounds for its result, read in one pass: all rounds may not fit in memory.

    `last`: values of the last round of training.
    """

    def __init__(self, plan: Plan, rows: Iterable[MetricRow]) -> None:
        self.gradient_evaluations = self.seconds = 0.0
        self.last: Mapping[str, float] = {}
        late: deque[float | None] = deque(maxlen=max(1, plan.training_rounds // 10))
        for row in rows:
            self.gradient_evaluations += row.values["gradient_evaluations"]
            self.seconds += row.values["system/round_seconds"]
            if not plan.phases[row.phase - 1].evaluates:
                self.last = row.values
                late.append(row.values.get("test/error"))
        self._late = late

    @property
    def tail(self) -> float:
        """Mean test error of the evaluated rounds among the last tenth, less noisy than the last round's alone."""
        return float(np.mean([error for error in self._late if error is not None]))


def _whole_silo(plan: Plan) -> dict[str, float | None]:
    """The fields of a result about the whole-silo target; empty without one."""
    target, epsilon = plan.problem.budget.whole_silo, plan.epsilon_whole_silo
    if target is None or epsilon is None:
        return {}
    return {
        "epsilon_whole_silo_target": target.epsilon,
        "epsilon_whole_silo": _finite(epsilon),
        "delta_whole_silo": target.delta,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
