"""What is audited: one silo of a plan, with a name, a size and a plan of the experiment and a key of the auditor's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

from fedcore.accounting.calibration import Budget
from fedcore.accounting.events import GaussianRelease
from fedcore.algorithms import Method
from fedcore.audit.answers import AUDITED, AuditedAnswer
from fedcore.data.records import Records
from fedcore.errors import InputError
from fedcore.ledger.ledger import Ledger
from fedcore.losses import Loss
from fedcore.models import Objective, OwnLoss
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

    @cached_property
    def answer(self) -> AuditedAnswer:
        """What is known of the plan's answers. Raises InputError for a plan of several kinds, or one without audits."""
        (kind, *more) = sorted({phase.answer for phase in self.plan.phases})
        if more or kind not in AUDITED:
            names = ", ".join((kind, *more))
            raise InputError(f"a plan of answers {names} cannot be audited; plans of one of {', '.join(AUDITED)} can")
        return AUDITED[kind](self.plan, self.loss)

    @property
    def linear_loss(self) -> Loss:
        """The loss of one predictor. Raises ValueError for models with several, and where there is none."""
        if self.loss is None or isinstance(self.loss, OwnLoss):
            raise ValueError(f"{type(self.loss).__name__} is no loss of one predictor")
        return self.loss

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

    def without_noise(self) -> Subject:
        """The same silo, method and problem in a plan without noise. Raises InputError where there is no such plan."""
        problem = replace(self.plan.problem, budget=Budget(None))
        method = self.method
        if getattr(method, "rounds", 1) is None:
            method = replace(cast(Any, method), rounds=self.plan.rounds)
        return replace(self, plan=method.plan(problem), method=method, open=self.plain or self.open)

    def in_another_plan(self) -> Subject:
        """The same silo in another plan whose answers are alike."""
        return replace(self, plan=self.method.plan(self.answer.elsewhere(self.plan.problem)))


def auditable(subject: Subject) -> Subject:
    """The subject itself. Raises InputError for an unknown silo, and for a plan without noise."""
    if subject.n and not subject.plan.problem.budget.private:
        raise InputError("privacy.trust = none adds no noise: there is nothing to audit")
    return subject
