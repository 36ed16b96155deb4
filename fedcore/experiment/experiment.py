"""The parts of a run that follow from its config: data, plan, sites. A plain loop can use them without an engine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np

from fedcore.accounting.effort import effort_within
from fedcore.accounting.noise_search import noise_cached_in
from fedcore.algorithms import Method
from fedcore.algorithms.statistics.evaluated import evaluated
from fedcore.algorithms.statistics.watched import watched
from fedcore.arrays import plain_json
from fedcore.data.dataset import Dataset, facts, prepare
from fedcore.data.silo_file import Released
from fedcore.errors import InputError, SiloError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.identity import run_id
from fedcore.experiment.problem import make_problem, start, training_loss
from fedcore.experiment.released.curvature import known_smoothness
from fedcore.experiment.released.kinds import statistic_of
from fedcore.experiment.released.statistic import Eigenvalues
from fedcore.experiment.statistics import plan_statistics
from fedcore.federation.in_process import InProcess, SitePool
from fedcore.federation.rounds import RunContext
from fedcore.home import LedgerFolders
from fedcore.limits import MOST_EFFORT
from fedcore.models import Model, Objective, model_of
from fedcore.noise_cache import NoiseFolder
from fedcore.planning.plan import Plan
from fedcore.planning.problem import Problem
from fedcore.planning.whole_silo import planned
from fedcore.randomness import driver_key
from fedcore.shuffling.forms import Carrier
from fedcore.silo.agreement import Agreement
from fedcore.silo.durable_ledger import check_registered
from fedcore.silo.keys import Keys
from fedcore.silo.opening import SiteSpec, open_site
from fedcore.silo.policies.policy_file import policy_of


def make_plan(config: ExperimentConfig, sizes: Mapping[str, int] | None = None) -> Plan:
    """The plan of a config, from public sizes only: no silo's records are read. `sizes`: as for `facts`."""
    silos, features = facts(config.data, config.model, config.seed, sizes)
    return _planned(config, make_problem(config, silos, features))


@dataclass(frozen=True)
class _PlanKey:
    """The arguments of a plan. `text` identifies them and has every digit: 1 and 1.0 are two problems."""

    text: bytes
    method: Method[Any] = field(compare=False)
    problem: Problem = field(compare=False)


@lru_cache(maxsize=256)
def _cached_plan(key: _PlanKey) -> Plan:
    """The plan, cached: cells of a sweep that differ in their seed share one, and each needs it several times."""
    with noise_cached_in(NoiseFolder.current()):
        return planned(evaluated(key.method, key.problem), key.problem)


def _method(config: ExperimentConfig, smoothness: float | None) -> Method[Any]:
    """The config's method, with a smoothness that silos released in place of the word `released`."""
    method: Any = config.algorithm
    return cast(Method[Any], method if smoothness is None else replace(method, smoothness=smoothness))


def _planned(config: ExperimentConfig, problem: Problem, smoothness: float | None = None) -> Plan:
    """The method's plan. Raises InputError if its epsilon is infinite, unless privacy.trust = none."""
    method: Any = _method(config, smoothness)
    key = _PlanKey(plain_json([method.name, method, problem]), method, problem)
    guarded = config.privacy.noise == "guarded"
    with effort_within(MOST_EFFORT) if guarded else nullcontext():  # a guarded site would refuse it, and later
        plan = _cached_plan(key)
    if problem.budget.private and math.isinf(plan.epsilon_accounted):
        raise InputError(
            f"privacy: with {config.privacy.level} there is so little noise that no finite epsilon is accounted; ask "
            "for more, or say privacy.trust = none"
        )
    return plan


@dataclass(frozen=True)
class Experiment:
    """A config with its data prepared and its plan made.

    `statistics`: the plan by which silos released the constants that prepare their records; None for other constants.
    `smoothness`: beta from the silos' released eigenvalues; None if the config does not release it.
    """

    config: ExperimentConfig
    run: str
    dataset: Dataset
    plan: Plan
    statistics: Plan | None = None
    smoothness: float | None = None

    @classmethod
    def prepare(
        cls, config: ExperimentConfig, silo_root: Path, released: Released | Eigenvalues | None = None
    ) -> Experiment:
        """Writes generated silos below `silo_root` if they are not there, checks files, plans. Raises InputError.

        `released`: the result of `StatisticsRun.constants`, where constants are released.
        """
        constants, found = (None, released) if isinstance(released, Eigenvalues) else (released, None)
        return cls.of(config, prepare(config.data, config.model, config.seed, silo_root, constants), found)

    @classmethod
    def of(cls, config: ExperimentConfig, dataset: Dataset, found: Eigenvalues | None = None) -> Experiment:
        """The experiment on data that are prepared already. Raises InputError if the config does not fit them.

        `found`: the silos' released eigenvalues, where `algorithm.smoothness` is released.
        """
        problem, smoothness = make_problem(config, dataset.facts, dataset.dim), None
        if (curvature := config.released_curvature) is not None:
            if found is None:
                raise InputError(
                    "algorithm.smoothness = released, but the silos have not released their eigenvalues yet: `fedcore "
                    "run` asks for them first (in a plain loop: fedcore.experiment.statistics_run.StatisticsRun)"
                )
            smoothness = known_smoothness(problem, found, config.model.record_bound, curvature.scale)
        plan = _planned(config, problem, smoothness)
        before = None
        if (statistic := statistic_of(config)) is not None:
            before = plan_statistics(config, dataset.facts, statistic.features(len(dataset.feature_names)))
        return cls(config, run_id(config), dataset, plan, before, smoothness)

    @property
    def method(self) -> Method[Any]:
        return _method(self.config, self.smoothness)

    @property
    def loss(self) -> Objective | None:
        return training_loss(self.config, self.plan.problem)

    @property
    def context(self) -> RunContext:
        method = evaluated(watched(self.method, self.plan), self.plan.problem)
        key = driver_key(self.config.seed, self.repetition, self.method.name)
        return RunContext(self.run, self.plan, method, key)

    @property
    def repetition(self) -> int:
        """Number of the repetition, in the run's id and in the keys of simulated draws."""
        return self.config.repetition

    @cached_property
    def model(self) -> Model:
        """The model of the weights, by which silos clip and the driver evaluates."""
        return model_of(training_loss(self.config, self.plan.problem))

    @property
    def agreement(self) -> Agreement:
        return Agreement(self.run, self.plan.problem, self.method, self.loss, self.plan.digest)

    def site_spec(self, names: Sequence[str], ledgers: LedgerFolders, log: Path | None = None) -> SiteSpec:
        """The spec of a site that holds the silos `names`."""
        sources = {source.name: source for source in self.dataset.sources}
        privacy = self.config.privacy
        return SiteSpec(
            tuple(sources[name] for name in names),
            self.config.seed,
            privacy.ledger,
            ledgers,
            log,
            privacy.cap,
            privacy.noise == "guarded",
            self.repetition,
        )

    def start(self) -> np.ndarray:
        """w_0 (d,), within the domain: its centre 0, or for a network random weights from the public seed."""
        return start(self.config, training_loss(self.config, self.plan.problem), self.dataset.dim)

    def in_process(
        self,
        ledgers: LedgerFolders,
        log: Path | None = None,
        pool: SitePool | None = None,
        carrier: Carrier | None = None,
        route: bytes | None = None,
        lease: int = 0,
        keys: Keys | None = None,
    ) -> InProcess:
        """A backend in this process; `open` it before use. `pool`: provides its site, and takes it back in the end.

        `carrier`, `route`: transport to a shuffled run's shuffler, and its address (`Route.to_bytes`). `lease`: the
        driver's, of the run. `keys`: as for `open_site`; ignored with a pool.
        """
        spec = self.site_spec([silo.name for silo in self.plan.problem.silos], ledgers, log)
        if pool is None:
            return InProcess(open_site(spec, carrier=carrier, keys=keys), self.agreement, route=route, lease=lease)
        key = spec.to_bytes()
        site = pool.take(key) or open_site(spec)
        return InProcess(site, self.agreement, lambda site: pool.give(key, site), lease=lease)


def check_policies(config: ExperimentConfig) -> None:
    """Raises InputError for silos that this process would not open: guarded ones without a policy or a registered
    account, and simulated ones with a policy."""
    silos, _ = facts(config.data, config.model, config.seed)
    for silo in silos:
        try:
            policy_of(silo.name, config.privacy.noise == "guarded")
            if config.privacy.noise == "guarded":
                check_registered(silo.name)
        except SiloError as error:
            raise InputError(str(error)) from None
