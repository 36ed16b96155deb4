"""Silos made from arrays, their site, a shuffler in this process and the backend between: a run without HTTP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedcore.accounting.calibration import Budget
from fedcore.algorithms.mbsgd import Mbsgd
from fedcore.data.records import Records
from fedcore.errors import Refused, ShufflerError
from fedcore.federation.in_process import InProcess
from fedcore.federation.rounds import RunContext
from fedcore.ledger.memory import MemoryLedger
from fedcore.losses import Squared
from fedcore.messages import Batch
from fedcore.planning.plan import Plan
from fedcore.planning.problem import SiloFacts
from fedcore.planning.shuffle import Shuffle
from fedcore.randomness import driver_key
from fedcore.shuffling.batches import Batches
from fedcore.shuffling.forms import Opening, Request, Route, SealedBatch
from fedcore.shuffling.sealing import ServerKey
from fedcore.shuffling.shuffler import LATE, Shuffler
from fedcore.silo.agreement import Agreement
from fedcore.silo.keys import SeededKeys
from fedcore.silo.private_silo import PrivateSilo
from fedcore.silo.site import Site
from tasks.shuffling.backend import Shuffled
from tests.problems import problem_of

CLIP = 1.0


@dataclass
class Counter:
    """A shuffler that is called directly, with the interfaces of `carry` and `Mailbox`, without HTTP.

    `lost`: returns the ShufflerError to raise for an envelope, or None. `seen`: all envelopes that were taken.
    """

    path: Path
    lost: Callable[[bytes], ShufflerError | None] = lambda envelope: None
    seen: list[bytes] = field(default_factory=list)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        batches = Batches(self.path)
        batches._db.execute("PRAGMA synchronous = OFF")  # no power is cut here
        self.shuffler = Shuffler(batches, 2, clock=lambda: self.now)

    def carry(self, address: str, envelope: bytes, patience: float, secret: str = "") -> None:
        error = self.lost(envelope)
        if error is not None:
            raise error
        try:
            self.shuffler.take(envelope)
            self.seen.append(envelope)
        except Refused as refused:
            if refused.code != LATE:
                raise ShufflerError(refused.code, refused.sentence) from None

    def open(self, opening: Opening) -> bool:
        return self._said(lambda: self.shuffler.open(opening.to_bytes()))

    def batch(self, request: Request) -> SealedBatch | None:
        self.now += 1.0  # what one call waits
        data = self._said(lambda: self.shuffler.batch(request.to_bytes()))
        return None if data is None else SealedBatch.from_bytes(data)

    def end(self, request: Request) -> None:
        self._said(lambda: self.shuffler.batch(request.to_bytes()))

    @staticmethod
    def _said(act):
        try:
            return act()
        except Refused as refused:
            raise ShufflerError(refused.code, refused.sentence) from None


@dataclass
class Federation:
    """All parts of a run; `play` yields (state before, query, batch) of each of its rounds."""

    context: RunContext
    agreement: Agreement
    silos: dict[str, PrivateSilo]
    data: dict[str, tuple[np.ndarray, np.ndarray]]
    counter: Counter
    key: ServerKey
    site: Site
    route: bytes
    sites: InProcess
    backend: Shuffled

    @property
    def plan(self) -> Plan:
        return self.context.plan

    @property
    def start(self):
        return self.context.method.init(np.zeros(self.plan.problem.objective.dim))

    def play(self):
        state = self.start
        while (query := self.context.query(state)) is not None:
            batch = self.backend.batch(query)
            assert type(batch) is Batch
            yield state, query, batch
            state = self.context.fold_batch(state, query, batch)

    def final(self) -> np.ndarray:
        last = self.start
        for state, query, batch in self.play():
            last = self.context.fold_batch(state, query, batch)
        return self.context.method.output(last)

    def payload(self, silo: str, round: int) -> np.ndarray:
        """The payload of this round in the silo's ledger."""
        row = self.silos[silo].ledger.find(self.context.run, 1, round)
        return np.frombuffer(row.payload, dtype=np.float64)

    def gradient(self, w: np.ndarray) -> np.ndarray:
        """The exact mean over silos of clipped mean gradients of (w.x - y)^2 / 2, record by record."""
        means = []
        for X, y in self.data.values():
            parts = [(float(w @ x) - t) * x for x, t in zip(X, y, strict=True)]
            means.append(sum(g * min(1.0, CLIP / np.linalg.norm(g)) for g in parts) / len(parts))
        return sum(means) / len(means)


def federation(folder: Path, rounds: int = 6, minimum: int = 2, silos: int = 5, epsilon: float = 3.0) -> Federation:
    rng = np.random.default_rng(7)
    data = {}
    for number in range(silos):
        X = rng.standard_normal((12, 4))
        data[f"silo-{number}"] = X, X @ np.array([1.0, -2.0, 0.5, number]) + 0.3 * rng.standard_normal(12)
    problem = problem_of(
        tuple(SiloFacts(name, 12) for name in data),
        4,
        CLIP,
        1.0,
        1e6,
        silos,
        Budget(epsilon, 1e-6),
        shuffle=Shuffle(minimum),
    )
    method = Mbsgd(rounds=rounds, step=0.1)
    plan = method.plan(problem)
    held = {name: PrivateSilo(name, Records(X, y), SeededKeys(0), MemoryLedger(name)) for name, (X, y) in data.items()}
    folder.mkdir(parents=True, exist_ok=True)
    counter, key = Counter(folder / "batches.sqlite"), ServerKey.new()
    site = Site(held.values(), carrier=lambda *sent: counter.carry(*sent))
    agreement = Agreement("run", problem, method, Squared(), plan.digest)
    route = Route("http://127.0.0.1:1", key.public.hex(), 5.0).to_bytes()
    sites = InProcess(site, agreement, route=route)
    sites.open()
    backend = Shuffled(sites, counter, key, plan, "run", 5.0)  # type: ignore[arg-type]
    return Federation(
        RunContext("run", plan, method, driver_key(0, 0, method.name)),
        agreement,
        held,
        data,
        counter,
        key,
        site,
        route,
        sites,
        backend,
    )
