"""Thousands of altered calls of a coordinator whose keys are right: no uncharged release, and no crash."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from fedcore.identity.envelope import Envelope, Heading
from fedcore.messages import Query, Releases
from fedcore.relay.members import COORDINATOR
from fedcore.remote.forms import PARTS, Answer, Call
from tests.fuzzing import fuzz_seed
from tests.tasks.relay.remote_silos import HEART, IDENTITIES, ROUNDS, Federation

CALLS = 10_000
NAME = "cleveland"


def altered(source: random.Random, data: bytes) -> bytes:
    """The bytes with some of them changed, cut out or put in."""
    found = bytearray(data)
    for _ in range(source.randint(1, 3)):
        at = source.randrange(len(found) + 1)
        found[at : at + source.randint(0, 4)] = source.randbytes(source.randint(0, 4))
    return bytes(found)


def queried(source: random.Random, query: Query) -> Query:
    """A well-formed query that asks something else."""
    w = source.choice([np.zeros(4), np.ones(4), np.full(4, np.nan), np.full(4, 1e300), np.zeros(3), np.zeros((4, 1))])
    return source.choice(
        [
            replace(query, arrays={"w": w * source.choice([1.0, -1.0, 1e6])}),
            replace(query, round=source.choice([0, 1, 2, ROUNDS, ROUNDS + 1, 2**62]) or 7),
            replace(query, phase=source.choice([1, 2, 2**62])),
            replace(query, plan="0" * 64),
            replace(query, run=source.choice(["other", "run ", "x" * 200])),
            replace(query, participants=(NAME, NAME)),
            replace(query, participants=("hungary",)),
            replace(query, own={NAME: {"w": np.ones(4)}}),
            replace(query, arrays={}),
            query,
        ]
    )


def called(source: random.Random, federation: Federation, query: Query) -> bytes:
    """The body of a call, most of them well-formed."""
    operation = source.choice([*PARTS, "answer", "answer", "answer"])
    parts: tuple[bytes, ...] = ()
    if operation == "approve":
        agreement = federation.agreement.to_bytes()
        parts = (source.choice([agreement, altered(source, agreement)]),)
        if source.random() < 0.3:
            parts += (source.choice([b"", b"{}", b'["http://h:1", "k", 1.0, ""]']),)
    elif PARTS[operation][1]:
        data = queried(source, query).to_bytes()
        parts = (altered(source, data) if source.random() < 0.3 else data,)
    run = source.choice(["run", "run", "run", "run", "other"])
    lease = source.choice([1, 1, 1, 1, 0, 2**62])
    body = Call(operation, run, lease, parts).to_bytes()
    return altered(source, body) if source.random() < 0.15 else body


@pytest.mark.minutes
def test_a_coordinator_that_sends_anything_gets_what_the_plan_has_and_nothing_else(tmp_path):
    source = random.Random(fuzz_seed())
    federation = Federation(tmp_path / "federation")
    silo, decoded, releases = federation.silos[NAME], 0, {}
    try:
        query = federation.context.query(federation.method.init(np.zeros(4)))
        for number in range(1, CALLS + 1):
            body = Call("approve", "run", 1, (federation.agreement.to_bytes(),)).to_bytes()
            if number > 1:
                body = called(source, federation, query)
            try:
                call = Call.from_bytes(body)
                decoded += 1
            except ValueError:
                call = None
            heading = Heading(HEART, COORDINATOR, NAME, "run" if call is None else call.run, number)
            data = Envelope.made(heading, IDENTITIES[COORDINATOR], IDENTITIES[NAME].public, body).to_bytes()
            answered = silo.service.answer(data)
            silo.service.sent(answered)
            back = Envelope.from_bytes(answered.envelope).opened(IDENTITIES[COORDINATOR], IDENTITIES[NAME].public)
            answer = Answer.from_bytes(back)
            if answer.refusal is None and call is not None and call.operation == "answer":
                for release in Releases.from_bytes(answer.body, 4):
                    address = release.phase, release.round
                    assert releases.setdefault(address, release.payload_digest) == release.payload_digest
                    assert address[0] == 1 and 1 <= address[1] <= ROUNDS and release.silo == NAME
        assert decoded > 0.3 * CALLS
        assert len(silo.ledger.events("run")) == len(releases) <= ROUNDS
        assert [run for run in silo.ledger.charges() if silo.ledger.is_run(run)] == ["run"]
    finally:
        federation.close()
