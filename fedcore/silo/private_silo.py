"""PrivateSilo: the only reader of records. Every answer it gives is clipped, noised and charged, or it gives none.

A silo answers only what the plan contains that it made itself from the agreed config. Once records are opened nothing
that happens depends on them: a query is checked first, a record whose gradient is not a number contributes zero, and
an unforeseen failure becomes one constant code.
"""

from __future__ import annotations

import struct

import numpy as np

from fedcore.accounting.composition import worst_mu_squared
from fedcore.accounting.events import RESERVED, GaussianRelease, mean_sensitivity
from fedcore.accounting.filters import Cap, Charge
from fedcore.algorithms import Agreed, SecondMoments
from fedcore.arrays import Vector, digest, is_vector
from fedcore.data.records import Records
from fedcore.errors import InputError, SiloError
from fedcore.ledger.ledger import Ledger, Row, closed_before, payload_digest
from fedcore.losses import DrawnConvolution
from fedcore.mechanisms.discrete_gaussian import Keystream
from fedcore.mechanisms.gaussian import KeyedGaussian
from fedcore.mechanisms.grid import Grid, GridGaussian, charged_grid, delta_cost
from fedcore.mechanisms.secret_sample import fixed_size_sample, poisson_sample, sample_stream
from fedcore.messages import BOUND, Release
from fedcore.models import Objective, model_of
from fedcore.models.linear import row_norms
from fedcore.planning.moments import half_diameter, largest_norm, moment_sum
from fedcore.planning.plan import Phase, Plan
from fedcore.planning.problem import Problem
from fedcore.randomness import derive, generator
from fedcore.silo.agreement import terms
from fedcore.silo.approved_run import Approved, Piece
from fedcore.silo.policy import MOST_RUNS, Clock, Policy, PolicyInForce, utc_now
from fedcore.silo.question import Question

REACH = 1e6
"""Radii of the domain that local steps may go from its centre."""
MOST_NUMBERS = 2**27
"""Of an array with a row for each record: 8 GB."""


class PrivateSilo:
    """One silo: its records, its key, its ledger. `computed` counts answers that were computed rather than repeated.

    `key`: what the keys of its runs are derived from. `guarded`: the key is secret and random, so a run's key is only
    in the ledger, until the run is closed; noise is on an integer grid; plans with other noise or none are refused,
    and nothing is shown but releases. `policy`: what its operator allows (`open_site` gives every guarded silo one);
    `clock`: by which it expires.
    """

    def __init__(
        self, name: str, records: Records, key: bytes, ledger: Ledger, cap: Cap | None = None, guarded: bool = False,
        policy: Policy | None = None, clock: Clock = utc_now,
    ) -> None:  # fmt: skip
        self.name = name
        self._cap = cap
        self.ledger = ledger
        self.computed = 0
        self._records = records
        self._key = key
        self._guarded = guarded
        self._policy = None if policy is None else PolicyInForce(policy, name, self.n, clock)
        if policy is not None:
            ledger.record_policy(policy.digest, policy.text)
        self._noise = KeyedGaussian()
        self._grid_noise = GridGaussian()
        self._runs: dict[str, Approved] = {}
        self._named: dict[str, bytes] = {}  # by run, the digest of its id and its plan
        self._pieces: dict[tuple[str, int, int], Piece] = {}

    @property
    def n(self) -> int:
        return len(self._records.y)

    def compare(self, problem: Problem, method: Agreed, loss: Objective | None) -> None:
        """Raises SiloError unless a problem's claims about this silo are its own records' count and width.

        Cheap, unlike a plan: it comes before one is made.
        """
        claimed = problem.sizes.get(self.name)
        if claimed != self.n:
            raise SiloError(self.name, "size", f"the plan says {claimed} records, it holds {self.n}")
        features = self._records.X.shape[1]
        if isinstance(method, SecondMoments) != (loss is None):
            raise SiloError(self.name, "plan", "training has an objective, and statistics have none")
        if isinstance(method, SecondMoments):
            claimed, held = method.features, features
        elif loss is not None:
            claimed, held = problem.dim, model_of(loss).weights(features)
        if claimed != held:
            raise SiloError(self.name, "width", f"the plan says {claimed} weights, its records have {held}")
        smoothed = getattr(loss, "dim", features)
        if smoothed != features:
            # Its constants, which decide how a sample may be summed, would be those of other records.
            raise SiloError(self.name, "width", f"the loss is smoothed in {smoothed} dimensions, not in {features}")
        units = 1 if loss is None else model_of(loss).weights(features) // features
        if self.n * units > MOST_NUMBERS:
            sentence = f"{self.n} records at {units} units are more than the {MOST_NUMBERS} numbers it computes with"
            raise SiloError(self.name, "width", sentence)

    def allows(self, run: str, method: Agreed, loss: Objective | None) -> None:
        """Raises SiloError if the silo's policy refuses such a run whatever its plan: before one is made."""
        if self._policy is not None:
            self._policy.allows(run, method, loss, self.ledger)

    def approve(self, run: str, plan: Plan, method: Agreed, loss: Objective | None) -> None:
        """Agrees to a run, after comparing the plan's claims about this silo (`compare`).

        The full charge of the plan is reserved, before any answer. Raises SiloError if a claim is wrong, if another
        plan was approved under this run id, or if the silo's policy or the cap over all runs does not admit the plan.
        """
        problem, model = plan.problem, None if loss is None else model_of(loss)
        self.compare(problem, method, loss)
        problem.budget.check(self.name, self.n)
        charge = Charge.of(plan.silo_events(self.name), problem.budget.delta(self.n))
        if self._policy is not None:
            self._policy.approve(run, method, loss, charge, self.ledger)
        self._check_noise(plan)
        agreed = terms(plan.digest, method, loss)
        fresh = derive(self._key, self.name, run, agreed, "run key")
        key = self.ledger.open_run(run, agreed, fresh, charge, self._cap)
        # The split depends on row indices only, never on contents or labels.
        order = generator(key, "split").permutation(self.n)
        X = np.ascontiguousarray(self._records.X[order])
        # A record that is not finite contributes zero: 0 times infinity would spoil the whole sum.
        X[~np.isfinite(X).all(axis=1)] = 0.0
        y = self._records.y[order]
        drawn = loss if isinstance(loss, DrawnConvolution) else None
        self._named[run] = digest(run.encode(), plan.digest.encode())
        self._runs[run] = Approved(
            plan, method, model, key, X, y, np.zeros(self.n) if model is None else model.bounds(X, y, problem.clip),
            drawn, row_norms(X) if drawn else None, self._records.bound,
        )  # fmt: skip

    def close_run(self, run: str) -> None:
        """Ends a run for good: its charge falls from the full plan to what its releases spent; it gets no new one."""
        self.ledger.close_run(run, worst_mu_squared(row.event for row in self.ledger.rows(run)))

    def forget_run(self, run: str) -> None:
        """Lets go of a run's records, until it is approved again; its ledger rows stay."""
        self._runs.pop(run, None)
        self._named.pop(run, None)
        self._pieces.clear()

    def answer(self, question: Question, phase: Phase) -> Release:
        """The release for this question: the committed one if there is one, else a new one, charged before it is sent.

        `phase` is the site's, of the approved plan. Raises SiloError for an address that was answered with another
        question.
        """
        run, index, round, _, digest = question
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
        elif phase.at_most_once and any(other.phase == index for other in self.ledger.rows(run)):
            raise SiloError(self.name, "plan", f"it has answered in phase {index} already, where it may once")
        if row is None and self._policy is not None:
            self._policy.answer(run)
        approved = self._runs[run]
        turn = _Turn(self, approved, question, self._piece(question, approved, phase))
        message = approved.method.silo_step(question.arrays, turn)
        turn.over = True
        if turn.asked != turn.event.count:
            raise SiloError(
                self.name, "plan", f"the method asked {turn.asked} times in a round planned for {turn.event.count}"
            )
        dim = approved.plan.problem.dim
        if not is_vector(message, dim):
            # Its bytes would be sent again as something else.
            raise SiloError(self.name, "plan", f"the method's message is not an array of {dim} float64")
        payload, digested = payload_digest(message)
        self.computed += 1
        self.ledger.commit(run, Row(index, round, digest, turn.event, digested, payload))
        return Release(self.name, index, round, digest, digested, message)

    def simulated(self, run: str, w: Vector) -> tuple[int, float, int]:
        """NOT PRIVATE: records, sum of losses and number of wrong classes at w, for `simulation/` metrics only."""
        if self._guarded:
            raise SiloError(self.name, "guarded", "it is guarded and shows nothing but releases")
        approved = self._runs[run]
        if approved.model is None:
            raise SiloError(self.name, "model", f"run {run} has no model")
        losses, wrong = approved.model.evaluate(w, approved.X, approved.y)
        return self.n, float(losses.sum()), 0 if wrong is None else int(wrong.sum())

    def _check_noise(self, plan: Plan) -> None:
        """Raises SiloError unless the plan's noise is the kind that this silo adds, and its delta covers it."""
        budget, guarded = plan.problem.budget, self._guarded
        if (budget.mechanism == "discrete-gaussian") != guarded or (guarded and not budget.private):
            mine = "noise on a grid under a key of its own" if guarded else "noise that follows from a seed"
            raise SiloError(self.name, "noise", f"it adds {mine}; the plan asks for another kind, or for none")
        if not guarded:
            return
        distance = delta_cost(plan.problem.dim, plan.most_answers, plan.silo_epsilon(self.name))
        if distance > RESERVED * budget.delta(self.n) / MOST_RUNS:
            raise SiloError(self.name, "noise", "its delta is too small for the distance of discrete noise")
        for phase in plan.phases:
            self._grid(phase, phase.event(self.name, 1), plan.problem.dim)

    def _grid(self, phase: Phase, event: GaussianRelease, dim: int) -> Grid:
        """The grid of a phase's sums, from public numbers. Raises SiloError if the planned event does not cover it."""
        norm = None if phase.record_bound is None else largest_norm(phase.record_bound)
        try:
            return charged_grid(event, phase.clip, phase.by_silo[self.name].batch, dim, norm)
        except InputError as error:
            fault = str(error)
        # Not in the handler: the first error would travel as the context of this one.
        raise SiloError(self.name, "noise", f"phase {phase.index}: {fault}")

    def _piece(self, question: Question, approved: Approved, phase: Phase) -> Piece:
        slot = (question.run, question.phase, question.round if phase.fresh_blocks else 0)
        piece = self._pieces.get(slot)
        if piece is None:
            event = phase.event(self.name, question.round)
            part = slice(event.start, event.stop)
            self._pieces.clear()
            count = phase.by_silo[self.name].batch
            grid = self._grid(phase, event, approved.plan.problem.dim) if self._guarded else None
            norms = None if approved.norms is None else approved.norms[part]
            piece = Piece(
                event, approved.X[part], approved.y[part], approved.bounds[part], norms, count, event.sigma * count,
                grid,
            )  # fmt: skip
            self._pieces[slot] = piece
        return piece


class _Turn:
    """What a method sees of a silo in one round (protocol `fedcore.algorithms.method.Silo`)."""

    __slots__ = ("_address", "_approved", "_piece", "_query", "_samples", "_silo", "asked", "over")

    def __init__(self, silo: PrivateSilo, approved: Approved, question: Question, piece: Piece) -> None:
        self._silo, self._approved, self._piece = silo, approved, piece
        # The address itself, beside the query digest that covers it too: no digest, whoever made it, joins two.
        self._address = silo._named[question.run] + struct.pack("<QQ", question.phase, question.round)
        self._query = question.digest
        self._samples: Keystream | None = None
        self.asked = 0
        self.over = False

    @property
    def event(self) -> GaussianRelease:
        return self._piece.event

    @property
    def _reach(self) -> float:
        """Largest norm of a local model. Those that are sent lie in the domain; local steps are not projected."""
        return min(BOUND, REACH * self._approved.plan.problem.diameter / 2)

    @property
    def ridge(self) -> float:
        return self._approved.plan.problem.ridge

    def gradient(self, w: Vector) -> Vector:
        """(clipped sum + noise) / public count: sensitivity and sigma are those of the planned event.

        Where the event is sampled the sum is over a secret sample, drawn here for this question, and the count is the
        size expected of it: dividing by the true size would show it. An empty sample answers pure noise.
        """
        if self.over:
            # A method that kept this from an earlier round would get an answer that nobody charges.
            raise SiloError(self._silo.name, "plan", "the method asked after its round")
        piece, approved, context = self._piece, self._approved, self._next_context()
        if not float(w @ w) <= self._reach**2:
            # Local steps may have gone where no query may: predictors would overflow for some records and not for
            # others, and time and bits tell which. Of noised answers alone, so this reveals nothing.
            w = np.clip(np.nan_to_num(w, posinf=BOUND, neginf=-BOUND), -BOUND, BOUND)
            w *= self._reach / max(self._reach, float(np.linalg.norm(w)))
        shifts = None
        if approved.drawn is not None and piece.norms is not None:
            # Whoever knows these points has learnt nothing of a record: what protects is clip, coins and noise.
            shifts = approved.drawn.shifts(piece.norms, generator(approved.key, context, "smoothing"))
        if piece.event.sampling == "full":
            total = approved.clipped_sum(w, piece, shifts=shifts)
        elif piece.event.sampling == "poisson":
            chosen = poisson_sample(self._stream(context), piece.event.rate, len(piece.y))
            total = approved.clipped_sum(w, piece, chosen, shifts)
        elif piece.event.sampling == "without-replacement" and piece.event.rate == piece.count / len(piece.y):
            # Else as many records as the sum is divided by would be more, or fewer, than the charge is for.
            chosen = fixed_size_sample(self._stream(context), int(piece.count), len(piece.y))
            total = approved.clipped_sum(w, piece, chosen, shifts)
        else:
            raise SiloError(self._silo.name, "plan", f"it draws no samples of the kind {piece.event.sampling}")
        return self._released(total, context)

    def moments(self, bound: float) -> Vector:
        """(sum of the statistic over all records, each scaled to norm `bound`, + noise) / public count."""
        event, count = self._piece.event, self._piece.count
        charged = mean_sensitivity(half_diameter(bound), count, event.mechanism) <= event.sensitivity
        if self.over or event.sampling != "full" or not charged:
            # The event was planned for clipped gradients, or a sample of records, or this is not its round.
            raise SiloError(self._silo.name, "plan", "the method asked for moments that the plan does not charge for")
        context = self._next_context()
        return self._released(moment_sum(self._piece.X, bound), context)

    def _next_context(self) -> bytes:
        """What keys the draws of the next answer: run, plan, phase, round, its number in the round, and the query."""
        self.asked += 1
        return self._address + self.asked.to_bytes(8, "little") + self._query

    def _stream(self, context: bytes) -> Keystream:
        """Where this turn draws its samples from: one stream under the context of its first answer."""
        if self._samples is None:
            self._samples = sample_stream(self._approved.key, context)
        return self._samples

    def _released(self, total: Vector, context: bytes) -> Vector:
        """(total + noise of the planned event) / public count, for a total of the event's sensitivity."""
        piece, approved = self._piece, self._approved
        if piece.grid is not None:
            total = self._silo._grid_noise.noised(approved.key, context, total, piece.grid)
        elif piece.noise > 0:
            noise = self._silo._noise.draw(approved.key, context, total)
            noise *= piece.noise
            total += noise
        total /= piece.count
        return total
