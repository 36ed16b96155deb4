"""Signed files: read by people, refused when changed, cut or of another kind."""

from __future__ import annotations

import json

import pytest

from fedcore.errors import InputError
from fedcore.identity.keys import Identity
from fedcore.identity.signed_file import FORM, LARGEST_FILE, read_signed, signed_text

CONTENT = {"name": "cleveland", "records": 303, "columns": ["age", "chol"], "share": 0.1, "city": "Zürich"}


@pytest.fixture
def card(tmp_path):
    signer = Identity.new()
    path = tmp_path / "cleveland.card"
    path.write_text(signed_text("card", CONTENT, signer))
    return path, signer


def test_content_and_signer_come_back(card):
    path, signer = card
    assert read_signed("card", path) == (CONTENT, signer.public)
    assert '"records": 303' in path.read_text()
    path.write_text(json.dumps(json.loads(path.read_text())))  # other spaces are no change
    assert read_signed("card", path) == (CONTENT, signer.public)


@pytest.mark.parametrize("key", ["name", "records", "columns", "share", "city"])
def test_a_changed_value_is_noticed(card, key):
    path, _ = card
    values = json.loads(path.read_text())
    values["content"][key] = 304
    path.write_text(json.dumps(values))
    with pytest.raises(InputError, match=r"cleveland\.card: the card was changed after it was signed"):
        read_signed("card", path)


def test_other_keys_do_not_fit_the_signature(card):
    path, _ = card
    other = Identity.new().public
    for key, value in (("signing_key", other.signing), ("sealing_key", other.sealing)):
        values = json.loads(path.read_text()) | {key: value.hex()}
        (path.parent / "other").write_text(json.dumps(values))
        with pytest.raises(InputError, match="was changed"):
            read_signed("card", path.parent / "other")


def test_a_file_of_another_kind_or_form_says_which(card):
    path, _ = card
    with pytest.raises(InputError, match="no invitation, but holds 'card'"):
        read_signed("invitation", path)
    values = json.loads(path.read_text()) | {"form": FORM + 1}
    path.write_text(json.dumps(values))
    with pytest.raises(InputError, match=f"form {FORM + 1}, and this installation reads form {FORM}"):
        read_signed("card", path)


def test_what_is_no_signed_file_is_one_sentence(card):
    path, _ = card
    text = path.read_text()
    for broken in ("", text[:-20], "[]", "null", "{}", text.replace('"signature"', '"sign"'), "[" * 100_000):
        path.write_text(broken)
        with pytest.raises(InputError, match="no signed file of fedcore, or was cut"):
            read_signed("card", path)
    path.write_bytes(b" " * (LARGEST_FILE + 1))
    with pytest.raises(InputError, match="cannot be read"):
        read_signed("card", path)
    with pytest.raises(InputError, match="cannot be read"):
        read_signed("card", path.parent / "none")
