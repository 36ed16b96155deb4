"""Shown parameters, budgets and metrics of a run, and the privacy statement of its models."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedcore.directed_rounding import in_full, number_up, shown_up
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import Experiment
from fedcore.experiment.released.kinds import required_statistic
from fedcore.experiment.result import HeldOut, SiloResult, stamp
from fedcore.experiment.statistics import largest_composed
from fedcore.planning.phase import Phase
from fedcore.planning.plan import Plan
from tasks.mlflow.keys import keys_of
from tasks.run_parameters import DIGITS, MOST_COLUMNS
from tasks.tracking.run_writer import DatasetInput

NO_NOISE = "NO PRIVACY: trust none, no noise was added"

MOST_NAMES = 8
"""Most silos that a statement names; it is a tag of limited length."""

HIGH = "_high"
"""Suffix of the key of an interval's upper end: the longest of a measure's keys."""


def phase_parameters(phase: Phase) -> dict[str, Any]:
    """Public numbers of a phase, named as in the papers' tables."""
    settings = {
        key: value if isinstance(value, int | float | str) else json.dumps(value)
        for key, value in phase.settings.items()
    }
    # The papers' K is the batch of an answer; for methods with local steps it is the number of steps.
    letters = (
        {"K_i": phase.batch} if phase.schedule.answers == 1 else {"K": phase.schedule.answers, "batch_i": phase.batch}
    )
    question = {"asks": phase.question.kind} if phase.evaluates else {}
    return {
        **question,
        **letters,
        **_of_parts(phase),
        "n_i": phase.n,
        "lambda_i": phase.subproblem.lam,
        "ridge": phase.subproblem.ridge,
        "D_i": phase.subproblem.radius,
        "R_i": phase.rounds,
        "sampling_rate": phase.rate,
        "sigma_i": phase.sigma,
        "clip": phase.question.clip,
        "epsilon_target": "none" if phase.noise.target is None else phase.noise.target,
        "epsilon_accounted": shown_up(phase.epsilon_accounted, 6),
        "epsilon_paper": shown_up(phase.epsilon_paper, 6),
        "epsilon_silo_maximum": shown_up(max(share.epsilon_accounted for share in phase.shares), 6),
        "delta": shown_up(max(share.delta for share in phase.shares), 6),
        **settings,
    }


def _of_parts(phase: Phase) -> dict[str, Any]:
    """Parameters of a phase's further kinds of rounds: question, number, noise multiplier and clip."""
    found: dict[str, Any] = {"asks": phase.question.kind} if phase.parts else {}
    for kind in phase.kinds[1:] if phase.parts else ():
        name = "local steps" if kind.schedule.in_turn else kind.question.kind
        found |= {f"{name}/rounds": kind.rounds, f"{name}/sigma": kind.sigma, f"{name}/clip": kind.question.clip}
        if kind.schedule.answers > 1 or kind.rate < 1:
            found |= {f"{name}/answers": kind.schedule.answers, f"{name}/batch": kind.batch}
    return found


def phase_budget(phase: Phase) -> dict[str, float]:
    """The phase's privacy budget as metrics, without infinite values (no noise)."""
    values = {
        "privacy/epsilon_target": phase.noise.target if phase.noise.target is not None else math.inf,
        "privacy/epsilon_accounted": phase.epsilon_accounted,
        "privacy/epsilon_paper": phase.epsilon_paper,
        "privacy/epsilon_silo_maximum": max(share.epsilon_accounted for share in phase.shares),
        "privacy/delta": max(share.delta for share in phase.shares),
    }
    finite = {key: float(value) for key, value in values.items() if math.isfinite(value)}
    return {key: value if key == "privacy/epsilon_target" else number_up(value) for key, value in finite.items()}


def evaluation_metrics(found: HeldOut, classes: Sequence[str | int] | None) -> dict[str, float]:
    """Held-out measures as metrics under `evaluation/`, with the ends of their intervals.

    `classes`: all classes, also those that no held-out record has, so that a class always has the same key.
    """
    measures = {"error": found.error, "majority_error": found.majority_error, "auc": found.auc}
    values: dict[str, float] = {}
    named = keys_of([*map(str, classes or ()), *found.recall], f"evaluation/classes/{{}}/recall{HIGH}", parts=False)
    of_silos = keys_of(found.silos, f"evaluation/silos/{{}}/error{HIGH}", parts=False)
    intervals = [(f"evaluation/{name}", interval) for name, interval in measures.items() if interval is not None]
    intervals += [(named[label].removesuffix(HIGH), interval) for label, interval in found.recall.items()]
    intervals += [(of_silos[silo].removesuffix(HIGH), interval) for silo, interval in found.silos.items()]
    for key, interval in intervals:
        values |= {key: interval.value, f"{key}_low": interval.low, f"{key}{HIGH}": interval.high}
    return values


def recall_metrics(recall: Mapping[str, float], classes: Sequence[str | int] | None) -> dict[str, float]:
    """Recall on test data by class, as metrics under `test_recall/`. `classes`: as for `evaluation_metrics`."""
    named = keys_of([*map(str, classes or ()), *recall], "test_recall/{}")
    return {named[label]: value for label, value in recall.items()}


def dataset_input(experiment: Experiment) -> DatasetInput:
    """MLflow's entry for the run's data: name, digest of the silos' versions, public sizes, names of columns."""
    dataset, sizes = experiment.dataset, [silo.n for silo in experiment.plan.problem.silos]
    versions = sorted((source.name, source.version) for source in dataset.sources)
    profile: dict[str, int | str] = {
        "silos": len(sizes),
        experiment.plan.problem.unit: sum(sizes),
        "smallest silo": min(sizes),
        "largest silo": max(sizes),
        "features": dataset.dim,
    }
    if dataset.test is not None:
        profile["test records"] = dataset.test.n
    columns = dataset.feature_names if len(dataset.feature_names) <= MOST_COLUMNS else ()
    version = hashlib.sha256(json.dumps(versions).encode()).hexdigest()[:DIGITS]
    return DatasetInput(dataset.name, version, profile, columns)


def privacy_tags(
    config: ExperimentConfig, plan: Plan, statistics: Plan | None = None, silos: Iterable[SiloResult] = ()
) -> dict[str, str]:
    """The privacy statement of a run's models, as tags; `statistics`: the plan of the release before it, if any.

    `silos`: their results at the run's end, from their ledgers.
    """
    if config.privacy.trust == "none":
        return {"privacy.trust": "none", "privacy.statement": NO_NOISE}
    epsilon, delta = largest_composed(plan, statistics), plan.problem.delta
    where, parts = "in this run", {}
    if statistics is not None:
        made = required_statistic(config)
        before, training = statistics.epsilon_accounted, plan.epsilon_accounted
        where = (
            f"before this run for its {made.prepared_with} (epsilon {shown_up(before)}) and in training (epsilon "
            f"{shown_up(training)}), composed,"
        )
        parts = {"privacy.epsilon_statistics": shown_up(before, 6), "privacy.epsilon_training": shown_up(training, 6)}
    adjacency, unit = _unit(config)
    shuffled = ""
    if plan.problem.trust.shuffle is not None and plan.epsilon_shuffled is not None:
        parts["privacy.epsilon_shuffled"] = shown_up(plan.epsilon_shuffled, 6)
        shuffled = (
            f" Who sees no single message, only batches of at least {plan.problem.trust.shuffle.minimum} that the "
            f"shuffler permuted, has ({shown_up(plan.epsilon_shuffled)}, {shown_up(delta, 3)}) in place of it, if the "
            "shuffler and the server do not work together."
        )
    condition = "With the preparation's constants given, everything" if config.unprotected_constants else "Everything"
    sent, their = "that silos sent", "their"
    if config.privacy.trust == "central":
        sent, their = "that the aggregator handed on", "the silos'"
    return {
        "privacy.trust": config.privacy.trust,
        "privacy.adjacency": adjacency,
        "privacy.epsilon_target": "none" if config.privacy.epsilon is None else in_full(config.privacy.epsilon),
        **(
            {"privacy.noise_multiplier": in_full(config.privacy.noise_multiplier)}
            if config.privacy.noise_multiplier is not None
            else {}
        ),
        "privacy.epsilon_accounted": shown_up(epsilon, 6),
        **parts,
        "privacy.delta": shown_up(delta, 6),
        **_whole_silo(plan),
        "privacy.calibration": plan.problem.budget.shown_calibration,
        "privacy.noise": stamp(config),
        "privacy.statement": (
            f"{condition} {sent} {where} is ({shown_up(epsilon)}, {shown_up(delta, 3)})-differentially "
            f"private for each of {their} {unit}.{shuffled} {whole_silo(plan)}This run alone: runs on the "
            f"same records add up. {_declared(silos)}{stamp(config)}."
        ),
    }


def whole_silo(plan: Plan) -> str:
    """The guarantee for a silo's whole data set, as a sentence that ends in a space; empty without a target."""
    target, epsilon = plan.problem.budget.whole_silo, plan.epsilon_whole_silo
    if target is None or epsilon is None:
        return ""
    return (
        f"What one silo sent is ({shown_up(epsilon)}, {shown_up(target.delta, 3)})-differentially private for its "
        "whole data set, too (all of its records replaced, their number public). "
    )


def _declared(silos: Iterable[SiloResult]) -> str:
    """Operators' unverified declarations of disjoint persons, as a sentence that ends in a space; empty if none."""
    names = [silo.silo for silo in silos if silo.disjoint]
    if not names:
        return ""
    shown = ", ".join(names[:MOST_NAMES]) + (f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else "")
    return (
        f"Operators have declared that persons are disjoint: those of other data versions of {shown} are said to be "
        "others, and runs on them are not added. "
    )


def _whole_silo(plan: Plan) -> dict[str, str]:
    target, epsilon = plan.problem.budget.whole_silo, plan.epsilon_whole_silo
    if target is None or epsilon is None:
        return {}
    return {
        "privacy.epsilon_whole_silo_target": in_full(target.epsilon),
        "privacy.epsilon_whole_silo": shown_up(epsilon, 6),
        "privacy.delta_whole_silo": shown_up(target.delta, 6),
    }


def _unit(config: ExperimentConfig) -> tuple[str, str]:
    """The adjacency relation, and the unit that each guarantee protects."""
    if config.person is None:
        return "replace-one record of one silo, sizes public", "records (replace-one)"
    column = f"column {config.person!r}"
    return (
        f"replace-one person of one silo, with all rows ({column}); numbers of persons public",
        f"persons with all of their rows ({column}, replace-one)",
    )
