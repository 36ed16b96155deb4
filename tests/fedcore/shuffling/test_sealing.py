"""Sealed answers: keys that open them and others, and a second implementation of RFC 9180."""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from fedcore.shuffling.sealing import OVERHEAD, ServerKey, seal, sealed_length

QUESTION, OTHER = b"q" * 32, b"r" * 32
PAYLOAD = np.random.default_rng(3).standard_normal(5)


def extract(salt: bytes, suite: bytes, label: bytes, key: bytes) -> bytes:
    return hmac.digest(salt or bytes(32), b"HPKE-v1" + suite + label + key, "sha256")


def expand(secret: bytes, suite: bytes, label: bytes, info: bytes, length: int) -> bytes:
    info, out, block = length.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info, b"", b""
    for count in range(1, -(-length // 32) + 1):
        block = hmac.digest(secret, block + info + bytes([count]), "sha256")
        out += block
    return out[:length]


def opened_by_the_rfc(private: bytes, info: bytes, sealed: bytes) -> bytes:
    """RFC 9180, section 4.1 (Decap), 5.1 (key schedule of base mode) and 5.2, from HMAC, X25519 and the AEAD alone."""
    key = X25519PrivateKey.from_private_bytes(private)
    encapsulated, text = sealed[:32], sealed[32:]
    shared = key.exchange(X25519PublicKey.from_public_bytes(encapsulated))
    kem, suite = b"KEM" + bytes([0, 0x20]), b"HPKE" + bytes([0, 0x20, 0, 1, 0, 3])
    context = encapsulated + key.public_key().public_bytes_raw()
    secret = expand(extract(b"", kem, b"eae_prk", shared), kem, b"shared_secret", context, 32)
    ids, infos = extract(b"", suite, b"psk_id_hash", b""), extract(b"", suite, b"info_hash", info)
    schedule, made = b"\0" + ids + infos, extract(secret, suite, b"secret", b"")
    aead, nonce = expand(made, suite, b"key", schedule, 32), expand(made, suite, b"base_nonce", schedule, 12)
    return ChaCha20Poly1305(aead).decrypt(nonce, text, b"")


def test_a_sealed_answer_opens_to_the_same_bits_and_is_another_each_time():
    key = ServerKey.new()
    odd = np.array([0.0, -0.0, np.nan, np.inf, 5e-324])
    for payload in (PAYLOAD, odd):
        first, second = seal(key.public, QUESTION, payload), seal(key.public, QUESTION, payload)
        assert first != second and len(first) == len(second) == sealed_length(5) == 40 + OVERHEAD
        assert payload.tobytes() not in first and hashlib.sha256(payload.tobytes()).digest() not in first
        for sealed in (first, second):
            assert key.unsealed(sealed, QUESTION, 5).tobytes() == payload.tobytes()
    assert ServerKey(key.private).public == key.public
    assert len({ServerKey.new().public for _ in range(20)}) == 20


def test_it_is_what_rfc_9180_says():
    key = ServerKey.new()
    sealed = seal(key.public, QUESTION, PAYLOAD)
    info = b"fedcore shuffled answer\0" + QUESTION
    assert opened_by_the_rfc(key.private, info, sealed) == PAYLOAD.tobytes()
    with pytest.raises(Exception):  # noqa: B017  (a control: the second implementation looks at the info, too)
        opened_by_the_rfc(key.private, info + b"x", sealed)


def test_no_byte_can_be_flipped_cut_or_added():
    key = ServerKey.new()
    sealed = seal(key.public, QUESTION, PAYLOAD)
    flips = [(at, bit) for at in range(len(sealed)) for bit in (0, 7)]  # an X25519 key's last bit is masked, too
    bent = [sealed[:at] + bytes([sealed[at] ^ 1 << bit]) + sealed[at + 1 :] for at, bit in flips]
    for other in [*bent, *(sealed[:cut] for cut in range(len(sealed))), sealed + b"\0", b"\0" * len(sealed)]:
        with pytest.raises(ValueError, match="was not sealed to this key as an answer to this question"):
            key.unsealed(other, QUESTION, 5)


def test_it_opens_for_one_key_one_question_and_one_length():
    key = ServerKey.new()
    sealed = seal(key.public, QUESTION, PAYLOAD)
    others = [(ServerKey.new(), QUESTION, 5), (key, OTHER, 5), (key, QUESTION, 4), (key, QUESTION, 0)]
    for holder, question, length in others:
        with pytest.raises(ValueError, match="was not sealed to this key as an answer to this question"):
            holder.unsealed(sealed, question, length)


@pytest.mark.parametrize("public", [b"", b"x" * 31, b"x" * 33, bytes(32), (1).to_bytes(32, "little")])
def test_nothing_is_sealed_to_what_is_no_key(public):
    """A point of the right length but small order: everyone who knows it could open all messages sealed to it."""
    with pytest.raises(ValueError, match="no public key of a server"):
        seal(public, QUESTION, PAYLOAD)


def test_a_private_key_has_one_length_and_its_owners_word_is_its_own():
    for bad in (b"", b"x" * 31, bytearray(32)):
        with pytest.raises(ValueError, match="32 bytes"):
            ServerKey(bad)
    one, other = ServerKey.new(), ServerKey.new()
    assert one.owner == ServerKey(one.private).owner != other.owner
    assert one.public.hex() not in one.owner and one.private.hex() not in one.owner
