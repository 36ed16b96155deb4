"""From a config to the parts of a run: data, plan, sites. No engine here: a plain loop can use them too."""

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
class _Asked:
    """What a plan is a function of. `text`, which tells two apart, has every digit: 1 and 1.0 are two problems."""

    text: bytes
    method: Method[Any] = field(compare=False)
    problem: Problem = field(compare=False)


@lru_cache(maxsize=256)
def _made(asked: _Asked) -> Plan:
    """Cells of a sweep that differ in their seed share a plan; each is asked for several times."""
    with noise_cached_in(NoiseFolder.current()):
        return planned(evaluated(asked.method, asked.problem), asked.problem)


def _method(config: ExperimentConfig, smoothness: float | None) -> Method[Any]:
    """The config's method, with a smoothness that silos released in place of the word."""
    method: Any = config.algorithm
    return cast(Method[Any], method if smoothness is None else replace(method, smoothness=smoothness))


def _planned(config: ExperimentConfig, problem: Problem, smoothness: float | None = None) -> Plan:
    """The method's plan. Raises InputError if its noise protects nobody, unless that is what trust none says."""
    method: Any = _method(config, smoothness)
    asked = _Asked(plain_json([method.name, method, problem]), method, problem)
    guarded = config.privacy.noise == "guarded"
    with effort_within(MOST_EFFORT) if guarded else nullcontext():  # a guarded site would refuse it, and later
        plan = _made(asked)
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
    `smoothness`: beta as it follows from what silos released; None where they were not asked for it.
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

        `released`: what `StatisticsRun.constants` returned, where constants are released.
        """
        constants, found = (None, released) if isinstance(released, Eigenvalues) else (released, None)
        return cls.of(config, prepare(config.data, config.model, config.seed, silo_root, constants), found)

    @classmethod
    def of(cls, config: ExperimentConfig, dataset: Dataset, found: Eigenvalues | None = None) -> Experiment:
        """The experiment on data that are prepared already. Raises InputError if the config does not fit them.

        `found`: what silos released of their curvature, where `algorithm.smoothness` is released.
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
        asking = evaluated(watched(self.method, self.plan), self.plan.problem)
        key = driver_key(self.config.seed, self.repetition, self.method.name)
        return RunContext(self.run, self.plan, asking, key)

    @property
    def repetition(self) -> int:
        """In the keys of simulated draws, as in the run's id."""
        return self.config.repetition

    @cached_property
    def model(self) -> Model:
        """What the weights mean: how the silos clip, and how the model is evaluated."""
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
        """w_0 (d,), within the domain: its centre 0, of a network random weights that follow from the public seed."""
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
        """A backend in this process; `open` it before use. `pool`: where its site comes from, and goes in the end.

        `carrier`, `route`: how a shuffled run's answers reach its shuffler, and which that is (`Route.to_bytes`).
        `lease`: the driver's, of the run. `keys`: as for `open_site`, for a site of no pool.
        """
        spec = self.site_spec([silo.name for silo in self.plan.problem.silos], ledgers, log)
        if pool is None:
            return InProcess(open_site(spec, carrier=carrier, keys=keys), self.agreement, route=route, lease=lease)
        key = spec.to_bytes()
        site = pool.take(key) or open_site(spec)
        return InProcess(site, self.agreement, lambda site: pool.give(key, site), lease=lease)


def check_policies(config: ExperimentConfig) -> None:
    """Finds silos that this process would not open for want of a policy, or for having one, or for want of an account
    in the register. Raises InputError."""
    silos, _ = facts(config.data, config.model, config.seed)
    for silo in silos:
        try:
            policy_of(silo.name, config.privacy.noise == "guarded")
            if config.privacy.noise == "guarded":
                check_registered(silo.name)
        except SiloError as error:
            raise InputError(str(error)) from None
