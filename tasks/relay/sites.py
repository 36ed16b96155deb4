"""A backend whose silos are services elsewhere: calls go to a relay in envelopes, and answers come back the same way.

The relay is not trusted. An answer counts if its silo signed it, sealed it to the coordinator, and named the question.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from fedcore.arrays import Vector
from fedcore.errors import RelayError, SiloError
from fedcore.identity.envelope import Envelope, Heading
from fedcore.identity.inbox import Inbox
from fedcore.identity.keys import Identity, PublicIdentity
from fedcore.identity.sequences import Numbers
from fedcore.messages import Query, Receipt, Releases
from fedcore.planning.plan import Plan
from fedcore.relay.members import COORDINATOR
from fedcore.relay.relay import LONG, OTHER
from fedcore.relay.sessions import FORM, UNKNOWN
from fedcore.remote.forms import UNOPENED, Answer, Call, Operation, accounts_of
from fedcore.silo.account import SiloAccount
from fedcore.silo.agreement import Agreement
from tasks.relay.client import Backoff

AGAIN = 60.0
"""Seconds after which an unanswered call is sent again, since the relay may have lost it; then twice as many."""
MOST_OPENED = 3
"""Times that a silo's service may start anew while it is asked once."""
LASTING = (UNKNOWN, LONG, FORM, OTHER)
"""Refusals of a relay that another attempt does not change."""
SHORT = 1.0
"""Seconds below which a call without an answer is followed by a pause: a relay lets it wait for longer."""


class Post(Protocol):
    """A party's access to a relay (`tasks.relay.client.RelayClient`)."""

    def deposit(self, envelope: bytes) -> None: ...

    def deposit_all(self, envelopes: list[bytes]) -> None: ...

    def collect(self, run: str = "") -> list[bytes]: ...

    def taken(self, envelopes: list[bytes]) -> None: ...

    def flush(self) -> None: ...


@dataclass
class _Waiting:
    """Calls to a silo that has not answered: the last one in the list, then the one before it.

    `numbers`: of the last call's envelopes, with their digests. `again`: when another one is sent.
    """

    calls: list[Call]
    numbers: dict[int, bytes] = field(default_factory=dict)
    again: float = 0.0
    patience: float = 0.0
    opened: int = 0

    def renew(self) -> None:
        """Begins to ask the last call; answers to what was asked before count no more."""
        self.numbers, self.again, self.patience = {}, 0.0, 0.0


class RemoteSites:
    """The silos of a run in a federation. `silos`: their public keys by name. `lease`: the driver's.

    `deadline`: seconds within which each silo answers; None: it is waited for. `waits`: called with the names that are
    waited for, whenever these change.
    """

    def __init__(
        self,
        post: Post,
        inbox: Inbox,
        identity: Identity,
        federation: str,
        silos: Mapping[str, PublicIdentity],
        agreement: Agreement,
        plan: Plan,
        lease: int,
        deadline: float | None = None,
        waits: Callable[[tuple[str, ...]], None] = lambda names: None,
    ) -> None:
        self._post, self._inbox, self._identity, self._federation = post, inbox, identity, federation
        self._keys, self._agreement, self._plan = dict(silos), agreement, plan
        self._lease, self._deadline, self._waits = lease, deadline, waits
        self.silos = tuple(silos)
        # A lease is milliseconds, and a number microseconds, of one clock: a later driver's numbers are larger.
        self._numbers = {name: Numbers(time.time, least=max(1, lease * 1000)) for name in silos}
        self._ended = False

    def open(self) -> None:
        """Makes all silos approve the run. Raises SiloError."""
        self._of_all("approve", self._agreement.to_bytes())

    def restore(self, run: str, receipts: Iterable[Receipt]) -> None:
        """Nothing: a service's ledger is durable."""

    def ask(self, query: Query) -> Releases:
        """Returns one release per participant, in the query's order. Raises SiloError."""
        calls = {name: self._call("answer", query.at((name,)).to_bytes()) for name in query.participants}
        answers = self._answers(calls)
        parts = [self._releases(query, name, answers[name]) for name in query.participants]
        return Releases.joined(query, parts)

    def accounts(self, run: str) -> list[SiloAccount]:
        """Accounts of the run, silo by silo. Raises SiloError."""
        found = []
        for name, data in self._of_all("accounts").items():
            try:
                listed = accounts_of(data)
                if [account.silo for account in listed] != [name]:
                    raise ValueError
            except ValueError:
                raise SiloError(name, "answer", "it sent something else than its account") from None
            found += listed
        return found

    def simulated(self, run: str, w: Vector) -> list[tuple[int, float, float]]:
        """Raises SiloError: a silo of real records computes nothing without noise."""
        raise SiloError(self.silos[0], "simulation", "a silo service computes no metrics without noise")

    def close_run(self, run: str) -> None:
        self._of_all("close_run")
        self._ended = True

    def close(self) -> None:
        """Lets the silos forget a run that has not ended; waits for none of them."""
        with contextlib.suppress(RelayError):
            if not self._ended:
                self._send({name: _Waiting([self._call("forget_run")]) for name in self.silos})
            self._post.flush()

    def _call(self, operation: Operation, *parts: bytes) -> Call:
        return Call(operation, self._agreement.run, self._lease, parts)

    def _of_all(self, operation: Operation, *parts: bytes) -> dict[str, bytes]:
        return self._answers({name: self._call(operation, *parts) for name in self.silos})

    def _answers(self, calls: Mapping[str, Call]) -> dict[str, bytes]:
        """The answer of each silo to its call. Raises SiloError of the first that refuses, or is late."""
        waiting = {name: _Waiting([call]) for name, call in calls.items()}
        answers: dict[str, bytes] = {}
        until = None if self._deadline is None else time.monotonic() + self._deadline
        backoff = Backoff()
        while waiting:
            began = time.monotonic()
            if until is not None and began >= until:
                late = ", ".join(waiting)
                raise SiloError(late, "deadline", f"no answer within {self._deadline:g} s")
            name = next(iter(waiting))
            try:
                self._send({name: each for name, each in waiting.items() if time.monotonic() >= each.again})
                self._waits(tuple(waiting))
                came = self._post.collect(self._agreement.run)
            except RelayError as error:
                if error.code in LASTING:
                    raise SiloError(name, "relay", str(error)) from None
                self._pause(backoff, until)
                continue
            before = len(answers)
            self._take(came, waiting, answers)
            if len(answers) > before:
                backoff.reset()
            elif time.monotonic() - began < SHORT:
                self._pause(backoff, until)
        self._waits(())
        return {name: answers[name] for name in calls}

    def _take(self, came: list[bytes], waiting: dict[str, _Waiting], answers: dict[str, bytes]) -> None:
        """Moves silos that have answered from `waiting` to `answers`. Raises the SiloError of a refusal."""
        for data in came:
            if (found := self._answer(data, waiting)) is not None:
                name, answer = found
                if not self._goes_on(waiting[name], answer):
                    del waiting[name]
                    answers[name] = answer.value
        with contextlib.suppress(RelayError):  # it hands them out again, and they answer nothing then
            self._post.taken(came)

    @staticmethod
    def _pause(backoff: Backoff, until: float | None) -> None:
        left = math.inf if until is None else max(0.0, until - time.monotonic())
        time.sleep(min(backoff.next(), left))

    def _send(self, waiting: Mapping[str, _Waiting]) -> None:
        """Leaves the last call to each of these silos. Raises RelayError."""
        if not waiting:
            return
        self._post.deposit_all([self._envelope(name, each) for name, each in waiting.items()])
        for each in waiting.values():
            each.patience = max(AGAIN, 2 * each.patience)
            each.again = time.monotonic() + each.patience

    def _envelope(self, name: str, waiting: _Waiting) -> bytes:
        sequence = self._numbers[name].next()
        heading = Heading(self._federation, COORDINATOR, name, self._agreement.run, sequence)
        envelope = Envelope.made(heading, self._identity, self._keys[name], waiting.calls[-1].to_bytes())
        waiting.numbers[sequence] = envelope.digest
        return envelope.to_bytes()

    def _goes_on(self, waiting: _Waiting, answer: Answer) -> bool:
        """True if this answer is not yet that to the first call.

        A service that has started anew has the run approved again, and is then asked once more.
        """
        if answer.refusal is not None and answer.refusal[1] == UNOPENED and waiting.opened < MOST_OPENED:
            waiting.opened += 1
            waiting.calls.append(self._call("approve", self._agreement.to_bytes()))
        elif answer.refusal is None and len(waiting.calls) > 1:
            waiting.calls.pop()
        else:
            return False
        waiting.renew()
        return True

    def _answer(self, data: bytes, waiting: Mapping[str, _Waiting]) -> tuple[str, Answer] | None:
        """Name and answer of a silo that is waited for; None for any other envelope, which answers nothing."""
        with contextlib.suppress(ValueError):
            heading = Envelope.from_bytes(data).heading
            each = waiting.get(heading.sender)
            if each is not None and (digest := each.numbers.get(heading.sequence)) is not None:
                body = self._inbox.answer(
                    data, heading.sender, self._keys[heading.sender], self._agreement.run, heading.sequence
                )
                found = Answer.from_bytes(body)
                if found.question == digest:
                    return heading.sender, found
        return None

    def _releases(self, query: Query, name: str, data: bytes) -> Releases:
        """The silo's one release. Raises SiloError unless it is well-formed, and its own."""
        try:
            found = Releases.from_bytes(data, self._plan.message_length(query.phase, query.round))
        except ValueError:
            found = None
        if found is None or found.silos != (name,) or (found.phase, found.round) != (query.phase, query.round):
            raise SiloError(name, "answer", f"it sent something else than its release of {query.phase}.{query.round}")
        return found
