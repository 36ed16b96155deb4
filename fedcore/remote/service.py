"""A silo's service: answers the coordinator's envelopes by its site. It has no network: its caller carries the bytes.

Only the coordinator whose keys the silo pinned is answered. A call is one of `fedcore.remote.forms`. The site checks
every byte of it, as it checks those of a driver in its own process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from fedcore.errors import SiloError
from fedcore.identity.envelope import Envelope, Heading
from fedcore.identity.inbox import Questions, Received
from fedcore.identity.keys import Identity, PublicIdentity
from fedcore.relay.members import COORDINATOR
from fedcore.remote.forms import UNOPENED, Answer, Call, packed_accounts
from fedcore.silo.refusal import rebuilt, with_public_errors
from fedcore.silo.site import Site


class Answered(NamedTuple):
    """The call in words, the sentence of a refusal, the answer's envelope, and the received one."""

    call: str
    refused: str | None
    envelope: bytes
    received: Received


class SiloService:
    """Answers for the silo `name` of a federation, one envelope at a time."""

    def __init__(
        self, site: Site, name: str, questions: Questions, identity: Identity, coordinator: PublicIdentity
    ) -> None:
        self._site, self._name, self._questions = site, name, questions
        self._identity, self._coordinator = identity, coordinator
        self._senders: Mapping[str, PublicIdentity] = {COORDINATOR: coordinator}

    def answer(self, data: bytes) -> Answered:
        """The answer to an envelope. Raises ValueError for one that is not the coordinator's, or came before.

        The caller sends the answer, then calls `sent`. If it dies before, the same envelope is answered again, with the
        same bytes of the silo's ledger.
        """
        received = self._questions.take(data, self._senders)
        heading = received.heading
        called: list[str] = []

        def act() -> bytes:
            call = rebuilt(self._name, "call", Call.from_bytes, received.body)
            if call.run != heading.run:
                raise SiloError(self._name, "call", "the call is about another run than its envelope")
            called.append(f"{call.operation} of run {call.run}")
            return with_public_errors(self._name, self._called, call)

        found = Answer.of(received.digest, act)
        refused = None if found.refusal is None else found.refusal[2]
        return Answered(called[0] if called else "no call", refused, self._sealed(received, found), received)

    def refusal(self, answered: Answered, sentence: str) -> Answered:
        """A refusal in place of an answer that cannot be delivered. The silo's ledger has its bytes."""
        found = Answer(answered.received.digest, refusal=(self._name, "size", sentence))
        return answered._replace(refused=sentence, envelope=self._sealed(answered.received, found))

    def _sealed(self, received: Received, answer: Answer) -> bytes:
        heading = received.heading
        back = Heading(heading.federation, self._name, COORDINATOR, heading.run, heading.sequence)
        return Envelope.made(back, self._identity, self._coordinator, answer.to_bytes()).to_bytes()

    def sent(self, answered: Answered) -> None:
        """Notes that an answer is on its way: its question is refused from now on. Raises InputError."""
        self._questions.answered(answered.received)

    def _called(self, call: Call) -> bytes:
        """The site's answer to a call, as bytes."""
        site, run, lease = self._site, call.run, call.lease
        if call.operation == "approve":
            agreement, *route = call.parts
            return json.dumps(site.approve(agreement, route[0] if route else None, lease)).encode()
        if not site.has(run):
            raise SiloError(self._name, UNOPENED, "its service holds no approved run of this id")
        if call.operation == "answer":
            return site.answer(call.parts[0], lease)
        if call.operation == "accounts":
            return packed_accounts(site.accounts(run, lease))
        if call.operation == "send":
            site.send(call.parts[0], lease)
        elif call.operation == "close_run":
            site.close_run(run, lease)
            site.forget_run(run)  # a site holds a bounded number of runs open
        else:
            site.leases.check(run, lease)  # a driver that returns from a pause must not end a newer one's run
            site.forget_run(run)
        return b""
