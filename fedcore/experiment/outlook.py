"""Warnings about a training before it starts, from public facts alone."""

from __future__ import annotations

import math
from typing import Any

from fedcore.accounting.tiny_silos import warning
from fedcore.algorithms import DpFcrn, NoisedNewton
from fedcore.data.checks.column_sizes import differing_sizes
from fedcore.data.constants.whitening import longest_prepared
from fedcore.data.dataset import check_test
from fedcore.data.file_sources import schema_of
from fedcore.data.records import common_scale
from fedcore.data.tabular import OwnTable, Tabular
from fedcore.directed_rounding import shown_up
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.held_out import expected_width
from fedcore.planning.phase import Phase
from fedcore.planning.plan import Plan

LEAST_RATIO = 4.0
"""Least ratio of largest signal to noise; below it, models of digits, hospitals and tumours were nearly constant."""
WIDEST = 0.2
"""Largest half-width of an error's interval; a wider one hardly separates a good model from a constant answer."""
LEAST_REACH = 1.0
"""Least absolute value of a predictor that steps must be able to reach; below it a model hardly leaves its start."""


def urgent(config: ExperimentConfig, plan: Plan) -> list[str]:
    """Warnings about a probable mistake, from public facts and the public test file; every start of a run shows them.

    Raises InputError for a test file that does not fit.
    """
    problem = plan.problem
    large = warning(problem.sizes, problem.budget.fixed_delta, problem.unit) if problem.budget.private else None
    found = [*check_test(config.data, config.model), *([] if large is None else [large])]
    if (sizes := differing_sizes(config.data)) is not None:
        right = "give each column its range in data.features, as {age: {range: [20, 90]}} (docs/how-to/schema.md)"
        found.append(f"{sizes}; {right}")
    return found


def warnings(config: ExperimentConfig, plan: Plan) -> list[str]:
    """Warnings that a training will hardly learn, from public facts alone, without those of `urgent`.

    Raises InputError for a test file that cannot be read.

    Rules of thumb: the sum of a phase's mean messages has norm at most R C, and noise of norm sqrt(R d) s. Here s is
    the deviation of a coordinate of the server's mean. R steps of length eta move a model by at most R eta C.
    """
    found = []
    data = config.data
    only_named = isinstance(data, Tabular) and data.described is None and len(data.column_names) > 1
    if only_named and differing_sizes(data) is None:  # otherwise `urgent` warns, with numbers from the test records
        found.append(
            "data.features only names columns, so nothing is known of their scales: a column of large numbers hides "
            "the others. Give each a range (docs/how-to/schema.md)"
        )
    if plan.problem.n_silos == 1:
        found.append(
            "there is one silo: nobody shares its work, and all noise is its own, which no other silo's averages out"
        )
    kinds = [kind for phase in plan.phases for kind in phase.kinds if kind.question.kind == "gradient"]
    ratio = max((_signal_to_noise(plan, kind) for kind in kinds), default=math.inf)
    if ratio < LEAST_RATIO:
        found.append(
            f"the largest signal that clipped gradients can have is {ratio:.2g} times the noise of its phase, and the "
            f"signal there is a small part of it: below {LEAST_RATIO:g} hardly anything is learned. Take more epsilon, "
            "fewer features, more records or more silos"
        )
    found += _of_second_order(config)
    held = evaluation_facts(plan)
    if held is not None and held["half_width"] > WIDEST:
        found.append(
            f"the {held['records']} held-out {plan.problem.unit} will tell an error of 0.2 to plus or minus "
            f"{shown_up(held['half_width'], 2)} only: take more evaluation.epsilon, a larger evaluation.fraction, "
            "evaluation.bins = 2, or evaluation.every = end"
        )
    reach = _reach(config, plan)
    if reach < LEAST_REACH:
        found.append(
            f"all steps together change a predictor by at most {reach:.2g}: take longer steps, more rounds or a larger "
            "model.clip"
        )
    return found


def _of_second_order(config: ExperimentConfig) -> list[str]:
    """Warnings about a cubic model's weight below that of the theorems, and about a solver that uses no Hessian.

    A cubic model bounds the loss if its weight is at least the Lipschitz constant of the Hessian (Nesterov and Polyak
    2006, Lemma 1). That is the constant of the loss's second derivative times the cube of a record's norm.
    """
    method, model, loss = config.algorithm, config.model, config.model.loss
    found: list[str] = []
    if not isinstance(method, DpFcrn | NoisedNewton):
        return found
    curvature = loss.curvature_lipschitz_within(model.reach) if model.smoothing is None else math.inf
    least = curvature * model.record_bound**3
    if method.cubic < least and (isinstance(method, DpFcrn) or method.cubic > 0):
        fault = f"is below the Hessian's Lipschitz constant, {least:.3g}: the theorems ask for no less"
        if least == math.inf:
            fault = "has no theorem: the Hessian of this loss has no Lipschitz constant"
        found.append(f"algorithm.cubic = {method.cubic:g} {fault}")
    if isinstance(method, DpFcrn) and method.answers < 2:
        found.append(
            f"algorithm.local_steps = {method.local_steps}: the solver takes one step, which no Hessian has a part in; "
            "take 3 or more"
        )
    return found


def _signal_to_noise(plan: Plan, phase: Phase) -> float:
    """sqrt(R) C / (sqrt(d) s) of a phase; infinite without noise."""
    problem = plan.problem
    deviation = math.sqrt(phase.mean_noise * len(phase.shares) / problem.harmonic_participants)
    if not deviation:
        return math.inf
    return math.sqrt(phase.most_answers) * phase.question.clip / (math.sqrt(problem.objective.dim) * deviation)


def _reach(config: ExperimentConfig, plan: Plan) -> float:
    """Largest change of a predictor by all steps; infinite for networks and for methods without one step length."""
    step = getattr(config.algorithm, "step", None)
    if not isinstance(step, float) or config.algorithm.several_answers or not config.model.convex:
        return math.inf
    return plan.training_rounds * step * plan.problem.objective.clip * config.model.record_bound


def evaluation_facts(plan: Plan) -> dict[str, Any] | None:
    """Number of held-out records and of evaluations, and half-width of the pooled error's interval at an error of 0.2.

    None for a plan without evaluations.
    """
    phases, evaluation = [phase for phase in plan.phases if phase.evaluates], plan.problem.evaluation
    if not phases or evaluation is None:
        return None
    return {
        "records": sum(silo.held for silo in plan.problem.silos),
        "evaluations": len(phases),
        "half_width": expected_width(phases[-1], evaluation),
    }


def persons_facts(config: ExperimentConfig) -> dict[str, Any] | None:
    """Column of the persons that are the unit of privacy, and bound on the counted rows of each; None for records."""
    data = config.data
    return (
        None
        if not isinstance(data, OwnTable) or data.person is None
        else {"column": data.person, "rows": data.person_rows}
    )


def schema_facts(config: ExperimentConfig) -> dict[str, Any] | None:
    """Number of columns and of features, largest norm of a record, and divisor of all records; None without a schema.

    The norm includes the bias where it is scaled with the features.
    """
    data, model = config.data, config.model
    described, whitening = schema_of(data) if isinstance(data, Tabular) else (None, None)
    if described is None:
        return None
    scale = common_scale(longest_prepared(described, whitening), model.bias, model.feature_bound, model.normalise)
    return {
        "columns": len(described),
        "features": sum(len(column.names) for column in described),
        "longest": model.feature_bound / scale,
        "scale": scale,
    }
