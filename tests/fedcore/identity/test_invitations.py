"""Invitations: what comes back, and what is refused."""

from __future__ import annotations

import pytest

from fedcore.errors import InputError
from fedcore.identity.invitation import KIND, Invitation
from fedcore.identity.keys import Identity
from fedcore.identity.signed_file import signed_text

CHIEF = Identity.new()


def test_it_comes_back_with_the_coordinators_keys(tmp_path):
    made = Invitation.new("heart", "https://fl.example.org/", CHIEF.public)
    (tmp_path / "heart.invitation").write_text(made.text(CHIEF))
    assert Invitation.read(tmp_path / "heart.invitation") == made
    assert made.relay == "https://fl.example.org" and made.coordinator == CHIEF.public
    assert made.federation != Invitation.new("heart", "https://fl.example.org", CHIEF.public).federation


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "x" * 64, "ü"])
def test_a_name_is_part_of_a_file_name(name):
    with pytest.raises(InputError, match="1 to 63 letters, digits"):
        Invitation.new(name, "https://fl.example.org", CHIEF.public)


@pytest.mark.parametrize(
    "relay",
    [
        "fl.example.org",
        "ftp://fl.example.org",
        "https://",
        "https://a@b",
        "https://h/p",
        "http://h:0",
        "http://h:x",
        "h\n",
    ],
)
def test_a_relay_has_an_address(relay):
    with pytest.raises(InputError, match="no address of a relay"):
        Invitation.new("heart", relay, CHIEF.public)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({}, "other fields"),
        ({"federation": "ab" * 32, "name": "heart", "relay": "https://h", "more": 1}, "other fields"),
        ({"federation": "ab", "name": "heart", "relay": "https://h"}, "1 to 63 letters"),
        ({"federation": "ab" * 32, "name": 3, "relay": "https://h"}, "1 to 63 letters"),
        ({"federation": "ab" * 32, "name": "heart", "relay": "h"}, "no address"),
    ],
)
def test_its_values_are_checked_though_they_are_signed(tmp_path, content, why):
    (tmp_path / "file").write_text(signed_text(KIND, content, CHIEF))
    with pytest.raises(InputError, match=why):
        Invitation.read(tmp_path / "file")
