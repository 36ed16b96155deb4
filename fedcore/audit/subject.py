"""What is audited: one silo of a plan, with a name, a size and a plan of the experiment and a key of the auditor's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np

from fedcore.accounting.calibration import Budget
from fedcore.accounting.events import GaussianRelease
from fedcore.algorithms import Method, SecondMoments
from fedcore.arrays import Vector
from fedcore.data.records import Records
from fedcore.errors import InputError
from fedcore.ledger.ledger import Ledger
from fedcore.losses import DrawnConvolution, Loss
from fedcore.models import Objective, OneHiddenLayer, OwnLoss, SoftmaxRegression, model_of
from fedcore.planning.plan import Plan
from fedcore.silo.private_silo import PrivateSilo

Opener = Callable[[str, Records, bytes, Ledger], PrivateSilo]
"""Opens the silo under test, from its name, its records, its key and its ledger."""


@dataclass(frozen=True)
class Subject:
    """What is audited. `key`: the synthetic silo's; `open` makes the silo under test.

    `plain`: makes it for a plan without noise, where `open` makes one that refuses such a plan; None: `open` does.
    """

    plan: Plan
    method: Method[Any]
    loss: Objective | None
    silo: str
    key: bytes
    open: Opener = PrivateSilo
    plain: Opener | None = None

    @cached_property
    def n(self) -> int:
        """Records of the silo. Raises InputError if the plan has no silo of this name."""
        n = self.plan.problem.sizes.get(self.silo)
        if n is None:
            names = ", ".join(facts.name for facts in self.plan.problem.silos[:10])
            raise InputError(f"there is no silo {self.silo!r} in this experiment; its first silos are {names}")
        return n

    @property
    def dim(self) -> int:
        """Numbers of an answer."""
        return self.plan.problem.dim

    @property
    def clip(self) -> float:
        return self.plan.problem.clip

    @cached_property
    def place(self) -> int:
        """Which of the plan's silos it is, from 0."""
        return [facts.name for facts in self.plan.problem.silos].index(self.silo)

    @property
    def objective(self) -> Objective:
        """What gradients are taken of. Raises ValueError for the release of moments."""
        if self.loss is None:
            raise ValueError("moments have no objective")
        return self.loss

    @property
    def linear_loss(self) -> Loss:
        """The loss of one predictor. Raises ValueError for models with several, and for the release of moments."""
        if isinstance(self.objective, OwnLoss):
            raise ValueError(f"{type(self.objective).__name__} has more predictors than one")
        return self.objective

    @cached_property
    def features(self) -> int:
        """Features of a record, bias column included."""
        if isinstance(self.method, SecondMoments):
            return self.method.features
        if isinstance(self.loss, SoftmaxRegression):
            return self.dim // self.loss.classes
        if isinstance(self.loss, OneHiddenLayer):
            return (self.dim - self.loss.classes * (self.loss.hidden + 1)) // self.loss.hidden
        return self.dim

    @property
    def delta(self) -> float:
        return self.plan.problem.budget.delta(self.n)

    @cached_property
    def addresses(self) -> list[tuple[int, int]]:
        """Every (phase, round) that the silo may be asked in; the first round alone of a phase where it may once."""
        rounds = {phase.index: 1 if phase.at_most_once else phase.rounds for phase in self.plan.phases}
        return [(phase, round) for phase, many in rounds.items() for round in range(1, many + 1)]

    @cached_property
    def events(self) -> list[GaussianRelease]:
        """The planned event of every address."""
        return [self.plan.phases[phase - 1].event(self.silo, round) for phase, round in self.addresses]

    @cached_property
    def sampled(self) -> bool:
        """Whether some answers are about secret samples."""
        return any(event.sampling != "full" for event in self.events)

    @cached_property
    def answers(self) -> int:
        """The most noised sums that one message is made of."""
        return max(event.count for event in self.events)

    @property
    def silent(self) -> bool:
        """Whether a record without features adds nothing: not where classes have biases of their own."""
        return not isinstance(self.loss, OneHiddenLayer)

    @property
    def drawn(self) -> bool:
        """Whether gradients are taken at points that the silo draws."""
        return isinstance(self.loss, DrawnConvolution)

    @cached_property
    def start(self) -> Vector:
        """The model of the first query (d,): 0, or what a network starts from, within the domain."""
        if isinstance(self.method, SecondMoments):
            return np.zeros(self.dim)
        w = model_of(self.objective).start(self.features, np.random.default_rng(0))
        return w * min(1.0, 0.49 * self.plan.problem.diameter / max(float(np.linalg.norm(w)), 1e-300))

    def without_noise(self) -> Subject:
        """The same silo, method and problem in a plan without noise. Raises InputError where there is no such plan."""
        problem = replace(self.plan.problem, budget=Budget(None))
        method = self.method
        if getattr(method, "rounds", 1) is None:
            method = replace(cast(Any, method), rounds=self.plan.rounds)
        return replace(self, plan=method.plan(problem), method=method, open=self.plain or self.open)

    def in_another_plan(self) -> Subject:
        """The same silo in a plan of a larger domain, or of moments with a smaller delta: answers are alike."""
        problem = replace(self.plan.problem, diameter=1.5 * self.plan.problem.diameter)
        if isinstance(self.method, SecondMoments):
            problem = replace(problem, budget=replace(problem.budget, fixed_delta=0.9 * self.delta))
        return replace(self, plan=self.method.plan(problem))


def auditable(subject: Subject) -> Subject:
    """The subject itself. Raises InputError for an unknown silo, and for a plan without noise."""
    if subject.n and not subject.plan.problem.budget.private:
        raise InputError("privacy.trust = none adds no noise: there is nothing to audit")
    return subject
