"""PrivateSilo: the only reader of records. Every answer it gives is clipped, noised and charged, or it gives none.

A silo answers only what the plan contains that it made itself from the agreed config. Once records are opened nothing
that happens depends on them: a query is checked first, a record whose gradient is not a number contributes zero, and
an unforeseen failure becomes one constant code.
"""

from __future__ import annotations

import numpy as np

from fedcore.algorithms import Agreed, SecondMoments
from fedcore.arrays import Vector, digest, is_vector
from fedcore.data.records import Records
from fedcore.errors import InputError, SiloError
from fedcore.losses import DrawnConvolution
from fedcore.models import Objective, model_of
from fedcore.models.linear import row_norms
from fedcore.moments import half_diameter, moment_sum
from fedcore.plan import Phase, Plan
from fedcore.privacy.approved import Approved, Piece
from fedcore.privacy.composition import worst_mu_squared
from fedcore.privacy.discrete_gaussian import Keystream
from fedcore.privacy.events import RESERVED, GaussianRelease, mean_sensitivity
from fedcore.privacy.filters import Cap, Charge
from fedcore.privacy.grid_noise import Grid, GridGaussian, charged_grid, delta_cost
from fedcore.privacy.ledger import Ledger, Row, closed_before, payload_digest
from fedcore.privacy.noise import KeyedGaussian
from fedcore.privacy.release import BOUND, Query, Release
from fedcore.privacy.secret_sample import fixed_size_sample, poisson_sample, sample_stream
from fedcore.randomness import derive, generator

MOST_RUNS = 10**6
"""Of one silo, over which the share of delta that is reserved for discrete noise is spread."""


class PrivateSilo:
    """One silo: its records, its key, its ledger. `computed` counts answers that were computed rather than repeated.

    `key`: what the keys of its runs are derived from. `guarded`: the key is secret and random, so a run's key is only
    in the ledger, until the run is closed; noise is on an integer grid; plans with other noise or none are refused,
    and nothing is shown but releases.
    """

    def __init__(
        self, name: str, records: Records, key: bytes, ledger: Ledger, cap: Cap | None = None, guarded: bool = False
    ) -> None:
        self.name = name
        self._cap = cap
        self.ledger = ledger
        self.computed = 0
        self._records = records
        self._key = key
        self._guarded = guarded
        self._noise = KeyedGaussian()
        self._grid_noise = GridGaussian()
        self._runs: dict[str, Approved] = {}
        self._pieces: dict[tuple[str, int, int], Piece] = {}

    @property
    def n(self) -> int:
        return len(self._records.y)

    def approve(self, run: str, plan: Plan, method: Agreed, loss: Objective) -> None:
        """Agrees to a run, after comparing the plan's claims about this silo with its own records' count and width.

        The full charge of the plan is reserved, before any answer. Raises SiloError if a claim is wrong, if another
        plan was approved under this run id, or if the cap over all runs does not admit the plan.
        """
        problem = plan.problem
        claimed = next((facts.n for facts in problem.silos if facts.name == self.name), None)
        if claimed != self.n:
            raise SiloError(self.name, "size", f"the plan says {claimed} records, it holds {self.n}")
        model, features = model_of(loss), self._records.X.shape[1]
        if isinstance(method, SecondMoments):
            claimed, held = method.features, features
        else:
            claimed, held = problem.dim, model.weights(features)
        if claimed != held:
            raise SiloError(self.name, "width", f"the plan says {claimed} weights, its records have {held}")
        problem.budget.check(self.name, self.n)
        self._check_noise(plan)
        terms = digest(plan.digest.encode(), repr(method).encode(), repr(loss).encode()).hex()
        fresh = derive(self._key, self.name, run, terms, "run key")
        charge = Charge.of(plan.silo_events(self.name), problem.budget.delta(self.n))
        key = self.ledger.open_run(run, terms, fresh, charge, self._cap)
        # The split depends on row indices only, never on contents or labels.
        order = generator(key, "split").permutation(self.n)
        X = np.ascontiguousarray(self._records.X[order])
        # A record that is not finite contributes zero: 0 times infinity would spoil the whole sum.
        X[~np.isfinite(X).all(axis=1)] = 0.0
        y = self._records.y[order]
        drawn = loss if isinstance(loss, DrawnConvolution) else None
        self._runs[run] = Approved(
            plan, method, model, key, X, y, model.bounds(X, y, problem.clip), drawn, row_norms(X) if drawn else None,
            self._records.bound,
        )  # fmt: skip

    def close_run(self, run: str) -> None:
        """Ends a run for good: its charge falls from the full plan to what its releases spent; it gets no new one."""
        self.ledger.close_run(run, worst_mu_squared(row.event for row in self.ledger.rows(run)))

    def forget_run(self, run: str) -> None:
        """Lets go of a run's records, until it is approved again; its ledger rows stay."""
        self._runs.pop(run, None)
        self._pieces.clear()

    def answer(self, query: Query, phase: Phase) -> Release:
        """The release for this query: the committed one if there is one, else a new one, charged before it is sent.

        `phase` is the site's, of the approved plan. Raises SiloError for an address that was answered with another
        query.
        """
        digest = query.digest_of(self.name)
        row = self.ledger.find(query.run, query.phase, query.round)
        if row is not None:
            if row.query_digest != digest:
                raise SiloError(
                    self.name,
                    "replayed",
                    f"round {query.phase}.{query.round} of run {query.run} was already answered for another model",
                )
            if row.payload is not None:
                stored = np.frombuffer(row.payload, dtype=np.float64)
                return Release(self.name, query.phase, query.round, digest, row.payload_digest, stored)
        elif self.ledger.is_closed(query.run):
            raise closed_before(self.name, query.run)
        elif phase.once and any(other.phase == query.phase for other in self.ledger.rows(query.run)):
            raise SiloError(self.name, "plan", f"it has answered in phase {query.phase} already, where it may once")
        approved = self._runs[query.run]
        turn = _Turn(self, approved, query, digest, self._piece(query, approved, phase))
        message = approved.method.silo_step(query.asked(self.name), turn)
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
        self.ledger.commit(query.run, Row(query.phase, query.round, digest, turn.event, digested, payload))
        return Release(self.name, query.phase, query.round, digest, digested, message)

    def simulated(self, run: str, w: Vector) -> tuple[int, float, int]:
        """NOT PRIVATE: records, sum of losses and number of wrong classes at w, for `simulation/` metrics only."""
        if self._guarded:
            raise SiloError(self.name, "guarded", "it is guarded and shows nothing but releases")
        approved = self._runs[run]
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
        norm = phase.settings.get("record_norm")
        try:
            return charged_grid(event, phase.clip, phase.by_silo[self.name].batch, dim, norm)
        except InputError as error:
            raise SiloError(self.name, "noise", f"phase {phase.index}: {error}") from None

    def _piece(self, query: Query, approved: Approved, phase: Phase) -> Piece:
        slot = (query.run, query.phase, query.round if phase.fresh_blocks else 0)
        piece = self._pieces.get(slot)
        if piece is None:
            event = phase.event(self.name, query.round)
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

    __slots__ = ("_approved", "_context", "_piece", "_samples", "_silo", "asked", "over")

    def __init__(self, silo: PrivateSilo, approved: Approved, query: Query, digest: bytes, piece: Piece) -> None:
        self._silo, self._approved, self._piece = silo, approved, piece
        # The query digest covers run, plan, phase, round and arrays; the number of the ask keeps two asks apart.
        self._context = digest
        self._samples: Keystream | None = None
        self.asked = 0
        self.over = False

    @property
    def event(self) -> GaussianRelease:
        return self._piece.event

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
        if not float(w @ w) < BOUND**2:
            # Local steps may have gone where no query may: predictors would overflow for some records and not for
            # others, and time and bits tell which. Of noised answers alone, so this reveals nothing.
            w = np.clip(np.nan_to_num(w, posinf=BOUND, neginf=-BOUND), -BOUND, BOUND)
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
        """What keys the draws of the next answer: the query, and the answer's number in its round."""
        self.asked += 1
        return self._context + self.asked.to_bytes(2, "little")

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
