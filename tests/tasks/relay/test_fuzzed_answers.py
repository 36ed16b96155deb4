"""Thousands of altered answers of silos whose keys are right: the driver takes a release, or names the silo."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from fedcore.errors import SiloError
from fedcore.identity.envelope import Envelope
from fedcore.messages import Release, Releases
from fedcore.relay.members import COORDINATOR
from fedcore.remote.forms import Answer, packed_accounts
from fedcore.silo.account import SiloAccount
from tests.faults.mutations import ODD, bent_array, bent_bytes, bent_text, bent_tree
from tests.fuzzing import fuzz_seed
from tests.tasks.relay.remote_silos import IDENTITIES, Direct, Federation

NAME = "cleveland"
FEW, MANY = 400, 10_000


class Ignored(Exception):
    """The driver took the answer for none, and asked the relay again."""


class Forger(Direct):
    """A relay at which a silo answers each question at once, by `make`, which takes the question's digest."""

    make = staticmethod(lambda digest: b"")
    waiting: bytes | None = None

    def deposit_all(self, envelopes: list[bytes]) -> None:
        (question,) = map(Envelope.from_bytes, envelopes)
        heading = replace(question.heading, sender=NAME, receiver=COORDINATOR)
        body = self.make(question.digest)
        made = Envelope.made(heading, IDENTITIES[NAME], IDENTITIES[COORDINATOR].public, body)
        self.waiting = made.to_bytes()

    def collect(self, run: str = "") -> list[bytes]:
        if self.waiting is None:
            raise Ignored
        found, self.waiting = self.waiting, None
        return [found]

    def taken(self, envelopes: list[bytes]) -> None:
        pass


def body(source: Random, query, digest: bytes) -> bytes:
    """An answer's body; most of them are well-formed, and hold another release than the right one."""
    payload = np.array([source.gauss(0, 1) for _ in range(4)])
    if source.random() < 0.5:
        payload = np.ascontiguousarray(np.real(bent_array(source, payload, 1.0)).ravel(), dtype="<f8")
    asked = query.digests((NAME,))[NAME] if source.random() < 0.8 else source.randbytes(32)
    release = Release(NAME, query.phase, query.round, asked, b"", payload)
    data = Releases.of(query, [release]).to_bytes()
    drawn = source.random()
    if drawn < 0.2:
        address, silos, rest = data.split(b"\n", 2)
        lines = [json.loads(address), json.loads(silos)]
        bent = [json.dumps(each).encode() for each in bent_tree(source, lines)] if source.random() < 0.8 else []
        data = b"\n".join([*bent, rest])
    elif drawn < 0.4:
        data = bent_bytes(source, data, b"[1, 1]\n")
    answer = Answer(digest, data)
    if source.random() < 0.2:
        refusal = [source.choice([NAME, "hungary", "", "x" * 300]), source.choice(["plan", "a b", ""]), "no\n\x1b[2J"]
        if source.random() < 0.3:
            refusal[source.randrange(3)] = source.choice(ODD)
        return json.dumps([digest.hex(), "refused", refusal]).encode() + b"\n"
    made = answer.to_bytes()
    if source.random() < 0.1:
        head, _, rest = made.partition(b"\n")
        made = bent_text(source, head.decode()).encode(errors="surrogatepass") + b"\n" + rest
    return made


def account(source: Random, digest: bytes) -> bytes:
    """A body with an account, most of them with an odd value."""
    tree = json.loads(packed_accounts([SiloAccount(NAME, 12, 1, 0.5, 1e-6, 1, False)]))
    if source.random() < 0.9:
        tree = bent_tree(source, tree)
    return Answer(digest, json.dumps(tree).encode()).to_bytes()


def searched(federation: Federation, count: int) -> Counter:
    source, tally = Random(fuzz_seed()), Counter()
    post = Forger(federation.relay, COORDINATOR)
    query = federation.context.query(federation.method.init(np.zeros(4))).among((NAME,))
    for number in range(count):
        backend = federation.backend(post=post, deadline=None)
        backend.silos = (NAME,)
        post.waiting = None
        try:
            if number % 5 == 0:
                post.make = lambda digest: account(source, digest)
                (found,) = backend.accounts("run")
                assert found.silo == NAME and min(found[1:6]) >= 0 and np.isfinite(found.epsilon)
            else:
                post.make = lambda digest: body(source, query, digest)
                releases = backend.ask(query)
                assert releases.silos == (NAME,) and releases.payloads.shape == (1, 4)
            tally["taken"] += 1
        except SiloError as error:
            assert error.silo == NAME and str(error).isprintable()
            tally[f"refused: {error.code}"] += 1
        except Ignored:
            tally["ignored"] += 1
    print(tally)
    return tally


@pytest.fixture
def federation(tmp_path, monkeypatch):
    monkeypatch.setattr("tasks.relay.client.FIRST", 0.0)  # no pause after an answer that is none
    made = Federation(tmp_path / "federation")
    yield made
    made.close()


def test_a_silo_that_answers_anything_is_taken_at_its_word_or_named(federation):
    tally = searched(federation, FEW)
    assert tally["taken"] > 20 and tally["refused: answer"] > 50
    assert tally["ignored"] < 0.7 * FEW, "at least 30 % are read as answers"


@pytest.mark.minutes
def test_ten_thousand_answers_of_hostile_silos(federation):
    tally = searched(federation, MANY)
    assert tally["taken"] > 500 and tally["ignored"] < 0.7 * MANY
