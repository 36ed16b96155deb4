"""A silo's roster: keys that its operator confirmed, which no other party can change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedcore.data.federations.card import Card
from fedcore.data.federations.preparation import Preparation
from fedcore.data.federations.rotation import rotation_text
from fedcore.errors import InputError
from fedcore.identity.keys import Identity
from fedcore.remote.roster import Roster

HEART = "ab" * 32
COLUMNS = {"features": {"age": {"range": [20, 90]}}, "label": "disease"}


@pytest.fixture
def roster(tmp_path):
    return Roster(tmp_path / "roster", "cleveland", HEART)


def written(folder, name="hungary", silo=None, **changes):
    silo = silo or Identity.new()
    card = replace(Card(HEART, name, 50, "0" * 32, Preparation(**COLUMNS), "0.2.0", 3, silo.public), **changes)
    path = folder / f"{name}-{silo.public.fingerprint[:5]}.card"
    path.write_text(card.text(silo))
    return path, card, silo


def test_a_card_is_pinned_and_found_again(roster, tmp_path):
    path, card, _ = written(tmp_path)
    joining = roster.read(path)
    assert roster.cards == [], "a card that was read is not pinned yet"
    roster.pin(joining)
    roster.pin(roster.read(path))
    assert roster.cards == [card]
    roster.unpin("hungary")
    assert roster.cards == []
    with pytest.raises(InputError, match="no keys of hungary"):
        roster.unpin("hungary")


def test_other_keys_under_a_pinned_name_need_both_signatures(roster, tmp_path):
    path, card, silo = written(tmp_path)
    roster.pin(roster.read(path))
    with pytest.raises(InputError, match="other keys are pinned for hungary"):
        roster.read(written(tmp_path)[0])
    fresh, thief = Identity.new(), Identity.new()
    moved = tmp_path / "moved"
    moved.write_text(rotation_text(replace(card, keys=fresh.public).text(fresh), thief))
    with pytest.raises(InputError, match="other keys are pinned for hungary"):
        roster.read(moved)
    moved.write_text(rotation_text(replace(card, keys=fresh.public).text(fresh), silo))
    roster.pin(roster.read(moved))
    assert [each.keys for each in roster.cards] == [fresh.public]


def test_a_card_that_is_not_of_another_silo_of_this_federation_is_refused(roster, tmp_path):
    path, _, silo = written(tmp_path)
    roster.pin(roster.read(path))
    with pytest.raises(InputError, match="this silo's own card"):
        roster.read(written(tmp_path, "cleveland")[0])
    with pytest.raises(InputError, match="is of federation 000000000000"):
        roster.read(written(tmp_path, "virginia", federation="00" * 32)[0])
    with pytest.raises(InputError, match="has the keys of hungary"):
        roster.read(written(tmp_path, "virginia", silo)[0])
    with pytest.raises(InputError, match="cannot be read"):
        roster.read(tmp_path / "none.card")
    stranger, _, _ = written(tmp_path, "virginia", federation="00" * 32)
    (roster.folder / "virginia.card").write_bytes(stranger.read_bytes())
    with pytest.raises(InputError, match="is of another federation"):
        _ = roster.cards
