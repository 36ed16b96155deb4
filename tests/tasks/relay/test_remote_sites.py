"""Silo services behind a relay: the same bits as in one process, and relays and parties that misbehave."""

from __future__ import annotations

import random
import threading
from dataclasses import replace

import numpy as np
import pytest

from fedcore.errors import InputError, RelayError, SiloError
from fedcore.identity.envelope import Envelope, Heading
from fedcore.identity.keys import Identity
from fedcore.relay.members import COORDINATOR
from fedcore.remote.forms import Answer, Call
from fedcore.silo.policies.decisions import PAUSED, UNDECIDED
from tasks.relay import calls as remote
from tasks.relay.serving import _answer, _Last, serve
from tests.tasks.relay.remote_silos import HEART, IDENTITIES, NAMES, ROUNDS, Direct, Federation


@pytest.fixture
def federation(tmp_path, monkeypatch):
    made = Federation(tmp_path / "federation")
    monkeypatch.setattr("tasks.relay.client.FIRST", 0.01)
    monkeypatch.setattr("tasks.relay.client.LONGEST", 0.1)
    yield made
    made.close()


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The model of the silos in one process."""
    made = Federation(tmp_path_factory.mktemp("local"))
    try:
        return made.local(tmp_path_factory.mktemp("silos"))
    finally:
        made.close()


def releases(silo) -> int:
    return len(silo.ledger.events("run"))


def test_services_behind_a_relay_train_the_model_of_one_process(federation, expected):
    federation.serve()
    backend = federation.backend()
    found = federation.train(backend)
    assert np.array_equal(found, expected)
    assert [account.releases for account in backend.accounts("run")] == [ROUNDS] * 4
    backend.close_run("run")
    federation.stop()
    assert all(silo.ledger.is_closed("run") and releases(silo) == ROUNDS for silo in federation.silos.values())
    assert federation.relay.waiting() == 0


class Unreliable(Direct):
    """A relay that loses, repeats, delays, reorders, cuts and invents envelopes."""

    draws = random.Random(4)

    def deposit(self, envelope: bytes) -> None:
        drawn = self.draws.random()
        if drawn < 0.15:
            raise RelayError("silent", "none answers")
        if drawn < 0.25:
            return  # the relay confirms it, and has lost it
        super().deposit(envelope)
        if drawn < 0.4:
            super().deposit(envelope)
            raise RelayError("silent", "the answer was lost")

    def collect(self, run: str = "") -> list[bytes]:
        drawn = self.draws.random()
        if drawn < 0.1:
            raise RelayError("silent", "none answers")
        found = super().collect(run)
        kept = getattr(self, "kept", [])
        self.kept = [*kept, *found][-20:]
        if drawn < 0.5:
            found = [*found, *self.draws.sample(self.kept, min(3, len(self.kept)))]
            self.draws.shuffle(found)
        if drawn < 0.3:
            found = [each[: len(each) // 2] if self.draws.random() < 0.2 else each for each in found] + [b"made up"]
        return found

    def taken(self, envelopes: list[bytes]) -> None:
        if self.draws.random() < 0.2:
            raise RelayError("silent", "none answers")
        super().taken(envelopes)


def test_a_relay_that_loses_repeats_and_reorders_changes_no_bit(federation, expected, monkeypatch):
    monkeypatch.setattr(remote, "AGAIN", 0.05)
    federation.posts = {name: Unreliable(federation.relay, name) for name in NAMES}
    federation.serve()
    backend = federation.backend(post=Unreliable(federation.relay, COORDINATOR))
    assert np.array_equal(federation.train(backend), expected)
    federation.stop()
    assert all(releases(silo) == ROUNDS for silo in federation.silos.values()), "each release once"


def test_a_silo_that_is_away_is_waited_for_until_the_deadline_and_named(federation):
    federation.serve("cleveland", "hungary", "virginia")
    seen = []
    backend = federation.backend(deadline=3.0, waits=seen.append)
    with pytest.raises(SiloError, match="switzerland: no answer within 3 s"):
        backend.open()
    assert tuple(seen[0]) == NAMES and tuple(seen[-1]) == ("switzerland",)


def test_a_silo_that_comes_late_answers_the_stored_questions(federation, expected):
    federation.serve("cleveland", "hungary", "virginia")
    threading.Timer(0.5, federation.serve, ("switzerland",)).start()
    assert np.array_equal(federation.train(federation.backend()), expected)


def test_a_resumed_driver_gets_the_same_bytes_and_an_older_one_nothing(federation, expected):
    federation.serve()
    first = federation.backend(lease=1)
    assert np.array_equal(federation.train(first), expected)
    second = federation.backend(lease=2)
    assert np.array_equal(federation.train(second), expected)
    query = federation.context.query(federation.method.init(np.zeros(4)))
    with pytest.raises(SiloError, match="lease"):
        first.ask(query)
    federation.stop()
    assert all(releases(silo) == ROUNDS for silo in federation.silos.values())


def test_a_refusal_comes_back_as_the_silos_sentence(federation):
    federation.serve()
    backend = federation.backend()
    backend.open()
    query = federation.context.query(federation.method.init(np.zeros(4)))
    backend.ask(query)
    other = replace(query, arrays={"w": np.ones(4)})
    with pytest.raises(SiloError, match=r"silo (cleveland|hungary|switzerland|virginia): .*(another|other)"):
        backend.ask(other)
    with pytest.raises(SiloError, match="no metrics without noise"):
        backend.simulated("run", np.zeros(4))


class Dying(Direct):
    """A silo's access whose process ends at random, before or after its answer left, and starts anew."""

    def __init__(self, federation, name) -> None:
        super().__init__(federation.relay, name)
        self.silo, self.ends, self.draws, self.deaths = federation.silos[name], federation.ends, random.Random(name), 0

    def deposit(self, envelope: bytes) -> None:
        drawn = self.draws.random()
        if drawn < 0.2:
            self.die()
        super().deposit(envelope)
        if drawn > 0.8:
            self.die()

    def die(self) -> None:
        self.deaths += 1
        raise SystemExit

    def live(self) -> None:
        while not self.ends.is_set():
            try:
                serve(self.silo.service, self, self.ends)
            except SystemExit:
                self.silo.kill()


def test_silos_that_start_anew_in_a_run_change_no_bit_and_release_once(federation, expected, monkeypatch):
    monkeypatch.setattr(remote, "MOST_OPENED", 100)  # chance must not end the run
    posts = [Dying(federation, name) for name in NAMES]
    federation.threads = [threading.Thread(target=post.live) for post in posts]
    for thread in federation.threads:
        thread.start()
    backend = federation.backend()
    assert np.array_equal(federation.train(backend), expected)
    accounts = backend.accounts("run")
    backend.close_run("run")
    federation.stop()
    assert sum(post.deaths for post in posts) > 3
    assert [account.releases for account in accounts] == [releases(silo) for silo in federation.silos.values()]
    assert all(releases(silo) == ROUNDS for silo in federation.silos.values())


def test_an_older_driver_that_gives_up_ends_nothing(federation, expected):
    federation.serve()
    old, new = federation.backend(lease=1), federation.backend(lease=2)
    old.open()
    new.open()
    old.close()
    assert np.array_equal(federation.train(new), expected)


@pytest.mark.parametrize("stranger", ["hungary", "nobody"])
def test_only_the_coordinator_is_answered(federation, stranger):
    """Another member, and a stranger, ask a silo under the coordinator's name and under their own."""
    silo = federation.silos["cleveland"]
    identity = IDENTITIES.get(stranger) or Identity.new()
    call = Call("approve", "run", 1, (federation.agreement.to_bytes(),)).to_bytes()
    for sender in (COORDINATOR, stranger):
        heading = Heading(HEART, sender, "cleveland", "run", 7)
        data = Envelope.made(heading, identity, IDENTITIES["cleveland"].public, call).to_bytes()
        with pytest.raises(ValueError, match=r"no keys of|not that of its sender"):
            silo.service.answer(data)
    assert not silo.ledger.is_run("run")


def test_an_answer_counts_if_its_silo_gave_it_to_this_question(federation):
    backend = federation.backend()
    post = Direct(federation.relay, COORDINATOR)
    call = Call("accounts", "run", 1)
    waiting = {name: remote._Waiting([call]) for name in ("cleveland", "hungary")}
    backend._calls._send(waiting)
    ((number, digest),) = waiting["cleveland"].numbers.items()

    def sent(sender="cleveland", run="run", sequence=None, question=None, signer=None, body=None) -> bytes:
        heading = Heading(HEART, sender, COORDINATOR, run, number if sequence is None else sequence)
        body = Answer(question or digest, b"[]").to_bytes() if body is None else body
        signer = IDENTITIES[signer or sender]
        return Envelope.made(heading, signer, IDENTITIES[COORDINATOR].public, body).to_bytes()

    for wrong in (
        sent(signer="hungary"),
        sent(sender="hungary"),
        sent(sender="virginia"),
        sent(sequence=number + 1),
        sent(run="another"),
        sent(question=bytes(32)),
        sent(body=b"no answer"),
        b"made up",
        sent()[:-1],
    ):
        assert backend._calls._answer(wrong, waiting) is None
    found = backend._calls._answer(sent(), waiting)
    assert found is not None and found[0] == "cleveland" and found[1].body == b"[]"
    assert post.collect() == []


def test_no_release_but_its_own_counts_from_a_silo(federation):
    """A member that answers with another's release, or with two, is refused by name."""
    backend = federation.backend()
    local = federation.silos
    federation.serve("hungary")
    only = federation.backend()
    only.silos = ("hungary",)
    only._of_all("approve", None, federation.agreement.to_bytes())
    query = federation.context.query(federation.method.init(np.zeros(4)))
    theirs = only._calls.answers({"hungary": only._call("answer", query.at(("hungary",)).to_bytes())})["hungary"]
    assert backend._releases(query, "hungary", theirs).silos == ("hungary",)
    for name, data in (("cleveland", theirs), ("hungary", theirs[:-8]), ("hungary", b""), ("hungary", theirs + b"x")):
        with pytest.raises(SiloError, match=f"silo {name}: it sent something else than its release of 1.1"):
            backend._releases(query, name, data)
    assert set(local) == set(NAMES)


def test_what_is_no_call_is_refused_and_charged_nothing(federation):
    silo = federation.silos["cleveland"]
    bodies = [b"", b"[]\n", b"x" * 100, Call("answer", "run", 1, (b"no query",)).to_bytes()]
    bodies += [Call("approve", "run", 1, (b"no agreement",)).to_bytes(), Call("send", "run", 1, (b"",)).to_bytes()]
    bodies.append(Call("approve", "other", 1, (federation.agreement.to_bytes(),)).to_bytes())
    for number, body in enumerate(bodies, 1):
        heading = Heading(HEART, COORDINATOR, "cleveland", "run", number)
        data = Envelope.made(heading, IDENTITIES[COORDINATOR], IDENTITIES["cleveland"].public, body).to_bytes()
        answered = silo.service.answer(data)
        assert answered.refused is not None
        back = federation.backend()._calls._inbox.answer(
            answered.envelope, "cleveland", IDENTITIES["cleveland"].public, "run", number
        )
        assert Answer.from_bytes(back).refusal[0] == "cleveland"
        silo.service.sent(answered)
        with pytest.raises(ValueError, match="came before"):
            silo.service.answer(data)
    assert not silo.ledger.is_run("run") and not silo.ledger.is_run("other")


def test_a_refused_envelope_is_acknowledged_since_nothing_would_answer_it(federation, caplog):
    silo = federation.silos["cleveland"]
    post = Direct(federation.relay, "cleveland")
    with caplog.at_level("WARNING", logger="fedcore.silo"):
        assert not _answer(silo.service, post, b"made up by the relay", True, _Last(silo.service, post))
    assert "an envelope is refused" in caplog.text


def test_a_disk_that_fails_ends_the_loop_and_loses_no_question(federation):
    silo, post = federation.silos["cleveland"], Direct(federation.relay, "cleveland")
    backend = federation.backend()
    backend._calls._send({"cleveland": remote._Waiting([backend._call("approve", federation.agreement.to_bytes())])})
    silo.sequences.close()
    with pytest.raises(InputError, match="cannot be kept"):
        serve(silo.service, post, federation.ends)
    assert len(post.collect()) == 1


def test_an_answer_that_the_relay_does_not_take_is_refused_in_its_place(federation):
    class Small(Direct):
        answers = 0

        def deposit(self, envelope: bytes) -> None:
            self.answers += 1
            if self.answers in (2, 3):  # the first one approves; this one comes twice, the second time alone
                raise RelayError("long", "it is too long")
            super().deposit(envelope)

    federation.posts["hungary"] = Small(federation.relay, "hungary")
    federation.serve()
    backend = federation.backend()
    backend.open()
    query = federation.context.query(federation.method.init(np.zeros(4)))
    with pytest.raises(SiloError, match=r"silo hungary: its answer cannot be delivered \(it is too long\)"):
        backend.ask(query)


def test_a_closed_run_is_forgotten_and_may_be_asked_to_close_again(federation):
    federation.serve()
    backend = federation.backend()
    federation.train(backend)
    backend.close_run("run")
    assert not any(silo.site.has("run") for silo in federation.silos.values())
    backend.close_run("run")  # the answer was lost, and the driver resumes
    federation.stop()
    assert all(silo.ledger.is_closed("run") and releases(silo) == ROUNDS for silo in federation.silos.values())


def test_a_silo_whose_operator_has_not_decided_is_waited_for_and_its_reason_shown(federation, expected, monkeypatch):
    """An approval, and an answer in a paused silo, come when the operator lets them."""
    monkeypatch.setattr(remote, "ASKED", 0.1)
    seen, refused = [], []
    site = federation.silos["hungary"].site
    for name in ("approve", "answer"):
        act, code = getattr(site, name), UNDECIDED if name == "approve" else PAUSED

        def later(*arguments, act=act, code=code):
            if refused.count(code) < 2:
                refused.append(code)
                raise SiloError("hungary", code, f"its operator: {code}")
            return act(*arguments)

        monkeypatch.setattr(site, name, later)
    federation.serve()
    assert np.array_equal(federation.train(federation.backend(waits=lambda names: seen.append(dict(names)))), expected)
    assert refused == [UNDECIDED, UNDECIDED, PAUSED, PAUSED]
    whys = {each["hungary"] for each in seen if "hungary" in each}
    assert whys == {"", f"its operator: {UNDECIDED}", f"its operator: {PAUSED}"}
