"""Calls of a driver to silos by way of a relay, and their answers, which may be late or never come.

The relay is not trusted. An answer counts if its silo signed it, sealed it to the coordinator, and named the question.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from fedcore.errors import RelayError, SiloError
from fedcore.identity.envelope import Envelope, Heading
from fedcore.identity.inbox import Inbox
from fedcore.identity.keys import Identity, PublicIdentity
from fedcore.identity.sequences import Numbers
from fedcore.relay.members import COORDINATOR
from fedcore.relay.relay import LONG, OTHER
from fedcore.relay.sessions import FORM, UNKNOWN
from fedcore.remote.forms import UNOPENED, Answer, Call
from fedcore.silo.policies.decisions import PAUSED, UNDECIDED
from tasks.relay.client import Backoff

AGAIN = 60.0
"""Seconds after which an unanswered call is sent again, since the relay may have lost it; then twice as many."""
MOST_OPENED = 3
"""Times that a silo's service may start anew while it is asked once."""
LASTING = (UNKNOWN, LONG, FORM, OTHER)
"""Refusals of a relay that another attempt does not change."""
LATER = (UNDECIDED, PAUSED)
"""Refusals of a silo that end by themselves, when its operator decides."""
ASKED = 10.0
"""Seconds after which a silo that refused for now is asked again."""
SHORT = 1.0
"""Seconds below which a call without an answer is followed by a pause: a relay lets it wait for longer."""


class Post(Protocol):
    """A party's access to a relay (`tasks.relay.client.RelayClient`)."""

    def deposit(self, envelope: bytes) -> None: ...

    def deposit_all(self, envelopes: list[bytes]) -> None: ...

    def exchange(
        self, envelopes: list[bytes], taken: Sequence[bytes] = (), run: str = "", expected: int = 1
    ) -> list[bytes]: ...

    def taken(self, envelopes: list[bytes]) -> None: ...

    def flush(self) -> None: ...


@dataclass
class _Waiting:
    """Calls to a silo that has not answered: the last one in the list, then the one before it.

    `numbers`: of the last call's envelopes, with their digests. `again`: when another one is sent. `why`: the silo's
    own reason to wait.
    """

    calls: list[Call]
    numbers: dict[int, bytes] = field(default_factory=dict)
    again: float = 0.0
    patience: float = 0.0
    opened: int = 0
    why: str = ""

    def renew(self, seconds: float = 0.0) -> None:
        """Begins to ask the last call in some seconds; answers to what was asked before count no more."""
        self.numbers, self.again, self.patience = {}, time.monotonic() + seconds, 0.0


@dataclass(frozen=True)
class _Away:
    """A silo that was skipped: `numbers` of the envelopes that it has not answered, and when it is asked again."""

    numbers: dict[int, bytes] = field(default_factory=dict)
    again: float = 0.0
    patience: float = 0.0

    def is_due(self) -> bool:
        return time.monotonic() >= self.again

    def later(self, skipped: _Waiting) -> _Away:
        """As it is after another call was not answered either."""
        patience = max(AGAIN, 2 * self.patience)
        return _Away(self.numbers | skipped.numbers, time.monotonic() + patience, patience)


class RemoteCalls:
    """The calls about a run to the silos of `silos` (public keys by name). `lease`: the driver's.

    `approval`: the call that a service gets which has started since it approved the run. `waits`: called again and
    again with the names that are waited for, each with what it waits for itself, or nothing. `keys`: the silos' keys
    as they are now; called before a call is repeated, since a silo may have rotated its own.
    """

    def __init__(
        self,
        post: Post,
        inbox: Inbox,
        identity: Identity,
        federation: str,
        silos: Mapping[str, PublicIdentity],
        approval: Call,
        waits: Callable[[Mapping[str, str]], None],
        keys: Callable[[], Mapping[str, PublicIdentity]] = dict,
    ) -> None:
        self._post, self._inbox, self._identity, self._federation = post, inbox, identity, federation
        self._keys, self._approval, self._waits = dict(silos), approval, waits
        self._run, self._newer = approval.run, keys
        # A lease is milliseconds, and a number microseconds, of one clock: a later driver's numbers are larger.
        self._away: dict[str, _Away] = {}
        self._numbers = {name: Numbers(time.time, least=max(1, approval.lease * 1000)) for name in silos}

    def answers(
        self, calls: Mapping[str, Call], deadline: float | None = None, enough: int | None = None
    ) -> dict[str, bytes]:
        """The answer of each silo to its call. Raises SiloError of the first that refuses.

        `deadline`: seconds; None: silos are waited for. `enough`: number of answers with which the call may end, after
        the deadline or as soon as only absent silos are missing; the others are then absent. None: SiloError after the
        deadline. An absent silo is asked after a pause that doubles: a call that waits for it may cost it a charge.
        With `enough` = 0 every silo gets the call.
        """
        began = time.monotonic()
        waiting = {name: _Waiting([call]) for name, call in calls.items()}
        if enough and len(present := calls.keys() - self._away.keys()) >= enough:
            waiting = {name: each for name, each in waiting.items() if name in present or self._away[name].is_due()}
        answers: dict[str, bytes] = {}
        until = math.inf if deadline is None else began + deadline
        backoff = Backoff()
        while waiting:
            now = time.monotonic()
            if now >= until and enough is None:
                late, why = ", ".join(waiting), next((f": {each.why}" for each in waiting.values() if each.why), "")
                raise SiloError(late, "deadline", f"no answer within {deadline:g} s{why}")
            if enough is not None and len(answers) >= enough and (now >= until or waiting.keys() <= self._away.keys()):
                break
            name = next(iter(waiting))
            try:
                self._waits({name: each.why for name, each in waiting.items()})
                came = self._exchanged(waiting, now)
            except RelayError as error:
                if error.code in LASTING:
                    raise SiloError(name, "relay", str(error)) from None
                self._pause(backoff, until)
                continue
            before = len(answers)
            self._take(came, waiting, answers)
            if len(answers) > before:
                backoff.reset()
            elif time.monotonic() - now < SHORT:
                self._pause(backoff, until)
        for name, each in waiting.items():
            self._away[name] = self._away.get(name, _Away()).later(each)
        self._waits({})
        return {name: answers[name] for name in calls if name in answers}

    def _take(self, came: list[bytes], waiting: dict[str, _Waiting], answers: dict[str, bytes]) -> None:
        """Moves silos that have answered from `waiting` to `answers`. Raises the SiloError of a refusal."""
        for data in came:
            if (found := self._answer(data, waiting)) is not None:
                name, answer, late = found
                self._away.pop(name, None)
                if not late and not self._goes_on(waiting[name], answer):
                    del waiting[name]
                    answers[name] = answer.value
        with contextlib.suppress(RelayError):  # it hands them out again, and they answer nothing then
            self._post.taken(came)

    @staticmethod
    def _pause(backoff: Backoff, until: float) -> None:
        left = until - time.monotonic()
        time.sleep(min(backoff.next(), left if left > 0.0 else math.inf))

    def leave(self, calls: Mapping[str, Call]) -> None:
        """Leaves calls, and waits for no answer. Raises RelayError."""
        self._send({name: _Waiting([call]) for name, call in calls.items()})

    def _send(self, waiting: Mapping[str, _Waiting]) -> None:
        """Leaves the last call to each of these silos. Raises RelayError."""
        if waiting:
            self._post.deposit_all([self._envelope(name, each) for name, each in waiting.items()])

    def _exchanged(self, waiting: Mapping[str, _Waiting], now: float) -> list[bytes]:
        """Leaves the calls that are due, and takes envelopes. Raises RelayError: then they are left again."""
        due = {name: each for name, each in waiting.items() if now >= each.again}
        if any(each.numbers for each in due.values()):  # repeated: what went before may be sealed to older keys
            self._keys |= {name: keys for name, keys in self._newer().items() if name in self._keys}
        envelopes = [self._envelope(name, each) for name, each in due.items()]
        expected = len(waiting.keys() - self._away.keys())
        came = self._post.exchange(envelopes, run=self._run, expected=max(1, expected))
        for each in due.values():
            each.patience = max(AGAIN, 2 * each.patience)
            each.again = now + each.patience
        return came

    def _envelope(self, name: str, waiting: _Waiting) -> bytes:
        sequence = self._numbers[name].next()
        heading = Heading(self._federation, COORDINATOR, name, self._run, sequence)
        envelope = Envelope.made(heading, self._identity, self._keys[name], waiting.calls[-1].to_bytes())
        waiting.numbers[sequence] = envelope.digest
        return envelope.to_bytes()

    def _goes_on(self, waiting: _Waiting, answer: Answer) -> bool:
        """True if this answer is not yet that to the first call.

        A service that has started anew has the run approved again, and is then asked once more.
        """
        if answer.refusal is not None and answer.refusal[1] == UNOPENED and waiting.opened < MOST_OPENED:
            waiting.opened += 1
            waiting.calls.append(self._approval)
        elif answer.refusal is not None and answer.refusal[1] in LATER:
            waiting.why = answer.refusal[2]
            waiting.renew(ASKED)
            return True
        elif answer.refusal is None and len(waiting.calls) > 1:
            waiting.calls.pop()
        else:
            return False
        waiting.renew()
        return True

    def _answer(self, data: bytes, waiting: Mapping[str, _Waiting]) -> tuple[str, Answer, bool] | None:
        """Name and answer of a silo, and True if it is late; None for any other envelope, which answers nothing.

        A late answer shows that its silo is there. Its content counts no more.
        """
        with contextlib.suppress(ValueError):
            heading = Envelope.from_bytes(data).heading
            name, sequence = heading.sender, heading.sequence
            asked = waiting[name].numbers if name in waiting else {}
            late = {} if sequence in asked or name not in self._away else self._away[name].numbers
            if (digest := (late or asked).get(sequence)) is not None:
                found = Answer.from_bytes(self._inbox.answer(data, name, self._keys[name], self._run, sequence))
                if found.question == digest:
                    return name, _of(name, found), bool(late)
        return None


def _of(name: str, answer: Answer) -> Answer:
    """The answer as `name`'s own: a silo can refuse in no other's name, and its sentence is one printable line."""
    if answer.refusal is None:
        return answer
    _, code, sentence = answer.refusal
    return replace(answer, refusal=(name, code, SiloError(name, code, sentence).sentence))
