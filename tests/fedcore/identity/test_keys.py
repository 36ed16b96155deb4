"""Identities: what they sign and open, their fingerprints, and their files."""

from __future__ import annotations

import base64
import hashlib
import os

import pytest

from fedcore.errors import InputError
from fedcore.identity.keys import Identity, PublicIdentity
from fedcore.identity.sealing import SealingKey, seal_bytes


def test_a_signature_is_of_one_text_and_one_party():
    ann, bob = Identity.new(), Identity.new()
    signature = ann.sign(b"text")
    ann.public.check_signature(signature, b"text")
    for public, text, signed in (
        (bob.public, b"text", signature),
        (ann.public, b"other", signature),
        (ann.public, b"text", signature[:-1]),
        (ann.public, b"text", bytes(64)),
        (PublicIdentity(bytes(32), ann.public.sealing), b"text", signature),
    ):
        with pytest.raises(ValueError, match="not that of its sender"):
            public.check_signature(signed, text)


def test_it_opens_what_is_sealed_to_it_for_one_purpose():
    key, other = SealingKey.new(), SealingKey.new()
    sealed = seal_bytes(key.public, b"purpose", b"body")
    assert key.opened(sealed, b"purpose") == b"body" and sealed != seal_bytes(key.public, b"purpose", b"body")
    for holder, text, info in ((other, sealed, b"purpose"), (key, sealed, b"another"), (key, sealed[:-1], b"purpose")):
        with pytest.raises(ValueError, match="not sealed to this key"):
            holder.opened(text, info)
    for public in (bytes(32), b"short", (1).to_bytes(32, "little")):  # points of small order have no secret
        with pytest.raises(ValueError, match="no public sealing key"):
            seal_bytes(public, b"purpose", b"body")


def test_a_fingerprint_covers_both_keys_and_forgives_how_it_is_typed():
    one, other = Identity.new().public, Identity.new().public
    raw = hashlib.sha256(b"fedcore identity\0" + one.signing + one.sealing).digest()
    plain = base64.b32encode(raw).decode()[:25]
    assert one.fingerprint == f"{plain[:5]}-{plain[5:10]}-{plain[10:15]}-{plain[15:20]}-{plain[20:]}"
    assert one.is_shown_as(one.fingerprint) and one.is_shown_as(f" {plain[:12].lower()} {plain[12:]}\n")
    for typed in ("", plain[:-1], plain + "A", other.fingerprint, one.fingerprint[::-1]):
        assert not one.is_shown_as(typed)
    mixed = PublicIdentity(one.signing, other.sealing), PublicIdentity(other.signing, one.sealing)
    assert len({each.fingerprint for each in (one, other, *mixed)}) == 4


def test_its_file_is_private_and_is_never_replaced(tmp_path):
    path, made = tmp_path / "keys" / "identity", Identity.new()
    made.store(path)
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    found = Identity.stored(path)
    assert found.public == made.public
    made.public.check_signature(found.sign(b"x"), b"x")
    with pytest.raises(InputError, match="there are keys already"):
        Identity.new().store(path)
    assert Identity.stored(path).public == made.public


def test_a_file_that_others_may_read_or_of_another_length_holds_no_keys(tmp_path):
    path = tmp_path / "identity"
    Identity.new().store(path)
    path.chmod(0o640)
    with pytest.raises(InputError, match="no other can open: chmod 600"):
        Identity.stored(path)
    path.chmod(0o600)
    path.write_bytes(b"k" * 63)
    with pytest.raises(InputError, match="63 bytes, and keys have 64"):
        Identity.stored(path)
    with pytest.raises(InputError, match="cannot be read"):
        Identity.stored(tmp_path / "none")
    os.symlink(path, tmp_path / "link")
    with pytest.raises(InputError, match="cannot be read"):
        Identity.stored(tmp_path / "link")


def test_two_keys_of_32_bytes_make_an_identity():
    with pytest.raises(ValueError, match="two public keys of 32 bytes"):
        PublicIdentity(bytes(31), bytes(32))
    for signing, sealing in ((bytes(31), bytes(32)), (bytes(32), bytes(33))):
        with pytest.raises(ValueError, match="has 32 bytes"):
            Identity(signing, sealing)
