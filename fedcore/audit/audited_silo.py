"""The silo under audit: name, size and plan come from the experiment, the key from the auditor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np

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
from fedcore.silo.keys import Keys
from fedcore.silo.private_silo import PrivateSilo

Opener = Callable[[str, Records, Keys, Ledger], PrivateSilo]
"""Opens the silo under test, from its name, its records, its keys and its ledger."""


@dataclass(frozen=True)
class AuditedSilo:
    """The silo under audit. `key`: the synthetic silo's; `open` makes the silo under test.

    `plain`: makes the silo for a plan without noise, where `open` makes one that refuses such a plan; None: `open`
    does. `kind`: audited kind of answers, where the plan has several (`kinds`); None: all of them.
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
    def run_method(self) -> Method[Any]:
        """The method that server and silo run: with evaluations, if the problem has any."""
        return evaluated(self.method, self.plan.problem)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of answers that the plan asks for, in the method's order; each is audited by itself.

        Raises InputError for a kind that the method does not name, which no instrument would look at.
        """
        planned = {kind.question.kind for phase in self.plan.phases for kind in phase.kinds}
        if more := planned - set(self.run_method.asks):
            raise InputError(f"the plan asks for {', '.join(sorted(more))}, which method {self.method.name} does not")
        return tuple(kind for kind in self.run_method.asks if kind in planned)

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The audited phases, each in its form for rounds of the audited kind (`Phase.at`)."""
        kinds = (kind for phase in self.plan.phases for kind in phase.kinds)
        return tuple(kind for kind in kinds if self.kind in (None, kind.question.kind))

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
        """Length of an answer."""
        return self.phases[0].question.length(self.plan.problem.objective.dim)

    @property
    def clip(self) -> float:
        return self.phases[0].question.clip

    @cached_property
    def place(self) -> int:
        """Index of the silo in the plan, from 0."""
        return [facts.name for facts in self.plan.problem.silos].index(self.silo)

    @cached_property
    def answer(self) -> AuditedAnswer:
        """The auditor's model of the plan's answers.

        Raises InputError for several kinds, or one without audits.
        """
        found = sorted({phase.question.kind for phase in self.phases})
        if len(found) != 1 or (kind := found[0]) not in AUDITED:
            names = ", ".join(found) or str(self.kind)
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
        """Every (phase, round) of the audited kind that the silo may be asked in."""
        return [address for address in self.walked if self.kind in (None, self.at(address).question.kind)]

    def spread(self, most: int) -> list[tuple[int, int]]:
        """At most `most` of these addresses, in order, evenly spread from the first to the last."""
        every = self.addresses
        return [every[at] for at in sorted({round(at) for at in np.linspace(0, len(every) - 1, min(most, len(every)))})]

    @cached_property
    def walked(self) -> list[tuple[int, int]]:
        """Every address up to the last phase with audited rounds.

        A phase that answers at most once has only its first round.
        Rounds of other kinds in those phases are included: a training server asks them, too.
        """
        last = max(phase.index for phase in self.phases)
        return [
            (phase.index, round)
            for phase in self.plan.phases[:last]
            for round in range(1, (1 if phase.schedule.at_most_once else phase.rounds) + 1)
        ]

    def at(self, address: tuple[int, int]) -> Phase:
        """The phase in its form for the round of this address."""
        return self.plan.phases[address[0] - 1].at(address[1])

    @cached_property
    def in_company(self) -> bool:
        """True if rounds of another kind, about the same records, stand between the audited ones."""
        return len(self.walked) > len(self.addresses)

    @cached_property
    def events(self) -> list[GaussianRelease]:
        """The planned event of every address."""
        return [self.event(address) for address in self.addresses]

    def event(self, address: tuple[int, int]) -> GaussianRelease:
        """The planned event of this address, whatever the kind of its round."""
        return self.plan.phases[address[0] - 1].event(self.silo, address[1])

    @cached_property
    def sampled(self) -> bool:
        """True if some answers are about secret samples."""
        return any(event.sampling != "full" for event in self.events)

    @cached_property
    def answers(self) -> int:
        """The largest number of noised sums in one message."""
        return max(event.count for event in self.events)

    def without_noise(self) -> AuditedSilo:
        """The same silo, method and problem in a plan without noise.

        Raises InputError if there is no such plan.
        """
        problem = replace(self.plan.problem, budget=Budget(None), evaluation=_noiseless(self.plan.problem.evaluation))
        method = self.method
        if getattr(method, "rounds", 1) is None:
            method = replace(cast(Any, method), rounds=self.plan.training_rounds)
        if not isinstance(
            getattr(method, "period", 1), int
        ):  # a schedule that depends on the noise's cost, which is zero here
            method = replace(cast(Any, method), period=self.plan.phases[0].settings["period"])
        plan = evaluated(method, problem).plan(problem)
        return replace(self, plan=plan, method=method, open=self.plain or self.open)

    def beside(self, name: str) -> AuditedSilo:
        """The same silo in a plan with one more silo of this name, its size, and the mean of all weights."""
        problem = self.plan.problem
        silos = (*problem.silos, replace(problem.facts[self.silo], name=name, weight=1.0))
        all_take_part = problem.participants == problem.n_silos
        problem = replace(problem, silos=silos, participants=len(silos) if all_take_part else problem.participants)
        return replace(self, plan=planned(self.run_method, problem))

    def in_another_plan(self) -> AuditedSilo:
        """The same silo in another plan whose answers are alike."""
        return replace(self, plan=planned(self.run_method, self.answer.elsewhere(self.plan.problem)))


def _noiseless(evaluation: Evaluation | None) -> Evaluation | None:
    return None if evaluation is None else replace(evaluation, epsilon=None)


def auditable(audited: AuditedSilo) -> AuditedSilo:
    """Returns the silo if instruments can look at it.

    Raises InputError for an unknown silo, for a plan without noise at silos, and for a method whose messages are no
    weighted sums of answers.
    """
    if audited.n and not audited.plan.problem.budget.private:
        raise InputError("privacy.trust = none adds no noise: there is nothing to audit")
    every = [kind for phase in audited.plan.phases for kind in phase.kinds]
    if any(kind.noise.entrusted for kind in every):
        raise InputError("privacy.trust = central: silos add no noise to what they send, so there is none to audit")
    if not audited.method.sends_sums:
        raise InputError(
            f"method {audited.method.name} cannot be audited: what a silo sends of its local steps is no weighted sum "
            "of its answers"
        )
    return audited
