"""PrivateSilo: the only reader of records. It gives only answers that are clipped, noised and charged.

A silo answers only questions of the plan that it made itself from the agreed config. Once records are opened, no
outcome depends on them. A query is checked first, a record whose gradient is not a number contributes zero, and an
unforeseen failure becomes one constant code.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from fedcore.accounting.composition import worst_mu_squared
from fedcore.accounting.filters import Cap
from fedcore.algorithms import Method
from fedcore.algorithms.statistics.evaluated import evaluated
from fedcore.arrays import Matrix, Vector, digest, is_vector
from fedcore.data.records import Records
from fedcore.errors import SiloError
from fedcore.ledger.ledger import Ledger, Row, payload_digest
from fedcore.ledger.memory import MemoryLedger
from fedcore.ledger.refusals import closed_before
from fedcore.mechanisms.gaussian import SeededGaussian
from fedcore.mechanisms.grid import GridGaussian
from fedcore.messages import Release
from fedcore.models import Model, Objective, model_of
from fedcore.planning.phase import Phase
from fedcore.planning.plan import Plan
from fedcore.planning.problem import Problem, unit_of
from fedcore.silo.agreement import Agreement, terms
from fedcore.silo.answers import ANSWERS, Shard, rows_of
from fedcore.silo.approval import charge_of, check_agreed, check_answers, check_noise, check_whole_silo, grid_of
from fedcore.silo.approved_run import ApprovedRun
from fedcore.silo.columns.group import Member
from fedcore.silo.keys import Keys
from fedcore.silo.lease import check_number
from fedcore.silo.policies.decisions import Decisions
from fedcore.silo.policies.policy import Policy
from fedcore.silo.policies.policy_in_force import Clock, PolicyInForce, utc_now
from fedcore.silo.question import RoundQuestion
from fedcore.silo.round_view import RoundView


class PrivateSilo:
    """One silo: its records, its keys, its ledger. `computed` counts answers that were computed, not repeated.

    `keys`: of its draws. `guarded`: keys are secret and random, so only the ledger has a run's key, until the run is
    closed. Noise is on an integer grid, plans with other noise or none are refused, and only releases are shown.
    `policy`: the operator's (`open_site` gives every guarded silo one); `clock`: by which it expires. `decisions`: the
    operator's, besides.
    """

    def __init__(
        self,
        name: str,
        records: Records,
        keys: Keys,
        ledger: Ledger,
        cap: Cap | None = None,
        guarded: bool = False,
        policy: Policy | None = None,
        clock: Clock = utc_now,
        decisions: Decisions | None = None,
    ) -> None:
        self.name = name
        self._cap = cap
        self.ledger = ledger
        self.computed = 0
        self._records = records
        self._keys = keys
        self._guarded = guarded
        self._clock = clock
        self._policy = None if policy is None else PolicyInForce(policy, name, self.n, clock, records.person, decisions)
        if policy is not None:
            ledger.record_policy(policy.digest, policy.text)
        self._noise = keys.noise()
        self._grid_noise = GridGaussian()
        self._runs: dict[str, ApprovedRun] = {}
        self._shards: dict[str, tuple[tuple[int, int, int], Shard]] = {}

    @property
    def n(self) -> int:
        """Number of records, or of persons where these are the unit of privacy; public."""
        return self._records.n

    @property
    def guarded(self) -> bool:
        """True if the silo's key is secret, so that its answers protect records."""
        return self._guarded

    @cached_property
    def _finite(self) -> Matrix:
        """The records' features, C-ordered; a record with a non-finite one is all zero: 0 times infinity is NaN."""
        X = self._records.X
        finite = np.isfinite(X).all(axis=1, keepdims=True)
        return np.ascontiguousarray(X if finite.all() else np.where(finite, X, 0.0))

    def compare(self, problem: Problem, method: Method[Any], loss: Objective | None) -> None:
        """Raises SiloError unless a problem's unit, count and width for this silo are those of its records.

        This is cheap, and precedes the costly making of a plan.
        """
        held = unit_of(self._records.person)
        if problem.trust.person != self._records.person:
            raise SiloError(
                self.name, "unit", f"the plan protects {unit_of(problem.trust.person)}, it was opened for {held}"
            )
        claimed = problem.sizes.get(self.name)
        if claimed != self.n:
            raise SiloError(self.name, "size", f"the plan says {claimed} {problem.unit}, it holds {self.n}")
        rows, features = self._records.X.shape
        for kind in evaluated(method, problem).asks:
            # Of the class itself: a derived class may sum in its own way, and has to declare `weighs` again.
            if self._records.person is not None and not vars(ANSWERS[kind]).get("weighs", False):
                raise SiloError(self.name, "unit", f"{kind} is an answer about records, not about persons")
            fault = ANSWERS[kind].misfit(problem, loss, rows, features)
            if fault is not None:
                raise SiloError(self.name, "width", fault)

    def allows(self, run: str, method: Method[Any], loss: Objective | None) -> None:
        """Raises SiloError if the silo's policy refuses such a run whatever its plan; called before one is made."""
        if self._policy is not None:
            self._policy.allows(run, method, loss, self.ledger)

    def approve(self, run: str, plan: Plan, method: Method[Any], loss: Objective | None, lease: int = 0) -> None:
        """Agrees to a run, after comparing the plan's claims about this silo (`compare`).

        Reserves the full charge of the plan, before any answer; from then on only this `lease` of the run counts.
        Raises SiloError if a claim is wrong, another plan was approved under this run id, or a newer lease is known.
        Also if the silo's policy or the cap over all runs does not admit the plan.
        """
        check_number(self.name, run, lease, self._clock())
        problem = plan.problem
        self.compare(problem, method, loss)
        problem.budget.check(self.name, self.n)
        charge, evaluating = charge_of(self.name, plan), evaluated(method, problem)
        if self._policy is not None:
            self._policy.approve(run, evaluating, loss, charge, self.ledger)
        check_answers(self.name, plan, evaluating)
        check_agreed(self.name, plan)
        check_whole_silo(self.name, plan)
        check_noise(self.name, self.n, self._guarded, plan)
        agreed = terms(plan.digest, method, loss)
        if self._policy is not None:
            agreement = Agreement(run, problem, method, loss, plan.digest)
            self._policy.decided(run, agreed, agreement.to_bytes, self.ledger)
        fresh = self._keys.of_run(self.name, run, agreed, method.name)
        mine = None if self._policy is None else self._policy.cap
        key = self.ledger.open_run(run, agreed, fresh, charge, self._cap, self._records.person, lease, mine)
        X, y, weights = self._in_order_of(key, problem.facts[self.name].held)
        bound = self._records.bound
        kinds = {kind.question.kind for phase in plan.phases for kind in phase.kinds}
        answers = {kind: ANSWERS[kind].of(problem, loss, X, y, bound) for kind in kinds}
        named = digest(run.encode(), plan.digest.encode())
        self._shards.pop(run, None)
        self._runs[run] = ApprovedRun(plan, evaluating, loss, self._keys, key, named, X, y, answers, weights, lease)

    def _in_order_of(self, key: bytes, held: int) -> tuple[Matrix, Vector, Vector | None]:
        """Features, labels and weights in the order of the run's split, shared by the open runs of one key."""
        for run in self._runs.values():
            if run.key == key and run.plan.problem.facts[self.name].held == held:
                return run.X, run.y, run.weights
        # The split depends on row indices only, never on contents or labels; a person moves with all of its places.
        places = self._keys.order(key, self.name, self.n, held)
        order = rows_of(places, self._records.places)
        X, y, weights = self._finite[order], self._records.y[order], self._records.weights
        return X, y, None if weights is None else weights[order]

    def close_run(self, run: str) -> None:
        """Ends a run for good: its charge falls from the full plan to that of its releases; it gets no new answer."""
        self.ledger.close_run(run, worst_mu_squared(self.ledger.events(run)), self._lease(run))

    def forget_run(self, run: str) -> None:
        """Drops a run and its view of the records; it may be approved again."""
        self._runs.pop(run, None)
        self.ledger.forget_run(run)
        self._shards.pop(run, None)

    def answer(self, question: RoundQuestion, phase: Phase) -> Release:
        """The release for this question: the committed one if there is one, else a new one, charged before it is sent.

        `phase`: of the approved plan, in the question's round. Raises SiloError for an address that was answered for
        another question.
        """
        run, index, round, _, digest = question
        self.ledger.check_lease(run, self._lease(run))
        row = self.ledger.find(run, index, round)
        if row is not None:
            if row.query_digest != digest:
                sentence = f"round {index}.{round} of run {run} was already answered for another model"
                raise SiloError(self.name, "replayed", sentence)
            if row.payload is not None:
                stored = np.frombuffer(row.payload, dtype=np.float64)
                return Release(self.name, index, round, digest, row.payload_digest, stored)
        elif self.ledger.is_closed(run):
            raise closed_before(self.name, run)
        elif phase.schedule.at_most_once and any(other.phase == index for other in self.ledger.rows(run)):
            raise SiloError(self.name, "plan", f"it has answered in phase {index} already, where it may once")
        if row is None and self._policy is not None:
            self._policy.answer(run)
        approved = self._runs[run]
        view = self._view(question, phase)
        message = approved.method.silo_step(question.arrays, view)
        view.end()
        dim = phase.question.sent(approved.plan.problem.objective.dim)
        if not is_vector(message, dim):
            # A repetition would read its bytes as another array.
            raise SiloError(self.name, "plan", f"the method's message is not an array of {dim} float64")
        payload, digested = payload_digest(message)
        self.computed += 1
        self.ledger.commit(run, Row(index, round, digest, view.event, digested, payload), approved.lease)
        return Release(self.name, index, round, digest, digested, message)

    def _lease(self, run: str) -> int:
        approved = self._runs.get(run)
        return 0 if approved is None else approved.lease

    def member(self, question: RoundQuestion, phase: Phase) -> Member | None:
        """The silo's part in rounds in columns; None for a silo that answers by itself (`Members`)."""
        if self._guarded or self._policy is not None or not isinstance(self.ledger, MemoryLedger):
            return None
        if not isinstance(self._noise, SeededGaussian):
            return None
        run = self._runs[question.run]
        return Member(self.name, run, self._shard(question, run, phase), self.ledger)

    def simulated(self, run: str) -> tuple[Model, Matrix, Vector, Vector | None]:
        """NOT PRIVATE: the run's model, the silo's rows and their weights, for `simulation/` metrics only."""
        if self._guarded:
            raise SiloError(self.name, "guarded", "it is guarded and shows nothing but releases")
        approved = self._runs[run]
        if approved.loss is None:
            raise SiloError(self.name, "model", f"run {run} has no model")
        return model_of(approved.loss), approved.X, approved.y, approved.weights

    def _view(self, question: RoundQuestion, phase: Phase) -> RoundView:
        run = self._runs[question.run]
        shard = self._shard(question, run, phase)
        return RoundView(self.name, run, question, phase, shard, self._noise, self._grid_noise)

    def _shard(self, question: RoundQuestion, run: ApprovedRun, phase: Phase) -> Shard:
        kind = run.plan.phases[question.phase - 1].kind(question.round)
        slot = (question.phase, kind, question.round if phase.schedule.fresh_blocks else 0)
        found = self._shards.get(question.run)
        if found is not None and found[0] == slot:
            return found[1]
        event = phase.event(self.name, question.round)
        places = self._records.places
        at = slice(event.start * places, event.stop * places)
        count = phase.by_silo[self.name].batch
        grid = grid_of(self.name, run.plan.problem, phase, event) if self._guarded else None
        weights = None if run.weights is None else run.weights[at]
        noise = 0.0 if phase.noise.entrusted else event.sigma * count
        shard = Shard(event, at, run.X[at], run.y[at], count, noise, grid, weights, places)
        self._shards[question.run] = slot, shard
        return shard
