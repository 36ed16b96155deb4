"""From a config to the parts of a run: problem, plan, sites. No engine here: a plain loop can use them too."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import TypeAdapter
from threadpoolctl import threadpool_limits

from fedcore.algorithms import Agreed, SecondMoments
from fedcore.arrays import Vector
from fedcore.config import ExperimentConfig
from fedcore.data.dataset import Dataset, facts, prepare
from fedcore.data.layout import write_projection
from fedcore.data.projection import Projection
from fedcore.data.silo_file import Constants, SiloSource, open_records
from fedcore.errors import InputError, SiloError
from fedcore.identity import run_id
from fedcore.losses import DrawnConvolution, Smoothable, Softmax
from fedcore.models import Model, Objective, OneHiddenLayer, SoftmaxRegression, model_of
from fedcore.moments import unpacked
from fedcore.plan import Plan
from fedcore.privacy.agreement import Agreement
from fedcore.privacy.calibration import Budget
from fedcore.privacy.config import CapConfig
from fedcore.privacy.durable_ledger import SqliteLedger
from fedcore.privacy.ledger import Ledger, MemoryLedger
from fedcore.privacy.ledger_file import LedgerFolders
from fedcore.privacy.policy import Clock, utc_now
from fedcore.privacy.policy_file import policy_of
from fedcore.privacy.silo import PrivateSilo
from fedcore.privacy.site import Site
from fedcore.problem import LONGEST_NAME, Problem, SiloFacts
from fedcore.randomness import generator, public_key, simulation_key
from fedcore.rounds import Course, InProcess
from fedcore.statistics import plan_statistics, raw_data, raw_model, statistics_id, statistics_method


def make_problem(config: ExperimentConfig, silos: Sequence[SiloFacts], features: int) -> Problem:
    """The public problem, for records of so many features. Raises InputError naming the key that does not fit."""
    count = config.participation.silos_per_round
    if count is not None and count > len(silos):
        raise InputError(f"participation.silos_per_round = {count} is more than the {len(silos)} silos there are")
    privacy = config.privacy
    budget = Budget(
        privacy.epsilon, None if isinstance(privacy.delta, str) else float(privacy.delta), privacy.calibration,
        "discrete-gaussian" if privacy.noise == "guarded" else "gaussian", privacy.noise_multiplier,
    )  # fmt: skip
    for silo in silos:
        if silo.n < 2:
            raise InputError(f"silo {silo.name}: {silo.n} records are too few; at least 2 are needed")
        budget.check(silo.name, silo.n)
    problem = Problem(
        silos=tuple(silos),
        dim=features,
        clip=config.model.gradient_bound,
        smoothness=config.model.loss.smoothness * config.model.record_bound**2,
        diameter=config.model.diameter,
        participants=count if count is not None else len(silos),
        budget=budget,
        ridge=config.model.ridge,
    )
    objective = training_loss(config, problem)
    start(config, objective, features)  # a domain that is too small for it is a mistake of the config
    dim, beta = model_of(objective).weights(features), objective.smoothness * config.model.record_bound**2
    return replace(problem, dim=dim, smoothness=beta, drawn_points=isinstance(objective, DrawnConvolution))


def training_loss(config: ExperimentConfig, problem: Problem) -> Objective:
    """What silos take gradients of: the config's loss, its smoothed form with the numbers that fit the problem, or the
    model of as many classes as the data have."""
    loss, smoothing = config.model.loss, config.model.smoothing
    if isinstance(loss, Softmax):
        classes, hidden = len(config.data.label_values or ()), config.model.hidden
        return SoftmaxRegression(classes) if hidden is None else OneHiddenLayer(classes, hidden)
    if smoothing is None or not isinstance(loss, Smoothable):
        return loss
    return smoothing.of(loss, problem, config.model.record_bound)


def start(config: ExperimentConfig, objective: Objective, features: int) -> Vector:
    """w_0 (d,): the model's, drawn by the public seed if at all, so one for all silos and for all methods.

    Raises InputError if it lies outside of the domain.
    """
    w = model_of(objective).start(features, generator(public_key(config.seed), "start"))
    norm = float(np.linalg.norm(w))
    if norm > config.model.diameter / 2:
        raise InputError(
            f"model.diameter = {config.model.diameter:g}: the network starts at weights of norm {norm:.4g}, outside of "
            f"the ball around 0 of this diameter; choose more than {2 * norm:.4g}"
        )
    return w


def make_plan(config: ExperimentConfig) -> Plan:
    """The plan of a config, from public sizes only: no silo's records are read."""
    silos, features = facts(config.data, config.model, config.seed)
    return _planned(config, make_problem(config, silos, features))


def _planned(config: ExperimentConfig, problem: Problem) -> Plan:
    """The method's plan. Raises InputError if its noise protects nobody, unless that is what trust none says."""
    plan = config.algorithm.plan(problem)
    if problem.budget.private and math.isinf(plan.epsilon_accounted):
        raise InputError(
            f"privacy: with {config.privacy.level} there is so little noise that no finite epsilon is accounted; ask "
            "for more, or say privacy.trust = none"
        )
    return plan


@dataclass(frozen=True)
class SiteSpec:
    """All that a worker needs to open its site: plain data, no record. Paths are at the worker.

    What the silos' operator allows is not in it: the worker's own environment says where policies are.
    """

    sources: tuple[SiloSource, ...]
    seed: int
    ledger: Literal["memory", "sqlite"]
    ledgers: LedgerFolders
    log: Path | None = None
    cap: CapConfig | None = None
    guarded: bool = False

    def to_bytes(self) -> bytes:
        """The form in which it travels: JSON of the declared fields."""
        return bytes(_SPEC.dump_json(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> SiteSpec:
        """The spec that `to_bytes` wrote. Raises InputError for others, and for names that lead to other folders."""
        try:
            spec = _SPEC.validate_json(data) if type(data) is bytes else None
        except ValueError:
            spec = None
        if spec is None or spec.to_bytes() != data or not spec.sources:
            raise InputError("this is no site's spec: it has other fields, or another form")
        for name in (name for source in spec.sources for name in (source.name, source.version)):
            of_a_file = name not in (".", "..") and not set("/\\") & set(name) and name.isprintable()
            if not of_a_file or not 0 < len(name) <= LONGEST_NAME:
                raise InputError(f"{name!r} names a silo or a data set version, and is no name of a file")
        if any("\0" in str(path) for path in (*spec.ledgers, spec.log)):
            raise InputError("this is no site's spec: a folder's name holds a null character")
        return spec


_SPEC = TypeAdapter(SiteSpec)


def open_site(spec: SiteSpec, clock: Clock = utc_now) -> Site:
    """Opens the silos of `spec`, here, where their files and their policies are. Raises SiloError.

    `clock`: by which policies expire.

    Leaves this process with one BLAS thread: the number of threads changes the last bits of a sum, and noise is keyed
    by those bits.
    """
    threadpool_limits(limits=1, user_api="blas")
    silos = []
    with ExitStack() as opened:  # if one silo cannot be opened, the locks of those before it must not stay
        for source in spec.sources:
            policy = policy_of(source.name, spec.guarded)
            if spec.guarded and spec.ledger != "sqlite":
                sentence = "it is guarded and needs privacy.ledger = sqlite: one in memory forgets what was spent"
                raise SiloError(source.name, "ledger", sentence)
            ledger: Ledger
            if spec.ledger == "sqlite":
                ledger = SqliteLedger(source.name, *spec.ledgers.of(source.version, source.name))
            else:
                ledger = MemoryLedger(source.name)
            opened.callback(ledger.close)
            origin = "public" if source.constants is None else source.constants.origin
            if spec.guarded and (source.unprotected or origin not in ("public", "released")):
                sentence = "it prepares its records with public or released constants only"
                raise SiloError(source.name, "constants", sentence)
            records = open_records(source)
            key = secrets.token_bytes(32) if spec.guarded else simulation_key(spec.seed, source.name)
            cap = None if spec.cap is None else spec.cap.of(len(records.y))
            silos.append(PrivateSilo(source.name, records, key, ledger, cap, spec.guarded, policy, clock))
        site = Site(silos, spec.log)
        opened.pop_all()
    return site


@dataclass(frozen=True)
class Experiment:
    """A config with its data prepared and its plan made.

    `statistics`: the plan by which silos released the constants that prepare their records; None for other constants.
    """

    config: ExperimentConfig
    run: str
    dataset: Dataset
    plan: Plan
    statistics: Plan | None = None

    @classmethod
    def prepare(
        cls, config: ExperimentConfig, silo_root: Path, released: tuple[Constants, Projection] | None = None
    ) -> Experiment:
        """Writes generated silos below `silo_root` if they are not there, checks files, plans. Raises InputError.

        `released`: what `StatisticsRun.constants` returned, for `data.pca.constants: released`.
        """
        return cls.of(config, prepare(config.data, config.model, config.seed, silo_root, released))

    @classmethod
    def of(cls, config: ExperimentConfig, dataset: Dataset) -> Experiment:
        """The experiment on data that are prepared already. Raises InputError if the config does not fit them."""
        plan = _planned(config, make_problem(config, dataset.facts, dataset.dim))
        before = None
        if config.released_pca is not None:
            before = plan_statistics(config, dataset.facts, len(dataset.feature_names))
        return cls(config, run_id(config), dataset, plan, before)

    @property
    def method(self) -> Agreed:
        return self.config.algorithm

    @property
    def loss(self) -> Objective | None:
        return training_loss(self.config, self.plan.problem)

    @property
    def course(self) -> Course:
        return Course(self.run, self.plan, self.method, public_key(self.config.seed))

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
            tuple(sources[name] for name in names), self.config.seed, privacy.ledger, ledgers, log, privacy.cap,
            privacy.noise == "guarded",
        )  # fmt: skip

    def start(self) -> np.ndarray:
        """w_0 (d,), within the domain: its centre 0, of a network random weights that follow from the public seed."""
        return start(self.config, training_loss(self.config, self.plan.problem), self.dataset.dim)

    def in_process(self, ledgers: LedgerFolders, log: Path | None = None) -> InProcess:
        """A backend in this process; `open` it before use."""
        names = [silo.name for silo in self.plan.problem.silos]
        return InProcess(open_site(self.site_spec(names, ledgers, log)), self.agreement)


class StatisticsRun(Experiment):
    """The run before a run: silos release the moments from which `data.pca.constants: released` are computed."""

    @classmethod
    def prepare(
        cls, config: ExperimentConfig, silo_root: Path, released: tuple[Constants, Projection] | None = None
    ) -> StatisticsRun:
        """The release that `config` asks for, on the same silos with their records as they are before projection.

        Raises InputError as `Experiment.prepare`, for too many features, and if it asks for none.
        """
        data = raw_data(config)
        silos, features = facts(data, raw_model(config, 1.0), config.seed)
        plan = plan_statistics(config, silos, features)
        bound = statistics_method(config, features).bound
        dataset = prepare(data, raw_model(config, bound), config.seed, silo_root)
        return cls(config, statistics_id(config), dataset, plan)

    @property
    def method(self) -> SecondMoments:
        return statistics_method(self.config, len(self.dataset.feature_names))

    def start(self) -> np.ndarray:
        """0 (d,), of the statistic: nothing is trained."""
        return np.zeros(self.plan.problem.dim)

    @property
    def loss(self) -> None:
        """None: no gradient is asked for."""
        return None

    def constants(self, silo_root: Path, moments: Vector) -> tuple[Constants, Projection]:
        """The constants of pooled `moments` (`SecondMoments.output`): recorded below `silo_root` unless they are there.

        Free of charge, however often and for whatever dimension. Raises InputError if noise has swallowed the variance,
        and as `write_projection`.
        """
        pca, method = self.config.released_pca, self.method
        dimension = pca.dimension if pca is not None else method.features
        mean, second = unpacked(moments, method.features, method.bound)
        path, projection = write_projection(
            silo_root.absolute() / self.dataset.name / self.run, "released", dimension,
            "computed from moments that the silos released with noise and a charge",
            lambda: Projection.of_moments(mean, second, dimension),
        )  # fmt: skip
        return Constants(str(path), projection.digest, "released", dimension), projection


def check_policies(config: ExperimentConfig) -> None:
    """Finds silos that this process would not open for want of a policy, or for having one. Raises InputError."""
    silos, _ = facts(config.data, config.model, config.seed)
    for silo in silos:
        try:
            policy_of(silo.name, config.privacy.noise == "guarded")
        except SiloError as error:
            raise InputError(str(error)) from None


def check(config: ExperimentConfig, silo_root: Path) -> None:
    """Finds a user's mistakes in config and files before anything is asked. Raises InputError."""
    if config.released_pca is None:
        Experiment.prepare(config, silo_root)
    else:
        StatisticsRun.prepare(config, silo_root)
        make_plan(config)
