"""A coordinator whose keys are right, and the silo service that it writes to; every answer is checked by an oracle."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from fedcore.data.records import Records
from fedcore.identity.envelope import Envelope, Heading
from fedcore.identity.inbox import Inbox, Questions
from fedcore.identity.keys import Identity
from fedcore.identity.sequences import Sequences
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.relay.members import COORDINATOR
from fedcore.remote.forms import Answer, Call
from fedcore.remote.service import SiloService
from fedcore.silo.agreement import Agreement
from fedcore.silo.keys import SecretKeys
from fedcore.silo.private_silo import PrivateSilo
from fedcore.silo.site import Site
from tests.faults.arrival_site import FEATURES, SIZES
from tests.faults.release_oracle import Oracle

HEART, NAME = "ab" * 32, "ash"


class Correspondent:
    """`tally`: what was sent, and what came of it. `reached`: calls that the service handed to its site."""

    def __init__(self, folder: Path, first: int = 1) -> None:
        self._folder, self._number = folder, first
        self.coordinator, self.identity = Identity.new(), Identity.new()
        self.oracle, self.tally = Oracle(), Counter()
        self.agreements: dict[str, bytes] = {}
        self.restart()

    def restart(self) -> None:
        """A new process of the silo over the same files."""
        rng = np.random.default_rng(0)
        self.records = Records(rng.standard_normal((SIZES[NAME], FEATURES)), rng.choice([-1.0, 1.0], SIZES[NAME]))
        self.ledger = SqliteLedger(NAME, self._folder / "ash.sqlite", self._folder / "ash.anchor")
        keys = SecretKeys(b"k" * 32)
        self.site = Site([PrivateSilo(NAME, self.records, keys, self.ledger, guarded=True)])
        self._sequences = Sequences(self._folder / "numbers.sqlite")
        questions = Questions(Inbox(NAME, HEART, self.identity), self._sequences, lambda: datetime.now(UTC))
        self.service = SiloService(self.site, NAME, questions, self.identity, self.coordinator.public)
        called = self.service._called

        def counted(call: Call) -> bytes:
            self.tally["reached"] += 1
            return called(call)

        self.service._called = counted

    def sealed(self, body: bytes, run: str) -> bytes:
        """The body in a valid envelope with the next number."""
        self._number += 1
        heading = Heading(HEART, COORDINATOR, NAME, run, self._number)
        return Envelope.made(heading, self.coordinator, self.identity.public, body).to_bytes()

    def called(self, body: bytes, run: str) -> Answer:
        """The answer to a body in a valid envelope."""
        data = self.last = self.sealed(body, run)
        self.tally["sent"] += 1
        answered = self.service.answer(data)
        self.service.sent(answered)
        back = Envelope.from_bytes(answered.envelope).opened(self.coordinator, self.identity.public)
        answer = Answer.from_bytes(back)
        assert answer.question == Envelope.from_bytes(data).digest
        if answer.refusal is not None:
            silo, code, sentence = answer.refusal
            assert silo == NAME and sentence.isprintable() and 0 < len(sentence) <= 600
            assert code != "failed", f"an unforeseen error: {sentence}"
            self.tally[f"refused: {code}"] += 1
        self._checked(body, answer)
        return answer

    def _checked(self, body: bytes, answer: Answer) -> None:
        """Compares an accepted call with the oracle."""
        if answer.refusal is not None:
            return
        call = Call.from_bytes(body)
        self.tally[f"done: {call.operation}"] += 1
        if call.operation == "approve":
            rebuilt = Agreement.from_bytes(call.parts[0])
            self.oracle.approved(call.parts[0], rebuilt.method.plan(rebuilt.problem).as_json())
            self.agreements[rebuilt.run] = call.parts[0]
        elif call.operation == "answer":
            self.tally["releases"] += self.oracle.answered(call.parts[0], answer.body, {NAME: self.ledger})
        elif call.operation == "close_run":
            self.oracle.close(call.run, {NAME: self.ledger})

    def check(self) -> None:
        """Every release in the ledger is charged, at one address, and left in an answer that the oracle saw."""
        rows = [(run, row.phase, row.round) for run in self.agreements for row in self.ledger.rows(run)]
        assert len(set(rows)) == len(rows)
        assert {(NAME, *each) for each in rows} == set(self.oracle.left)
        assert {run for run in self.ledger.charges() if self.ledger.is_run(run)} == set(self.agreements)

    def close(self) -> None:
        self.site.close()
        self._sequences.close()
