"""A coordinator's folder: who may join, under whose keys, and the list that a relay gets."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fedcore.data.federations.card import Card
from fedcore.data.federations.preparation import Preparation
from fedcore.data.federations.rotation import joining_of_text, rotation_text
from fedcore.errors import InputError
from fedcore.home import Home
from fedcore.identity.keys import Identity
from fedcore.identity.signed_file import signed_text
from fedcore.relay.members import COORDINATOR, Members
from tasks.relay import federation as folder
from tasks.relay.federation import LIST, Federation

COLUMNS = {"features": {"age": {"range": [20, 90]}}, "label": "disease"}


@pytest.fixture
def heart(tmp_path):
    return Federation.new(Home(tmp_path), "heart", "https://fl.example.org")


def add(heart, name, silo=None, **changes) -> Card:
    silo = silo or Identity.new()
    made = Card(heart.invitation.federation, name, 50, "0" * 32, Preparation(**COLUMNS), "0.2.0", 3, silo.public)
    made = replace(made, **changes)
    heart.add(joining_of_text(made.text(silo).encode(), made.name))
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


def rotated(card, silo, signed_by=None):
    """A rotation from `silo` to new keys, as its file's text and those keys."""
    fresh = Identity.new()
    inner = replace(card, keys=fresh.public).text(fresh)
    return joining_of_text(rotation_text(inner, signed_by or silo).encode(), "rotation"), fresh


def test_a_rotation_needs_the_old_keys_and_the_new_ones(heart):
    silo = Identity.new()
    card = add(heart, "cleveland", silo)
    stranger, _ = rotated(card, silo, signed_by=Identity.new())
    with pytest.raises(InputError, match="another party is named cleveland"):
        heart.add(stranger)
    joining, fresh = rotated(card, silo)
    assert joining.replaces == silo.public
    heart.add(joining)
    assert heart.members.keys["cleveland"] == fresh.public and [each.keys for each in heart.cards] == [fresh.public]
    with pytest.raises(InputError, match="another party is named cleveland"):
        heart.add(joining_of_text(card.text(silo).encode(), "old card"))
    heart.add(joining)  # once more changes nothing
    assert heart.members.keys["cleveland"] == fresh.public


def test_a_rotation_that_a_kill_cut_in_half_is_taken_again(heart, monkeypatch):
    silo = Identity.new()
    joining, fresh = rotated(add(heart, "cleveland", silo), silo)
    write = folder._write

    def killed(path, text):
        if path.suffix == ".card":
            raise KeyboardInterrupt
        write(path, text)

    monkeypatch.setattr(folder, "_write", killed)
    with pytest.raises(KeyboardInterrupt):
        heart.add(joining)
    monkeypatch.undo()
    with pytest.raises(InputError, match="other keys than the signed list"):
        _ = heart.cards
    heart.add(joining)
    assert [each.keys for each in heart.cards] == [fresh.public]


@pytest.mark.parametrize("change", ["card", "signature", "kind", "more"])
def test_a_rotation_that_was_changed_is_refused(heart, change):
    silo, fresh = Identity.new(), Identity.new()
    card = replace(add(heart, "cleveland", silo), keys=fresh.public)
    text = rotation_text(card.text(fresh), silo)
    values = json.loads(text)
    if change == "card":
        values["content"]["card"] = values["content"]["card"].replace('"records": 50', '"records": 500')
    elif change == "signature":
        values["signature"] = "0" * 128
    elif change == "kind":
        values["fedcore"] = "invitation"
    else:
        values = json.loads(signed_text("rotation", {"card": card.text(fresh), "more": 1}, silo))
    with pytest.raises(InputError, match=r"changed after it was signed|is no card|other fields"):
        joining_of_text(json.dumps(values).encode(), "rotation")


def test_revoked_keys_never_join_again(heart):
    silo = Identity.new()
    card = add(heart, "cleveland", silo)
    heart.remove("cleveland")
    add(heart, "cleveland", silo)
    heart.remove("cleveland", revokes=True)
    for name in ("cleveland", "hungary"):
        with pytest.raises(InputError, match=f"keys of {name} were revoked"):
            add(heart, name, silo)
    joining, _ = rotated(card, silo)
    heart.add(joining)  # by new keys, after its coordinator has compared their fingerprint
    (heart.folder / folder.REVOKED).write_text("[1]")
    with pytest.raises(InputError, match="no list of revoked keys"):
        add(heart, "hungary")
