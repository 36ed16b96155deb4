"""Rounds through a shuffler: what the driver gets, what it cannot, and the same bits whatever is lost in between."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from scipy.stats import chi2, norm

from fedcore.errors import ShufflerError, SiloError
from fedcore.federation.comparison import compare_shuffled
from fedcore.messages import Batch
from fedcore.shuffling.forms import Address, Envelope, Opening, Request, Route
from fedcore.shuffling.sealing import ServerKey, seal, sealed_length
from fedcore.silo.account import SiloAccount
from fedcore.silo.site import Site
from tests.faults.mutations import bent_bytes
from tests.problems import changed
from tests.tasks.shuffled_silos import Federation, federation


@pytest.fixture
def made(tmp_path) -> Federation:
    return federation(tmp_path)


def releases(made: Federation) -> dict[str, int]:
    return {account.silo: account.releases for account in made.site.accounts("run")}


def test_a_batch_is_what_the_silos_committed_in_an_order_of_its_own(made):
    orders = set()
    for _, query, batch in made.play():
        sent = {name: made.payload(name, query.round).tobytes() for name in made.silos}
        assert [payload.tobytes() for payload in batch.payloads] == sorted(sent.values())
        handed = [Envelope.from_bytes(envelope).silo for envelope in made.counter.seen[-5:]]
        assert sorted(handed) == sorted(made.silos)
        by_payload = {payload: name for name, payload in sent.items()}
        orders.add(tuple(by_payload[payload.tobytes()] for payload in batch.payloads))
    assert len(orders) > 1  # whose message is the first changes
    assert set(releases(made).values()) == {6}
    made.sites.close_run("run")


def test_the_model_has_the_same_bits_whatever_the_permutation_and_is_the_mean_of_all(tmp_path):
    weights = [federation(tmp_path / str(number)).final() for number in range(4)]
    assert len({w.tobytes() for w in weights}) == 1
    made, w = federation(tmp_path / "by hand"), np.zeros(4)
    for state, query, _ in made.play():
        np.testing.assert_allclose(state.w, w, rtol=1e-12)
        w = w - 0.1 * np.mean([made.payload(name, query.round) for name in made.silos], axis=0)


def test_what_a_silo_sent_and_lost_is_sent_again_as_the_same_payload_sealed_anew(made, tmp_path):
    undisturbed = federation(tmp_path / "undisturbed").final()
    lost = iter([2, 9, 10, 17])  # the number of an envelope at which the shuffler dies
    at, count = next(lost), 0

    def dies(envelope: bytes) -> None:
        nonlocal at, count
        count += 1
        if count == at:
            made.counter.restart()
            at = next(lost, 0)

    made.counter.lost = dies
    np.testing.assert_array_equal(made.final(), undisturbed)
    assert count > 30 and set(releases(made).values()) == {6}
    assert [silo.computed for silo in made.silos.values()] == [6] * 5
    sealed = [Envelope.from_bytes(envelope) for envelope in made.counter.seen]
    again = [each for each in sealed if (each.silo, each.at) == (sealed[0].silo, sealed[0].at)]
    assert len({each.sealed for each in again}) == len(again) == 3  # it died at the second envelope, and the ninth
    question = made.context.query(made.start).digests(["silo-0"])["silo-0"]
    assert len({made.key.unsealed(each.sealed, question, 4).tobytes() for each in again}) == 1


def test_a_server_that_comes_back_gets_the_same_batch_and_asks_nobody(made):
    _, query, batch = next(made.play())
    before = len(made.counter.seen)
    made.counter.restart()
    again = made.backend.batch(query)
    assert [p.tobytes() for p in again.payloads] == [p.tobytes() for p in batch.payloads]
    assert len(made.counter.seen) == before and set(releases(made).values()) == {1}


def test_a_batch_without_some_is_the_mean_of_those_that_came(tmp_path):
    made = federation(tmp_path, minimum=3)
    made.counter.lost = lambda envelope: (
        ShufflerError("other", "not today") if Envelope.from_bytes(envelope).silo in ("silo-1", "silo-4") else None
    )
    for state, query, batch in made.play():
        assert len(batch.payloads) == 3
        after = made.context.fold_batch(state, query, batch)
        mean = np.mean([made.payload(name, query.round) for name in ("silo-0", "silo-2", "silo-3")], axis=0)
        if query.round < 6:  # the last round makes the average of all iterates the model
            np.testing.assert_allclose(after.w, state.w - 0.1 * mean, rtol=1e-12)
    assert set(releases(made).values()) == {6}  # charged all the same: they were sent


def test_below_the_minimum_nothing_is_folded_and_it_says_why(tmp_path):
    made = federation(tmp_path, minimum=4)
    made.counter.lost = lambda envelope: (
        ShufflerError("other", "not today") if Envelope.from_bytes(envelope).silo < "silo-2" else None
    )
    with pytest.raises(ShufflerError) as caught:
        next(made.play())
    assert str(caught.value) == (
        "shuffler: round 1.1 of run run: 3 of 5 messages came within 5 s, and no batch of fewer than 4 is handed on; "
        "shuffler: not today"
    )
    made.counter.lost = lambda envelope: None
    assert len(next(made.play())[2].payloads) == 5  # as after a resume
    assert set(releases(made).values()) == {1}


def test_where_all_are_needed_nobody_waits_for_one_that_refused(tmp_path):
    made = federation(tmp_path, minimum=5)
    made.counter.lost = lambda envelope: ShufflerError("silent", "none answers at http://127.0.0.1:1")
    with pytest.raises(ShufflerError, match="none answers"):
        next(made.play())
    assert made.counter.now == 0.0


def test_a_site_returns_nothing_and_answers_no_other_way(made):
    query = made.context.query(made.start)
    at, key = Address("run", 1, 1), made.key
    question = query.digests(query.participants)["silo-0"].hex()
    made.counter.open(Opening(at, query.participants, 2, 5.0, sealed_length(4), question, key.public.hex(), key.owner))
    assert made.site.send(query.to_bytes()) is None
    with pytest.raises(SiloError, match="its answers go to the shuffler alone"):
        made.site.answer(query.to_bytes())
    with pytest.raises(SiloError, match="its answers go to the shuffler alone"):
        made.backend.ask(query)
    payloads = [made.payload(name, 1).tobytes() for name in made.silos]
    for envelope in made.counter.seen:
        for payload in payloads:
            assert payload not in envelope and hashlib.sha256(payload).digest() not in envelope


def test_a_server_that_asks_silos_different_questions_gets_no_batch_of_their_answers(made):
    """A message would unseal only with its own silo's question, and so reveal its sender."""
    query, model = made.context.query(made.start), np.array([0.1, 0.0, 0.0, 0.0])
    question = query.digests(query.participants)["silo-0"].hex()
    at, key = Address("run", 1, 1), made.key
    made.counter.open(Opening(at, query.participants, 2, 5.0, sealed_length(4), question, key.public.hex(), key.owner))
    others = tuple(name for name in query.participants if name != "silo-0")
    made.site.send(replace(query, participants=others).to_bytes())
    with pytest.raises(ShufflerError, match="silo-0 was asked something else"):
        made.site.send(replace(query, participants=("silo-0",), arrays={"w": model}).to_bytes())
    made.counter.now += 5.0
    batch = made.counter.batch(Request(at, key.owner))
    assert (
        len(batch.messages)
        == 4
        == len({key.unsealed(each, bytes.fromhex(question), 4).tobytes() for each in batch.messages})
    )


def test_a_shuffled_run_comes_with_a_route_and_no_other_does(made):
    agreement = made.agreement.to_bytes()
    with pytest.raises(SiloError, match="comes with the address of its shuffler"):
        made.site.approve(agreement)
    other = changed(made.agreement.problem, shuffle=None)
    plain = replace(made.agreement, run="plain", problem=other, plan=made.agreement.method.plan(other).digest)
    with pytest.raises(SiloError, match="is not shuffled, and has no shuffler"):
        made.site.approve(plain.to_bytes(), made.route)
    assert made.site.approve(plain.to_bytes()) == list(made.silos)
    with pytest.raises(SiloError, match="has approved no shuffled run of this id"):
        made.site.send(replace(made.context.query(made.start), run="plain").to_bytes())
    with pytest.raises(SiloError, match="reaches no shuffler"):
        Site(list(made.silos.values())).approve(agreement, made.route)
    for bad in (b"", b"[]", made.route + b" ", Route("ftp://x:1", made.key.public.hex(), 1.0).to_bytes()):
        with pytest.raises(SiloError, match="this is no route"):
            made.site.approve(agreement, bad)


def test_a_site_outlives_bent_queries_and_routes_and_sends_nothing_for_them(made):
    random, query = Random(3), made.context.query(made.start)
    sound, agreement = query.to_bytes(), made.agreement.to_bytes()
    for _ in range(300):
        bent = bent_bytes(random, sound, agreement)
        if bent != sound:
            with pytest.raises(SiloError):
                made.site.send(bent)
        route = bent_bytes(random, made.route, sound)
        try:
            made.site.approve(agreement, route)
        except SiloError as error:
            assert error.sentence.startswith("this is no route: ")
    assert made.counter.seen == []
    # A query that is bent into one about another model is a server's own choice: answered at most once, and charged.
    assert max(releases(made).values()) <= 1 and made.site.approve(agreement, made.route)


def test_a_key_that_is_none_leaves_the_site_with_nothing_sent(made):
    small_order = Route("http://127.0.0.1:1", "00" * 32, 5.0).to_bytes()
    made.site.approve(made.agreement.to_bytes(), small_order)
    with pytest.raises(SiloError, match="no public key of a server"):
        made.site.send(made.context.query(made.start).to_bytes())
    assert made.counter.seen == []


@pytest.mark.parametrize("how", ["sealed to another key", "an answer to another question", "noise"])
def test_a_message_that_does_not_open_stops_the_round(made, how):
    query = made.context.query(made.start)
    digest, payload = query.digests(["silo-0"])["silo-0"], np.ones(4)
    message = {
        "sealed to another key": seal(ServerKey.new().public, digest, payload),
        "an answer to another question": seal(made.key.public, b"\0" * 32, payload),
        "noise": bytes(sealed_length(4)),
    }[how]
    forged = Envelope(Address("run", 1, 1), "silo-0", 2, digest.hex(), made.key.public.hex(), message).to_bytes()
    once = [forged]
    made.counter.lost = lambda envelope: made.counter.shuffler.take(once.pop()) if once else None
    with pytest.raises(ShufflerError, match="1 of its 5 messages were not sealed to this run's key as answers"):
        made.backend.batch(query)


def test_only_batches_of_numbers_of_the_planned_size_are_folded(tmp_path):
    made = federation(tmp_path, minimum=3)
    state, query, batch = next(made.play())
    for payloads in (batch.payloads[:2], (*batch.payloads, batch.payloads[0])):
        with pytest.raises(ShufflerError, match="not 3 to 5"):
            made.context.fold_batch(state, query, Batch.of(payloads))
    for odd in (np.ones(5), np.full(4, np.nan), np.full(4, 1e160)):
        with pytest.raises(ShufflerError, match="is not 4 numbers of norm below"):
            made.context.fold_batch(state, query, Batch.of([*batch.payloads[:4], odd]))


def test_ledgers_are_compared_with_what_was_asked_and_what_came(made):
    made.final()
    accounts = made.site.accounts("run")
    asked = list(made.context.questions_before(None))
    assert len(asked) == 30 and list(made.context.questions_before(made.context.query(made.start))) == []
    compare_shuffled(made.plan, asked, 30, accounts)
    compare_shuffled(made.plan, asked, 25, accounts)
    with pytest.raises(ShufflerError, match="31 messages came in its batches, and ledgers show 30 releases"):
        compare_shuffled(made.plan, asked, 31, accounts)
    more = accounts[0]._replace(releases=7)
    with pytest.raises(SiloError, match="its ledger shows 7 releases"):
        compare_shuffled(made.plan, asked, 30, [more, *accounts[1:]])
    dearer: list[SiloAccount] = [accounts[0]._replace(epsilon=made.plan.silo_epsilon("silo-0") * 1.001), *accounts[1:]]
    with pytest.raises(SiloError, match="planned for epsilon"):
        compare_shuffled(made.plan, asked, 30, dearer)


@pytest.mark.minutes
def test_the_mean_of_a_batch_is_unbiased_with_the_variance_of_local_noise(tmp_path):
    """600 rounds at models that move: mean minus exact mean gradient is N(0, sigma^2 / M) in each of 4 coordinates."""
    made = federation(tmp_path, rounds=600, epsilon=8.0)
    sigmas = {made.plan.phases[0].event(name, 1).sigma for name in made.silos}
    assert len(sigmas) == 1
    left = np.array([np.mean(batch.payloads, axis=0) - made.gradient(state.w) for state, _, batch in made.play()])
    z = left / (sigmas.pop() / np.sqrt(5))
    assert np.abs(z.mean(axis=0) * np.sqrt(len(z))).max() < norm.isf(1e-6)
    assert chi2.isf(1 - 1e-6, z.size) < float((z**2).sum()) < chi2.isf(1e-6, z.size)
    assert float((z**2).sum()) * 5 / 4 > chi2.isf(1e-6, z.size)  # the test would notice noise of four silos
