"""The relay: whom it serves, what it keeps until when, and all that it refuses."""

from __future__ import annotations

import json
import sqlite3

import pytest

from fedcore.errors import InputError, Refused
from fedcore.identity.envelope import Envelope
from fedcore.identity.keys import Identity
from fedcore.relay.acknowledgements import acknowledgement
from fedcore.relay.mailboxes import Mailboxes
from fedcore.relay.members import COORDINATOR
from fedcore.relay.relay import FAILED, FULL, LONG, OLD, OTHER, Relay
from fedcore.relay.sessions import (
    CHALLENGED,
    FORM,
    MOST_CHALLENGES,
    MOST_SESSIONS,
    OPEN,
    UNKNOWN,
    claim,
)
from tests.fedcore.relay.conftest import HEART, PARTIES, STRANGER, Place, envelope, listed

MOST = 2**20


def refused(code, act):
    with pytest.raises(Refused) as found:
        act()
    assert found.value.code == code, found.value.sentence
    return found.value.sentence


def taken(place, name, *envelopes, signer=None):
    digests = [Envelope.from_bytes(each).digest for each in envelopes]
    return place.relay.acknowledge(place.token(name), acknowledgement(signer or PARTIES[name], HEART, name, digests))


def test_an_envelope_waits_until_its_receiver_says_that_it_has_it(place):
    first, second = (envelope(COORDINATOR, "cleveland", 1, run=run) for run in ("one", "two"))
    sender = place.token(COORDINATOR)
    place.relay.deposit(sender, first)
    place.relay.deposit(sender, second)
    assert place.came == ["cleveland", "cleveland"]
    silo = place.token("cleveland")
    for _ in range(2):  # to hand out is not to delete
        assert place.relay.collect(silo, MOST) == [first, second]
    assert place.relay.collect(place.token("zurich"), MOST) == []
    assert taken(place, "cleveland", first) == 1 and place.relay.collect(silo, MOST) == [second]
    assert taken(place, "cleveland", first, second) == 1 and place.relay.collect(silo, MOST) == []


def test_it_keeps_envelopes_over_its_own_death(place):
    data = envelope(COORDINATOR, "cleveland", 1)
    place.relay.deposit(place.token(COORDINATOR), data)
    old = place.token("cleveland")
    place.start()  # no close: the process was killed
    refused(UNKNOWN, lambda: place.relay.collect(old, MOST))
    assert place.relay.collect(place.token("cleveland"), MOST) == [data]
    refused(OLD, lambda: place.relay.deposit(place.token(COORDINATOR), envelope(COORDINATOR, "cleveland", 1, b"new")))


def test_a_portion_holds_at_least_one_envelope(place):
    all_of_them = [envelope(COORDINATOR, "cleveland", 1, b"x" * 1000, run=f"run-{at}") for at in (1, 2, 3)]
    for each in all_of_them:
        place.relay.deposit(place.token(COORDINATOR), each)
    silo = place.token("cleveland")
    assert place.relay.collect(silo, 1) == all_of_them[:1]
    assert place.relay.collect(silo, 2 * len(all_of_them[0])) == all_of_them[:2]


def test_a_challenge_opens_one_session_for_a_minute(place):
    challenge = place.relay.challenge()
    made = claim(PARTIES["zurich"], HEART, "zurich", challenge)
    assert place.relay.session(made)
    refused(UNKNOWN, lambda: place.relay.session(made))
    late = claim(PARTIES["zurich"], HEART, "zurich", place.relay.challenge())
    place.now += CHALLENGED
    refused(UNKNOWN, lambda: place.relay.session(late))
    refused(UNKNOWN, lambda: place.relay.session(claim(PARTIES["zurich"], HEART, "zurich", bytes(32))))


@pytest.mark.parametrize(
    ("name", "signer", "federation"),
    [
        ("zurich", STRANGER, HEART),
        ("zurich", PARTIES["cleveland"], HEART),
        ("geneva", STRANGER, HEART),
        ("zurich", PARTIES["zurich"], "cd" * 32),
    ],
)
def test_a_session_is_for_the_party_that_signed(place, name, signer, federation):
    refused(UNKNOWN, lambda: place.relay.session(claim(signer, federation, name, place.relay.challenge())))


def test_a_session_ends_and_a_party_has_few_at_a_time(place):
    first = place.token("zurich")
    place.now += OPEN - 1
    assert place.relay.collect(first, MOST) == []
    place.now += 1
    refused(UNKNOWN, lambda: place.relay.collect(first, MOST))
    tokens = [place.token("zurich") for _ in range(MOST_SESSIONS + 1)]
    refused(UNKNOWN, lambda: place.relay.collect(tokens[0], MOST))
    assert all(place.relay.collect(token, MOST) == [] for token in tokens[1:])


def test_challenges_do_not_fill_the_memory(place):
    first = place.relay.challenge()
    for _ in range(MOST_CHALLENGES):
        place.relay.challenge()
    refused(UNKNOWN, lambda: place.relay.session(claim(PARTIES["zurich"], HEART, "zurich", first)))


def test_a_party_leaves_its_own_envelopes_alone(place):
    zurich, coordinator = place.token("zurich"), place.token(COORDINATOR)
    assert "envelope that of coordinator" in refused(
        OTHER, lambda: place.relay.deposit(zurich, envelope(COORDINATOR, "cleveland", 1))
    )
    data = envelope(COORDINATOR, "cleveland", 1)
    broken = Envelope.from_bytes(data)
    forged = Envelope(broken.heading, bytes(64), broken.sealed).to_bytes()
    refused(OTHER, lambda: place.relay.deposit(coordinator, forged))
    other = envelope(COORDINATOR, "cleveland", 1, federation="cd" * 32)
    assert "another federation" in refused(OTHER, lambda: place.relay.deposit(coordinator, other))
    for token in ("", "0" * 64, coordinator[:-1]):
        refused(UNKNOWN, lambda token=token: place.relay.deposit(token, data))
    for bytes_ in (b"", b"[]", data[:100], b"x" * 1000):
        refused(FORM, lambda bytes_=bytes_: place.relay.deposit(coordinator, bytes_))
    assert place.relay.waiting() == 0


def test_a_replayed_envelope_is_refused_and_a_repeated_one_is_stored_once(place):
    token, first, second = place.token(COORDINATOR), *(envelope(COORDINATOR, "zurich", at) for at in (1, 2))
    place.relay.deposit(token, first)
    place.relay.deposit(token, first)  # the sender did not get the answer
    assert place.relay.waiting() == 1
    place.relay.deposit(token, second)
    assert place.relay.collect(place.token("zurich"), MOST) == [second], "a later call replaces the one before it"
    refused(OLD, lambda: place.relay.deposit(token, first))
    taken(place, "zurich", first, second)
    refused(OLD, lambda: place.relay.deposit(token, first))
    place.relay.deposit(token, second)  # the newest is known, though it is gone
    assert place.relay.waiting() == 0
    place.relay.deposit(token, envelope(COORDINATOR, "cleveland", 1))
    place.relay.deposit(token, envelope(COORDINATOR, "zurich", 1, run="run-2"))


def test_only_the_receivers_signature_deletes(place):
    data = envelope(COORDINATOR, "cleveland", 1)
    place.relay.deposit(place.token(COORDINATOR), data)
    refused(OTHER, lambda: taken(place, "cleveland", data, signer=PARTIES["zurich"]))
    assert taken(place, "zurich", data) == 0
    assert place.relay.collect(place.token("cleveland"), MOST) == [data]


def test_quotas_bound_what_waits_of_one_sender(tmp_path):
    size = len(envelope(COORDINATOR, "zurich", 1))
    place = Place(tmp_path, envelopes=2, size=10 * size, one=size + 10, days=1.0)
    token = place.token(COORDINATOR)
    assert "longer than the" in refused(
        LONG, lambda: place.relay.deposit(token, envelope(COORDINATOR, "zurich", 1, b"x" * 100))
    )
    for run in ("one", "two"):
        place.relay.deposit(token, envelope(COORDINATOR, "zurich", 1, run=run))
    assert "2 envelopes of coordinator wait" in refused(
        FULL, lambda: place.relay.deposit(token, envelope(COORDINATOR, "zurich", 3))
    )
    place.relay.deposit(place.token("zurich"), envelope("zurich", COORDINATOR, 3))  # another sender has its own
    place.now += 86401
    place.relay.deposit(place.token(COORDINATOR), envelope(COORDINATOR, "zurich", 3))  # what was too old is gone
    assert place.relay.waiting() == 1
    place.boxes.close()
    place = Place(tmp_path / "small", envelopes=9, size=int(1.5 * size))
    place.relay.deposit(place.token(COORDINATOR), envelope(COORDINATOR, "zurich", 1))
    refused(FULL, lambda: place.relay.deposit(place.token(COORDINATOR), envelope(COORDINATOR, "zurich", 2, run="two")))
    place.boxes.close()


def test_a_newer_list_ends_what_a_removed_party_has(place):
    place.relay.deposit(place.token(COORDINATOR), envelope(COORDINATOR, "zurich", 1))
    place.relay.deposit(place.token(COORDINATOR), envelope(COORDINATOR, "cleveland", 1))
    tokens = {name: place.token(name) for name in PARTIES}
    without = listed(2)
    del without.keys["zurich"]  # a plain dict here
    assert not place.relay.serve(listed(0)) and place.relay.serve(without) and place.relay.serve(without)
    assert not place.relay.serve(listed(1)) and not place.relay.serve(listed(2)), "one number has one list"
    refused(UNKNOWN, lambda: place.relay.collect(tokens["zurich"], MOST))
    refused(UNKNOWN, lambda: place.token("zurich"))
    refused(UNKNOWN, lambda: place.relay.deposit(tokens[COORDINATOR], envelope(COORDINATOR, "zurich", 2)))
    assert len(place.relay.collect(tokens["cleveland"], MOST)) == place.relay.waiting() == 1
    rotated = Identity.new()
    assert place.relay.serve(listed(3, cleveland=rotated))
    refused(UNKNOWN, lambda: place.relay.collect(tokens["cleveland"], MOST))
    assert len(place.relay.collect(place.token("cleveland", rotated), MOST)) == 1


def test_the_coordinator_sees_when_the_others_came(place):
    place.token("cleveland")
    silo = place.token("cleveland")
    place.relay.collect(silo, MOST)
    place.now += 30
    coordinator = place.token(COORDINATOR)
    place.relay.deposit(coordinator, envelope(COORDINATOR, "zurich", 1))
    seen = place.relay.seen(coordinator)
    assert (seen["cleveland"].ago, seen["cleveland"].waiting) == (30.0, 0)
    assert (seen["zurich"].ago, seen["zurich"].waiting) == (None, 1)
    refused(OTHER, lambda: place.relay.seen(silo))


def test_claims_and_acknowledgements_have_one_form(place):
    token = place.token("zurich")
    wrong = [b"", b"[]", b"{}", b"null", b"[" * 5000, json.dumps(["zurich", "ab", "cd"]).encode(), b"\xff" * 40]
    for data in wrong:
        refused(FORM, lambda data=data: place.relay.session(data))
        refused(FORM, lambda data=data: place.relay.acknowledge(token, data))
    many = json.dumps([["ab" * 32] * 1025, "ab" * 64]).encode()
    refused(FORM, lambda: place.relay.acknowledge(token, many))


def test_a_disk_that_fails_is_said_and_nothing_is_lost(place, monkeypatch):
    data = envelope(COORDINATOR, "cleveland", 1)
    token = place.token(COORDINATOR)

    def full(*_):
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(place.boxes, "put", full)
        refused(FAILED, lambda: place.relay.deposit(token, data))
    place.relay.deposit(token, data)
    assert place.relay.collect(place.token("cleveland"), MOST) == [data]


def test_a_folder_that_is_none_is_an_error_of_the_operator(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"envelopes .* cannot be opened"):
        Mailboxes(tmp_path / "file" / "envelopes.sqlite")


def test_a_list_that_cannot_be_stored_is_not_served(place):
    """Else the relay would serve a removed party again when it starts anew."""

    def full() -> None:
        raise InputError("no space left")

    zurich = place.token("zurich")
    without = listed(2)
    del without.keys["zurich"]
    refused(FAILED, lambda: place.relay.serve(without, full))
    assert place.relay.collect(zurich, MOST) == []
    stored = []
    assert place.relay.serve(without, lambda: stored.append(1)) and stored
    refused(UNKNOWN, lambda: place.relay.collect(zurich, MOST))


def test_a_relay_that_starts_with_a_newer_list_drops_what_waits_for_a_removed_party(place):
    place.relay.deposit(place.token(COORDINATOR), envelope(COORDINATOR, "zurich", 1))
    without = listed(2)
    del without.keys["zurich"]
    assert Relay(place.boxes, without, clock=lambda: place.now).waiting() == 0


def test_parties_write_to_the_coordinator_and_not_to_each_other_nor_from_the_future(place):
    zurich, coordinator = place.token("zurich"), place.token(COORDINATOR)
    assert "write to the coordinator" in refused(
        OTHER, lambda: place.relay.deposit(zurich, envelope("zurich", "cleveland", 1))
    )
    refused(OTHER, lambda: place.relay.deposit(coordinator, envelope(COORDINATOR, COORDINATOR, 1)))
    late = int((place.now + 2 * 86400) * 1e6)
    assert "set the clocks right" in refused(
        OTHER, lambda: place.relay.deposit(coordinator, envelope(COORDINATOR, "zurich", late))
    )
