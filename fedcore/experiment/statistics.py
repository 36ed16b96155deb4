"""Planning and accounting of the statistics that silos release before a run (`fedcore.experiment.released`).

The release is a run of its own at each silo: own id, own plan, own charge. Its id covers only the parameters of its
bytes, so runs that differ in training share one release. Constants computed from it are a post-processing and cost
nothing more.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedcore.accounting.calibration import EPSILONS, Budget
from fedcore.accounting.composition import spent
from fedcore.accounting.events import GaussianRelease
from fedcore.algorithms.statistics.pooled import PooledStatistic
from fedcore.arrays import canonical_json
from fedcore.data.data_config import DataConfig
from fedcore.data.dataset import facts
from fedcore.directed_rounding import in_full
from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.identity import SCHEMA, named_places
from fedcore.experiment.released.kinds import required_statistic, statistic_of
from fedcore.experiment.released.noise import outlook
from fedcore.models.model_config import ModelConfig
from fedcore.paths import Anchor
from fedcore.planning.phases.local_phase import published_claims
from fedcore.planning.plan import Plan
from fedcore.planning.problem import ObjectiveFacts, Problem, SiloFacts, Trust


def statistics_id(config: ExperimentConfig, anchor: Anchor | None = None) -> str:
    """Id of the run that releases them: `statistics-` and 12 hex digits over the parameters of its bytes.

    Runs that differ in other parameters share it: labels, name, repetition, model, method or privacy.epsilon. So do
    runs with other numbers of components, or other limits at which scaled values are clipped.
    """
    statistic = statistic_of(config)
    # The moments are of features: runs that learn other labels of the same records share them.
    data = named_places({"data": raw_data(config).model_dump(mode="json", exclude={"labels"})}, anchor)["data"]
    privacy = config.privacy.model_dump(mode="json", include={"trust", "delta", "noise", "ledger"})
    identity = {"pca": None} if statistic is None else statistic.identity
    made = {"schema": SCHEMA, "data": data, "seed": config.seed, "privacy": privacy, **identity}
    return f"statistics-{hashlib.sha256(canonical_json(made).encode()).hexdigest()[:12]}"


def raw_data(config: ExperimentConfig) -> DataConfig:
    """The data section of the release: the same silos, with records before the constants are applied."""
    statistic = statistic_of(config)
    return config.data if statistic is None else statistic.data


def raw_model(config: ExperimentConfig, bound: float) -> ModelConfig:
    """The model config that prepares records for the release: no bias and norm `bound`, or training's."""
    statistic = statistic_of(config)
    return config.model if statistic is None else statistic.model(config.model, bound)


def statistics_method(config: ExperimentConfig, features: int) -> PooledStatistic:
    """The method of the release for records of `features`. Raises InputError for too many of them, and without one."""
    return required_statistic(config).method(features)


def plan_statistics(config: ExperimentConfig, silos: Sequence[SiloFacts], features: int) -> Plan:
    """The plan of the release: calibrated exactly for its own epsilon at each silo's delta. Raises InputError."""
    statistic, privacy = required_statistic(config), config.privacy
    method, epsilon, (least, most) = statistic.method(features), statistic.section.epsilon, EPSILONS
    if epsilon is not None and not least <= epsilon <= most:
        key = f"{statistic.section.key}.epsilon"
        raise InputError(f"{key} = {in_full(epsilon)} must lie between {in_full(least)} and {in_full(most)}")
    budget = Budget(
        epsilon,
        None if isinstance(privacy.delta, str) else float(privacy.delta),
        "exact",
        "discrete-gaussian" if privacy.noise == "guarded" else "gaussian",
    )
    for silo in silos:
        budget.check(silo.name, silo.n)
    return method.plan(
        Problem(
            silos=tuple(silos),
            objective=ObjectiveFacts(method.numbers, method.half_diameter, math.inf, math.inf),
            budget=budget,
            participants=len(silos),
            trust=Trust(person=config.person),
        )
    )


def make_statistics_plan(config: ExperimentConfig, sizes: Mapping[str, int] | None = None) -> Plan | None:
    """The plan of the release before this run, from public sizes only; None if there is none. Raises InputError.

    `sizes`: as for `facts`.
    """
    made = make_statistics(config, sizes)
    return None if made is None else made[1]


def make_statistics(
    config: ExperimentConfig, sizes: Mapping[str, int] | None = None
) -> tuple[PooledStatistic, Plan] | None:
    """Method and plan of the release before this run, from public sizes only; None if there is none.

    Raises InputError.
    """
    if config.released is None:
        return None
    silos, features = facts(raw_data(config), raw_model(config, 1.0), config.seed, sizes)
    return statistics_method(config, features), plan_statistics(config, silos, features)


def composed_epsilon(
    plan: Plan, statistics: Plan | None, silo: str, events: Iterable[GaussianRelease] | None = None
) -> float:
    """Epsilon of both for a silo, at the run's delta there, by composition of all events.

    `events`: those of training that took place; None: all of the plan. The statistics use all records of the silo, so
    every shard of the run's own split bears them in full.
    """
    n = plan.problem.sizes[silo]
    own = plan.charged_events(silo) if events is None else list(events)
    before = [] if statistics is None else statistics.silo_events(silo)
    return spent([*before, *own], plan.problem.budget.delta(n))


def plan_as_json(plan: Plan, statistics: Plan | None) -> dict[str, Any]:
    """The plan as `Plan.as_json`; with statistics, their plan under `statistics` and the composition in `totals`.

    `totals` also has values that the plan's digest does not cover. These are `epsilon_honest_sampling` where not all
    silos take part in a round, and for local steps the paper's claims towards third party and server.
    """
    values = plan.as_json()
    values["totals"] |= published_claims(plan)
    if (drawn := largest_honest_sampling(plan, statistics)) is not None:
        values["totals"]["epsilon_honest_sampling"] = drawn
    if statistics is not None:
        values["statistics"] = statistics.as_json() | outlook(statistics)
        composed = largest_composed(plan, statistics)
        values["totals"] |= {
            "epsilon_training": values["totals"]["epsilon_accounted"],
            "epsilon_statistics": values["statistics"]["totals"]["epsilon_accounted"],
            "epsilon_accounted": composed if math.isfinite(composed) else None,
        }
    return values


def largest_honest_sampling(plan: Plan, statistics: Plan | None, silos: Sequence[str] | None = None) -> float | None:
    """The largest `Plan.silo_honest_sampling` of any silo; None without noise, or where all silos are in each round.

    `silos`: names of those to consider; None: all.
    """
    if not plan.problem.budget.private or plan.problem.participation.full:
        return None
    names = [facts.name for facts in plan.problem.silos] if silos is None else silos
    return max(
        plan.silo_honest_sampling(name, () if statistics is None else statistics.silo_events(name)) for name in names
    )


def largest_composed(plan: Plan, statistics: Plan | None) -> float:
    """The largest `composed_epsilon` of any silo, if it answers in every round."""
    return max(composed_epsilon(plan, statistics, facts.name) for facts in plan.problem.silos)
