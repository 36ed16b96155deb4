"""A coordinator's folder: who may join, under whose keys, and the list that a relay gets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedcore.data.federations.card import Card
from fedcore.data.federations.preparation import Preparation
from fedcore.errors import InputError
from fedcore.home import Home
from fedcore.identity.keys import Identity
from fedcore.relay.members import COORDINATOR, Members
from tasks.relay.federation import LIST, Federation

COLUMNS = {"features": {"age": {"range": [20, 90]}}, "label": "disease"}


@pytest.fixture
def heart(tmp_path):
    return Federation.new(Home(tmp_path), "heart", "https://fl.example.org")


def add(heart, name, silo=None, **changes) -> Card:
    silo = silo or Identity.new()
    made = Card(heart.invitation.federation, name, 50, "0" * 32, Preparation(**COLUMNS), "0.2.0", 3, silo.public)
    made = replace(made, **changes)
    heart.add(made, made.text(silo).encode())
    return made


def test_a_federation_is_made_once_and_found_again(heart, tmp_path):
    again = Federation.of(Home(tmp_path), "heart")
    assert again.identity.public == heart.identity.public and again.invitation == heart.invitation
    assert Federation.of_id(Home(tmp_path), heart.invitation.federation).folder == heart.folder
    with pytest.raises(InputError, match="there is a federation heart already"):
        Federation.new(Home(tmp_path), "heart", "https://fl.example.org")
    for find in (lambda: Federation.of(Home(tmp_path), "lung"), lambda: Federation.of_id(Home(tmp_path), "00" * 32)):
        with pytest.raises(InputError, match="no federation"):
            find()


def test_the_list_grows_with_each_silo_and_is_signed(heart):
    made = [add(heart, name) for name in ("cleveland", "hungary")]
    members = heart.members
    assert members.number == 3 and set(members.keys) == {COORDINATOR, "cleveland", "hungary"}
    assert heart.cards == made
    text = members.text(heart.identity).encode()
    assert Members.of_text(text, "list", heart.identity.public, heart.invitation.federation) == members
    heart.remove("cleveland")
    assert heart.members.number == 4 and "cleveland" not in heart.members.keys and heart.cards == made[1:]
    for name in ("cleveland", COORDINATOR):
        with pytest.raises(InputError, match=f"no silo {name} is in federation heart"):
            heart.remove(name)


def test_a_silo_joins_again_with_its_keys_only(heart):
    silo = Identity.new()
    add(heart, "cleveland", silo)
    add(heart, "cleveland", silo, records=51)
    assert [card.records for card in heart.cards] == [51]
    with pytest.raises(InputError, match="another party is named cleveland"):
        add(heart, "cleveland")
    with pytest.raises(InputError, match="another party is named coordinator"):
        add(heart, COORDINATOR)
    with pytest.raises(InputError, match="has the keys of cleveland"):
        add(heart, "hungary", silo)
    with pytest.raises(InputError, match="is of federation 000000000000"):
        add(heart, "hungary", federation="00" * 32)
    with pytest.raises(InputError, match="prepares its records otherwise than cleveland: bias"):
        add(heart, "hungary", preparation=Preparation(**COLUMNS, bias=False))
    assert [card.name for card in heart.cards] == ["cleveland"]


def test_a_card_that_was_put_into_the_folder_counts_for_nothing(heart):
    add(heart, "cleveland")
    thief = Identity.new()
    forged = replace(heart.cards[0], keys=thief.public)
    (heart.folder / "cards" / "cleveland.card").write_text(forged.text(thief))
    with pytest.raises(InputError, match="other keys than the signed list"):
        _ = heart.cards


def test_a_list_of_another_coordinator_is_refused(heart):
    other = Identity.new()
    forged = Members(heart.invitation.federation, 9, {COORDINATOR: other.public})
    (heart.folder / LIST).write_text(forged.text(other))
    with pytest.raises(InputError, match="it is signed by"):
        _ = heart.members
