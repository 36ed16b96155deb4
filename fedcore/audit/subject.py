"""What is audited: one silo of a plan, with a name, a size and a plan of the experiment and a key of the auditor's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

from fedcore.accounting.calibration import Budget
from fedcore.accounting.events import GaussianRelease
from fedcore.algorithms import Method
from fedcore.algorithms.statistics.evaluated import evaluated
from fedcore.audit.answers import AUDITED, AuditedAnswer
from fedcore.data.records import Records
from fedcore.errors import InputError
from fedcore.ledger.ledger import Ledger
from fedcore.losses import Loss
from fedcore.models import Objective, OwnLoss
from fedcore.planning.evaluation import Evaluation
from fedcore.planning.phase import Phase
from fedcore.planning.plan import Plan
from fedcore.planning.whole_silo import planned
from fedcore.silo.private_silo import PrivateSilo

Opener = Callable[[str, Records, bytes, Ledger], PrivateSilo]
"""Opens the silo under test, from its name, its records, its key and its ledger."""


@dataclass(frozen=True)
class Subject:
    """What is audited. `key`: the synthetic silo's; `open` makes the silo under test.

    `plain`: makes it for a plan without noise, where `open` makes one that refuses such a plan; None: `open` does.
    `kind`: of the answers that are looked at, where the plan has several; None: all of them.
    """

    plan: Plan
    method: Method[Any]
    loss: Objective | None
    silo: str
    key: bytes
    open: Opener = PrivateSilo
    plain: Opener | None = None
    kind: str | None = None

    @cached_property
    def asking(self) -> Method[Any]:
        """The method as the problem asks for it, with evaluations if there are any: what server and silo run."""
        return evaluated(self.method, self.plan.problem)

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """Those that are audited."""
        return tuple(phase for phase in self.plan.phases if self.kind in (None, phase.answer))

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
        return self.phases[0].length(self.plan.problem)

    @property
    def clip(self) -> float:
        return self.phases[0].clip

    @cached_property
    def place(self) -> int:
        """Which of the plan's silos it is, from 0."""
        return [facts.name for facts in self.plan.problem.silos].index(self.silo)

    @cached_property
    def answer(self) -> AuditedAnswer:
        """What is known of the plan's answers. Raises InputError for a plan of several kinds, or one without audits."""
        (kind, *more) = sorted({kind.answer for phase in self.phases for kind in phase.kinds})
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
        rounds = {phase.index: 1 if phase.at_most_once else phase.rounds for phase in self.phases}
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
        problem = replace(self.plan.problem, budget=Budget(None), evaluation=_noiseless(self.plan.problem.evaluation))
        method = self.method
        if getattr(method, "rounds", 1) is None:
            method = replace(cast(Any, method), rounds=self.plan.training_rounds)
        plan = evaluated(method, problem).plan(problem)
        return replace(self, plan=plan, method=method, open=self.plain or self.open)

    def in_another_plan(self) -> Subject:
        """The same silo in another plan whose answers are alike."""
        return replace(self, plan=planned(self.asking, self.answer.elsewhere(self.plan.problem)))


def _noiseless(evaluation: Evaluation | None) -> Evaluation | None:
    return None if evaluation is None else replace(evaluation, epsilon=None)


def auditable(subject: Subject) -> Subject:
    """The subject itself. Raises InputError for an unknown silo, and for a plan without noise."""
    if subject.n and not subject.plan.problem.budget.private:
        raise InputError("privacy.trust = none adds no noise: there is nothing to audit")
    return subject
