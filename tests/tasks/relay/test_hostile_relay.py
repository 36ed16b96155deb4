"""A relay in the middle: it keeps, repeats, swaps, renames and makes up envelopes, and learns no record's value."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from fedcore.errors import RelayError, SiloError
from fedcore.identity.envelope import Envelope
from fedcore.identity.keys import Identity
from fedcore.relay.members import COORDINATOR
from fedcore.remote.forms import Answer, Call
from tasks.relay import calls as remote
from tests.fuzzing import fuzz_seed
from tests.tasks.relay.remote_silos import IDENTITIES, NAMES, ROUNDS, Direct, Federation


@pytest.fixture
def federation(tmp_path, monkeypatch):
    made = Federation(tmp_path / "federation")
    monkeypatch.setattr("tasks.relay.client.FIRST", 0.01)
    monkeypatch.setattr("tasks.relay.client.LONGEST", 0.1)
    monkeypatch.setattr(remote, "AGAIN", 0.3)
    yield made
    made.close()


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    made = Federation(tmp_path_factory.mktemp("local"))
    try:
        return made.local(tmp_path_factory.mktemp("silos"))
    finally:
        made.close()


class Mallory:
    """The relay: all envelopes that it has ever carried, and keys of its own."""

    def __init__(self, seed: int) -> None:
        self.draws, self.identity = random.Random(seed), Identity.new()
        self.carried: list[bytes] = []
        self.made = 0

    def forged(self, name: str) -> list[bytes]:
        """Envelopes to a party: old ones, others' under its name, renamed ones, and some of its own making."""
        if not self.carried:
            return []
        found = []
        for data in self.draws.choices(self.carried, k=3):
            old = Envelope.from_bytes(data)
            to, of = (name, COORDINATOR) if name != COORDINATOR else (COORDINATOR, self.draws.choice(NAMES))
            sequence = old.heading.sequence + self.draws.choice([0, 0, 1, 10**6])
            heading = replace(old.heading, sender=of, receiver=to, sequence=sequence)
            if to == COORDINATOR:
                digest = self.draws.choice([each for each in self.carried if f'"{COORDINATOR}"'.encode() in each[:200]])
                body = Answer(Envelope.from_bytes(digest).digest, np.full(4, 1e6).tobytes()).to_bytes()
            else:
                body = Call("close_run", heading.run, 2**50, ()).to_bytes()
            found += [
                data,
                Envelope(heading, old.signature, old.sealed).to_bytes(),
                Envelope.made(heading, self.identity, IDENTITIES[to].public, body).to_bytes(),
                Envelope(heading, self.identity.sign(b"x"), old.sealed).to_bytes(),
            ]
        self.made += len(found)
        return found


class Middle(Direct):
    """A party's access to the relay of `mallory`, a class attribute of a test's own subclass."""

    mallory: Mallory

    def deposit(self, envelope: bytes) -> None:
        self.mallory.carried.append(envelope)
        super().deposit(envelope)
        if self.mallory.draws.random() < 0.2:
            raise RelayError("silent", "the answer was kept")

    def collect(self, run: str = "") -> list[bytes]:
        found = [*super().collect(run), *self.mallory.forged(self.name)]
        self.mallory.draws.shuffle(found)
        return found if self.mallory.draws.random() < 0.8 else found[: len(found) // 2]


def test_a_relay_in_the_middle_changes_no_bit_and_learns_no_value(federation, expected, monkeypatch):
    seed = fuzz_seed()
    Middle.mallory = Mallory(seed)
    federation.posts = {name: Middle(federation.relay, name) for name in NAMES}
    federation.serve()
    opened: list[bytes] = []
    read = Answer.from_bytes.__func__
    monkeypatch.setattr(Answer, "from_bytes", classmethod(lambda cls, data: opened.append(data) or read(cls, data)))
    backend = federation.backend(post=Middle(federation.relay, COORDINATOR))
    assert np.array_equal(federation.train(backend), expected)
    backend.close_run("run")
    federation.stop()
    for silo in federation.silos.values():
        rows = [(row.phase, row.round) for row in silo.ledger.rows("run")]
        assert sorted(set(rows)) == sorted(rows) == [(1, round) for round in range(1, ROUNDS + 1)]
        assert silo.ledger.is_closed("run")
        assert [run for run in silo.ledger.charges() if silo.ledger.is_run(run)] == ["run"]
    assert Middle.mallory.made > 100
    seen = b"".join([*Middle.mallory.carried, *opened, *on_disk(federation.folder / "relay")])
    for silo in federation.silos.values():
        for value in secrets_of(silo, federation, [np.zeros(4)]):
            assert value not in seen
    # The search finds what is there: a release that the driver has opened.
    release = federation.silos["hungary"].ledger.find("run", 1, 1).payload
    assert bytes(release) in seen


def on_disk(folder) -> list[bytes]:
    return [path.read_bytes() for path in folder.rglob("*") if path.is_file()]


def secrets_of(silo, federation, models) -> list[bytes]:
    """Bytes of a silo's records, and of the sums and means of its gradients before noise at these models."""
    X, y = silo.records.X, silo.records.y
    found = [row.tobytes() for row in X] + [each.tobytes() for each in X.ravel()] + [each.tobytes() for each in y]
    clip = federation.plan.problem.objective.clip
    for w in models:
        gradients = (X @ w - y)[:, None] * X
        clipped = gradients * np.minimum(1.0, clip / np.linalg.norm(gradients, axis=1))[:, None]
        for each in (gradients, clipped):
            found += [row.tobytes() for row in each]
            found += [each.sum(axis=0).tobytes(), each.mean(axis=0).tobytes()]
            found += [value.tobytes() for value in each.sum(axis=0)]
    return [each for each in found if each.strip(b"\0")]


@pytest.mark.parametrize("code", ["unknown", "long", "form", "other"])
def test_a_relay_that_lies_about_a_party_ends_a_run_by_a_sentence_that_names_it(federation, code):
    class Lying(Direct):
        def deposit(self, envelope: bytes) -> None:
            raise RelayError(code, "you are\nnobody\x1b[2J")

    federation.serve()
    with pytest.raises(SiloError, match=r"relay: you are\?nobody\?\[2J") as found:
        federation.backend(post=Lying(federation.relay, COORDINATOR)).open()
    assert found.value.code == "relay" and "\n" not in str(found.value)


@pytest.mark.parametrize("code", ["full", "failed", "silent", "old", "invented"])
def test_a_relay_that_says_try_again_is_tried_until_the_deadline_and_the_silos_are_named(federation, code):
    class Lying(Direct):
        def deposit(self, envelope: bytes) -> None:
            raise RelayError(code, "later")

    with pytest.raises(SiloError, match="cleveland, hungary, switzerland, virginia: no answer within 1 s"):
        federation.backend(post=Lying(federation.relay, COORDINATOR), deadline=1.0).open()


def test_a_relay_that_confirms_answers_and_drops_them_costs_one_charge(federation, expected):
    """A silo believes that its answer is delivered. The driver asks again, and gets the ledger's bytes."""

    class Dropping(Direct):
        dropped = 0

        def deposit(self, envelope: bytes) -> None:
            if self.dropped < 3:
                self.dropped += 1
                return
            super().deposit(envelope)

    federation.posts = {name: Dropping(federation.relay, name) for name in NAMES}
    federation.serve()
    assert np.array_equal(federation.train(federation.backend()), expected)
    federation.stop()
    assert all(post.dropped == 3 for post in federation.posts.values())
    assert all(len(silo.ledger.rows("run")) == ROUNDS for silo in federation.silos.values())


def test_a_silo_that_lost_its_numbers_gives_a_replaying_relay_nothing_new(federation):
    """All envelopes that the relay ever carried come again to a silo whose numbers were restored from a backup."""
    Middle.mallory = Mallory(1)
    Middle.mallory.forged = lambda name: []
    federation.serve()
    backend = federation.backend(post=Middle(federation.relay, COORDINATOR))
    federation.train(backend)
    newer = federation.backend(lease=2)
    newer.open()
    federation.stop()
    silo = federation.silos["hungary"]
    before = [(row.round, row.payload_digest) for row in silo.ledger.rows("run")]
    silo.site.close()
    silo.sequences.close()
    for path in silo.sequences.path.parent.glob("hungary.numbers.sqlite*"):
        path.unlink()
    silo.start()
    for data in Middle.mallory.carried:
        if Envelope.from_bytes(data).heading.receiver == "hungary":
            answered = silo.service.answer(data)
            silo.service.sent(answered)
            assert answered.refused is not None, "its lease is older than the one that the ledger knows"
    assert [(row.round, row.payload_digest) for row in silo.ledger.rows("run")] == before and len(before) == ROUNDS
