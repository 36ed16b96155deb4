"""A silo of records that the auditor made, asked through the real site: what it was asked, what it sent.

The audited silo has a name, a size and a plan of the experiment; its records are synthetic, and so is its key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from fedcore.algorithms import LOCAL_STEPS, Algorithm
from fedcore.algorithms.method import Method
from fedcore.arrays import Arrays, Vector
from fedcore.audit.addresses import Sent
from fedcore.data.records import Records
from fedcore.errors import InputError, SiloError
from fedcore.losses import DrawnConvolution, Loss
from fedcore.models import Objective, OwnLoss
from fedcore.plan import Plan
from fedcore.privacy.events import GaussianRelease
from fedcore.privacy.filters import Cap, Charge
from fedcore.privacy.ledger import Ledger, MemoryLedger
from fedcore.privacy.release import Query, Release
from fedcore.privacy.silo import PrivateSilo
from fedcore.privacy.site import Agreement, Site
from fedcore.randomness import generator
from fedcore.rounds import InProcess

Opener = Callable[[str, Records, bytes, Ledger], PrivateSilo]


@dataclass(frozen=True)
class Subject:
    """What is audited: one silo of a plan. `key`: the synthetic silo's; `open` makes the silo under test."""

    plan: Plan
    method: Algorithm
    loss: Loss
    silo: str
    key: bytes
    open: Opener = PrivateSilo

    @property
    def n(self) -> int:
        """Records of the silo. Raises InputError if the plan has no silo of this name."""
        n = next((facts.n for facts in self.plan.problem.silos if facts.name == self.silo), None)
        if n is None:
            names = ", ".join(facts.name for facts in self.plan.problem.silos[:10])
            raise InputError(f"there is no silo {self.silo!r} in this experiment; its first silos are {names}")
        return n

    @property
    def delta(self) -> float:
        return self.plan.problem.budget.delta(self.n)

    @property
    def events(self) -> list[GaussianRelease]:
        """The planned event of every answer, in order of rounds."""
        return [phase.event(self.silo, r + 1) for phase in self.plan.phases for r in range(phase.rounds)]


@dataclass(frozen=True, eq=False)
class Transcript:
    """A answers of one silo in one run: where gradients were asked and what was sent, `w` and `payload` (A, d)."""

    run: str
    events: tuple[GaussianRelease, ...]
    w: np.ndarray
    payload: np.ndarray

    @property
    def counts(self) -> np.ndarray:
        """Public count K of each answer (A,)."""
        return np.array([event.stop - event.start for event in self.events], dtype=np.float64)

    @property
    def sigma(self) -> np.ndarray:
        """Planned standard deviation of each answer per coordinate (A,)."""
        return np.array([event.sigma for event in self.events])

    @property
    def sums(self) -> np.ndarray:
        """Released sums before the division by the public count (A, d)."""
        return self.payload * self.counts[:, None]

    def residuals(self, exact: np.ndarray) -> np.ndarray:
        """Release minus exact mean over planned sigma (A, d)."""
        return np.asarray((self.payload - exact) / self.sigma[:, None])


class Sitting:
    """A run of the subject's plan on `records`, with the auditor as the server. Raises SiloError as a site does."""

    def __init__(self, subject: Subject, records: Records, run: str, ledger: Ledger | None = None) -> None:
        self.subject, self.run = subject, run
        self.ledger = ledger if ledger is not None else MemoryLedger(subject.silo)
        silo = subject.open(subject.silo, records, subject.key, self.ledger)
        plan = subject.plan
        agreement = Agreement(run, plan.problem, subject.method, subject.loss, plan.digest)
        self._backend = InProcess(Site([silo]), agreement)
        self._backend.open()

    def train(self, limit: int | None = None) -> Transcript:
        """The whole training, or its first `limit` rounds, with this silo alone: its answer is the mean of all."""
        method, state = self._method, self._start()
        asked: list[Vector] = []
        sent: list[Vector] = []
        for _ in islice(self._plan(), limit):
            phase = self.subject.plan.phases[state.phase - 1]
            arrays = dict(method.broadcast(state, phase))
            asked.append(asked_point(method, arrays))
            sent.append(self._ask(state.phase, state.round, arrays).payload)
            state = method.server_update(state, {0: sent[-1]}, phase)
        return self._transcript(asked, sent)

    def repeat(self, limit: int | None = None) -> Transcript:
        """The plan's rounds, or the first `limit`, of a server that sends zeros every time: equal sums, new addresses.

        Any server is within the guarantee, and this one makes the exact sum of every round about a piece the same.
        """
        arrays = self._zeros()
        point = asked_point(self.subject.method, arrays)
        sent = [self._ask(*address, arrays).payload for address in islice(self._plan(), limit)]
        return self._transcript([point] * len(sent), sent)

    def probe(self, limit: int) -> list[Sent]:
        """Asks the first `limit` addresses, then each again with the same query and with another; all that was seen.

        What the ledger holds afterwards is part of it. A refusal is no payload.
        """
        plain = self._zeros()
        other = {name: array + 1.0 for name, array in plain.items()}
        addresses = list(islice(self._plan(), limit))
        seen = [self._sent(*address, plain) for address in addresses]
        for address in addresses:
            for arrays in (plain, other):
                try:
                    seen.append(self._sent(*address, arrays))
                except SiloError:
                    continue
        rows = self.ledger.rows(self.run)
        return seen + [Sent(self.subject.silo, self.run, row.phase, row.round, row.payload_digest) for row in rows]

    @property
    def _method(self) -> Method[Any]:
        return self.subject.method

    def _plan(self) -> Iterable[tuple[int, int]]:
        return ((phase.index, r + 1) for phase in self.subject.plan.phases for r in range(phase.rounds))

    def _start(self) -> Any:
        return self._method.init(np.zeros(self.subject.plan.problem.dim))

    def _zeros(self) -> dict[str, np.ndarray]:
        sent = self._method.broadcast(self._start(), self.subject.plan.phases[0])
        return {name: np.zeros_like(array) for name, array in sent.items()}

    def _ask(self, phase: int, round: int, arrays: Arrays) -> Release:
        query = Query(self.run, self.subject.plan.digest, phase, round, (self.subject.silo,), dict(arrays))
        (release,) = self._backend.ask(query)
        return release

    def _sent(self, phase: int, round: int, arrays: Arrays) -> Sent:
        release = self._ask(phase, round, arrays)
        return Sent(self.subject.silo, self.run, phase, round, release.payload_digest)

    def _transcript(self, asked: list[Vector], sent: list[Vector]) -> Transcript:
        events = tuple(self.subject.events[: len(sent)])
        return Transcript(self.run, events, np.array(asked), np.array(sent))


class _Recorder:
    """A silo that answers nothing: notes where a gradient is asked."""

    ridge = 0.0

    def __init__(self, dim: int) -> None:
        self.points: list[Vector] = []
        self.answer = np.arange(1.0, dim + 1.0)

    def gradient(self, w: Vector) -> Vector:
        self.points.append(np.array(w, dtype=np.float64))
        return self.answer.copy()

    def moments(self, bound: float) -> Vector:
        raise InputError("the audit reads gradients only, not released moments (not built yet)")


def asked_point(method: Method[Any], arrays: Arrays) -> Vector:
    """The weights (d,) at which the method's silo step asks for its one gradient.

    Raises InputError for a method that sends anything else than that answer: then nothing here knows the exact mean.
    """
    recorder = _Recorder(len(next(iter(arrays.values()))))
    message = method.silo_step(arrays, recorder)
    if len(recorder.points) != 1 or not np.array_equal(message, recorder.answer):
        raise InputError(f"method {method.name} sends something else than one gradient: the audit cannot read it")
    return recorder.points[0]


def record_gradient(loss: Loss, w: Vector, x: Vector, y: float, clip: float) -> Vector:
    """Gradient (d,) of one record, clipped: worked out apart from the code under test."""
    residual = loss.residual(np.array([float(w @ x)]), np.array([y]))[0]
    gradient = residual * x
    return gradient * min(1.0, clip / max(float(np.linalg.norm(gradient)), np.finfo(np.float64).tiny))


class _Note(MemoryLedger):
    """Keeps the key of the run that is opened."""

    run_key = b""

    def open_run(self, run: str, plan: str, key: bytes, charge: Charge, cap: Cap | None) -> bytes:
        self.run_key = super().open_run(run, plan, key, charge, cap)
        return self.run_key


def row_order(subject: Subject, run: str) -> np.ndarray:
    """Which row of the silo's records sits at each position of its split for this run (n,).

    The split depends on the run's key and on row indices only, so a silo of zeros tells it. The rule is written a
    second time here: a change of it at the silo spoils the audit's canaries, and a test compares the two.
    """
    note = _Note(subject.silo)
    Sitting(subject, Records(np.zeros((subject.n, subject.plan.problem.dim)), np.ones(subject.n)), run, note)
    return generator(note.run_key, "split").permutation(subject.n)


def linear_loss(objective: Objective) -> Loss:
    """The loss of a linear model. Raises InputError for another: a canary has one axis of one predictor."""
    if isinstance(objective, OwnLoss):
        raise InputError(
            "model.loss.name = softmax: the audit's canaries are written for a predictor of one value (not built yet)"
        )
    return objective


def auditable(subject: Subject) -> Subject:
    """The subject itself. Raises InputError for an unknown silo, a plan without noise, local steps or drawn points."""
    if subject.n and not subject.plan.problem.budget.private:
        raise InputError("privacy.trust = none adds no noise: there is nothing to audit")
    if subject.method.name in LOCAL_STEPS:
        raise InputError(
            f"algorithm.name = {subject.method.name} answers from local steps: the audit reads one gradient at the "
            "weights it sent (not built yet)"
        )
    if isinstance(subject.loss, DrawnConvolution):
        raise InputError(
            "model.smoothing.estimate = sampled takes gradients at points that the audit does not know: audit the same "
            "plan with estimate = exact"
        )
    return subject


def sampled(subject: Subject) -> bool:
    """Whether some answers of the plan are about secret samples: then nobody outside knows their exact means."""
    return any(event.sampling != "full" for event in subject.events)
