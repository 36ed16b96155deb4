"""The coordinator's list: read by whoever pinned its keys, refused when it is another's."""

from __future__ import annotations

import json

import pytest

from fedcore.errors import InputError
from fedcore.identity.keys import Identity
from fedcore.identity.signed_file import signed_text
from fedcore.relay.members import COORDINATOR, KIND, Members

HEART = "ab" * 32
CHIEF, CLEVELAND, ZURICH = Identity.new(), Identity.new(), Identity.new()
LISTED = Members(HEART, 3, {COORDINATOR: CHIEF.public, "cleveland": CLEVELAND.public, "zurich": ZURICH.public})


def read(text: str, coordinator=CHIEF, federation=HEART) -> Members:
    return Members.of_text(text.encode(), "list", coordinator.public, federation)


def test_it_comes_back():
    assert read(LISTED.text(CHIEF)) == LISTED


def test_only_the_coordinator_of_the_list_signs_it():
    with pytest.raises(ValueError, match="signed by the coordinator whose keys are in it"):
        LISTED.text(ZURICH)


def test_a_list_of_another_coordinator_or_federation_is_refused():
    with pytest.raises(
        InputError, match=f"signed by {CHIEF.public.fingerprint}, and the coordinator is {ZURICH.public.fingerprint}"
    ):
        read(LISTED.text(CHIEF), ZURICH)
    with pytest.raises(InputError, match="federation abababababab, and this one is cdcdcdcdcdcd"):
        read(LISTED.text(CHIEF), federation="cd" * 32)


def content(**changed):
    return json.loads(LISTED.text(CHIEF))["content"] | changed


@pytest.mark.parametrize(
    "values",
    [
        content(number=0),
        content(number=1.5),
        content(number=True),
        content(federation="ab"),
        content(members=[]),
        content(members={"cleveland": ["ab"]}),
        content(members={"clev/land": [CLEVELAND.public.signing.hex(), CLEVELAND.public.sealing.hex()]}),
        content(members={"cleveland": 3}),
        content(more=1),
        {},
    ],
)
def test_its_values_are_checked_though_they_are_signed(values):
    with pytest.raises(InputError, match="other fields, or a value of it is out of bounds"):
        read(signed_text(KIND, values, CHIEF))


def test_its_parties_have_keys_of_their_own_and_the_coordinator_those_of_the_signature():
    members = {name: [keys.signing.hex(), keys.sealing.hex()] for name, keys in LISTED.keys.items()}
    twice = members | {"zurich": members["cleveland"]}
    with pytest.raises(InputError, match="two of its parties have one signing key"):
        read(signed_text(KIND, content(members=twice), CHIEF))
    other = members | {COORDINATOR: members["zurich"]}
    with pytest.raises(InputError, match="other keys for the coordinator"):
        read(signed_text(KIND, content(members=other), CHIEF))
