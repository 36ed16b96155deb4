"""Four silo services, a relay in this process, and the driver's backend: a federation without HTTP."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from fedcore.accounting.calibration import Budget
from fedcore.accounting.filters import Cap
from fedcore.algorithms.mbsgd import Mbsgd
from fedcore.data.records import Records
from fedcore.errors import Refused, RelayError
from fedcore.federation.in_process import InProcess
from fedcore.federation.rounds import RunContext, rounds
from fedcore.identity.envelope import Envelope
from fedcore.identity.inbox import Inbox, Questions
from fedcore.identity.keys import Identity
from fedcore.identity.sequences import Sequences
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.losses import Squared
from fedcore.planning.problem import SiloFacts
from fedcore.randomness import driver_key
from fedcore.relay.acknowledgements import acknowledgement
from fedcore.relay.mailboxes import Mailboxes
from fedcore.relay.members import COORDINATOR, Members
from fedcore.relay.relay import Relay
from fedcore.relay.sessions import claim
from fedcore.remote.service import SiloService
from fedcore.silo.agreement import Agreement
from fedcore.silo.keys import SecretKeys
from fedcore.silo.private_silo import PrivateSilo
from fedcore.silo.site import Site
from tasks.relay.serving import serve
from tasks.relay.sites import RemoteSites
from tests.problems import problem_of

HEART = "ab" * 32
NAMES = ("cleveland", "hungary", "switzerland", "virginia")
IDENTITIES = {name: Identity.new() for name in (COORDINATOR, *NAMES)}
MEMBERS = Members(HEART, 1, {name: each.public for name, each in IDENTITIES.items()})
ROUNDS = 5
LONG_POLL = 1.05
"""Seconds that a call waits for an envelope: longer than the calls after which its caller pauses."""


@dataclass
class Direct:
    """A party's calls of a relay in this process: `RelayClient` without HTTP."""

    relay: Relay
    name: str
    token: str = ""
    identity: Identity | None = None

    def deposit(self, envelope: bytes) -> None:
        self._said(lambda token: self.relay.deposit(token, envelope))

    def deposit_all(self, envelopes: list[bytes]) -> None:
        for each in envelopes:
            self.deposit(each)

    def flush(self) -> None:
        """Nothing: `taken` has acknowledged at once."""

    def collect(self, run: str = "") -> list[bytes]:
        until = time.monotonic() + LONG_POLL
        while not (found := self._said(lambda token: self.relay.collect(token, 2**20, run or None))):
            if time.monotonic() >= until:
                break
            time.sleep(0.005)
        return found

    def exchange(self, envelopes, taken=(), run: str = "", expected: int = 1) -> list[bytes]:
        if envelopes:
            self.deposit_all(envelopes)
        if taken:
            self.taken(list(taken))
        return self.collect(run)

    def taken(self, envelopes: list[bytes]) -> None:
        digests = []
        for each in envelopes:
            with contextlib.suppress(ValueError):  # made up by a relay of the tests
                digests.append(Envelope.from_bytes(each).digest)
        data = acknowledgement(self.identity or IDENTITIES[self.name], HEART, self.name, digests)
        self._said(lambda token: self.relay.acknowledge(token, data))

    def _said(self, act):
        identity = self.identity or IDENTITIES[self.name]
        for attempt in range(2):
            try:
                if not self.token:
                    self.token = self.relay.session(claim(identity, HEART, self.name, self.relay.challenge()))
                return act(self.token)
            except Refused as refused:
                if refused.code != "unknown" or attempt:
                    raise RelayError(refused.code, refused.sentence) from None
                self.token = ""


class Silo:
    """A silo's process: its ledger, its numbers and its service, all on disk below `folder`."""

    def __init__(self, name: str, folder: Path, cap: Cap | None = None, clock=lambda: datetime.now(UTC)) -> None:
        self.name, self.folder, self.cap, self.clock = name, folder, cap, clock
        self.start()

    def start(self) -> None:
        rng = np.random.default_rng(sum(self.name.encode()))
        X = rng.standard_normal((12, 4))
        self.records = records = Records(X, X @ np.array([1.0, -2.0, 0.5, 3.0]) + 0.3 * rng.standard_normal(12))
        self.ledger = SqliteLedger(self.name, self.folder / f"{self.name}.sqlite", self.folder / f"{self.name}.anchor")
        keys = SecretKeys(self.name.encode().ljust(32, b"."))
        self.site = Site([PrivateSilo(self.name, records, keys, self.ledger, self.cap, True, clock=self.clock)])
        self.sequences = Sequences(self.folder / f"{self.name}.numbers.sqlite")
        identity = IDENTITIES[self.name]
        questions = Questions(Inbox(self.name, HEART, identity), self.sequences, lambda: self.clock())
        self.service = SiloService(self.site, self.name, questions, identity, IDENTITIES[COORDINATOR].public)

    def kill(self) -> None:
        """Its process ends, and another one opens the same files."""
        self.site.close()
        self.sequences.close()
        self.start()

    def close(self) -> None:
        self.site.close()
        self.sequences.close()


@dataclass
class Federation:
    """A relay, its silos as threads, and a driver's backend. `posts`: by silo, its access to the relay."""

    folder: Path
    posts: dict[str, object] = field(default_factory=dict)
    wrapped: type | None = None

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.boxes = Mailboxes(self.folder / "relay" / "envelopes.sqlite")
        self.relay = Relay(self.boxes, MEMBERS)
        self.silos = {name: Silo(name, self.folder / "silos") for name in NAMES}
        self.ends = threading.Event()
        self.threads: list[threading.Thread] = []
        problem = problem_of(
            tuple(SiloFacts(name, 12) for name in NAMES),
            4,
            1.0,
            1.0,
            1e6,
            4,
            Budget(3.0, 1e-6, mechanism="discrete-gaussian"),
        )
        self.method = Mbsgd(rounds=ROUNDS, step=0.1)
        self.plan = self.method.plan(problem)
        self.agreement = Agreement("run", problem, self.method, Squared(), self.plan.digest)
        self.context = RunContext("run", self.plan, self.method, driver_key(0, 0, self.method.name))

    def backend(self, lease: int = 1, deadline: float | None = 60.0, post=None, **options) -> RemoteSites:
        inbox = Inbox(COORDINATOR, HEART, IDENTITIES[COORDINATOR])
        silos = {name: IDENTITIES[name].public for name in NAMES}
        post = post or Direct(self.relay, COORDINATOR)
        return RemoteSites(
            post, inbox, IDENTITIES[COORDINATOR], HEART, silos, self.agreement, self.plan, lease, deadline, **options
        )

    def serve(self, *names: str) -> None:
        for name in names or NAMES:
            post = self.posts.get(name) or Direct(self.relay, name)
            thread = threading.Thread(target=serve, args=(self.silos[name].service, post, self.ends))
            thread.start()
            self.threads.append(thread)

    def train(self, backend) -> np.ndarray:
        backend.open()
        state = self.method.init(np.zeros(4))
        for _, _, after in rounds(self.context, state, backend.ask):
            state = after
        return self.method.output(state)

    def local(self, folder: Path) -> np.ndarray:
        """The model of the same silos, with copies of the same secrets, in the driver's process."""
        silos = [Silo(name, folder) for name in NAMES]
        site = Site([silo.site._silos[silo.name] for silo in silos])
        try:
            return self.train(InProcess(site, self.agreement, done=lambda site: None, lease=1))
        finally:
            for silo in silos:
                silo.close()

    def stop(self) -> None:
        self.ends.set()
        for thread in self.threads:
            thread.join()
        self.threads, self.ends = [], threading.Event()

    def close(self) -> None:
        self.stop()
        for silo in self.silos.values():
            silo.close()
        self.boxes.close()
