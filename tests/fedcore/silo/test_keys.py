"""The inputs of secret and seeded keys, each computed a second time."""

import hashlib
import hmac

import numpy as np
import pytest

from fedcore.arrays import digest
from fedcore.draws.stream import Draws
from fedcore.mechanisms.gaussian import SeededGaussian
from fedcore.mechanisms.secret_sample import sample_stream
from fedcore.randomness import derive
from fedcore.silo.keys import SecretKeys, SeededKeys

SECRET, NAMED, QUERY = b"s" * 32, b"n" * 32, b"q" * 32


def mac(key, *parts):
    return hmac.digest(key, digest(*parts), "sha256")


def test_secret_keys_are_those_of_version_0_2():
    """Keys, split and held-out places of a guarded silo, by the formulas that its ledger was begun with."""
    keys = SecretKeys(SECRET)
    key = keys.of_run("ash", "run-7", "terms", "mbsgd")
    assert key == mac(SECRET, b"str:ash", b"str:run-7", b"str:terms", b"str:run key")
    assert keys.of_run("ash", "run-7", "terms", "scaffold") == key  # the terms hold the method
    address = NAMED + (3).to_bytes(8, "little") + (9).to_bytes(8, "little")
    assert keys.address(NAMED, 3, 9, QUERY) == (address, QUERY)

    def numpy_of(key, *parts):
        return np.random.Generator(np.random.Philox(key=int.from_bytes(mac(key, *parts)[:16], "little")))

    assert keys.order(key, "ash", 30, 0).tolist() == numpy_of(key, b"str:split").permutation(30).tolist()
    public = hashlib.sha256(b"fedcore public 0").digest()
    apart = sorted(numpy_of(public, b"str:ash", b"int:30", b"str:held out").permutation(30)[:6].tolist())
    order = keys.order(key, "ash", 30, 6).tolist()
    rest = [row for row in range(30) if row not in apart]
    assert order == [rest[at] for at in numpy_of(key, b"str:split").permutation(24)] + apart
    context = address + (1).to_bytes(8, "little") + QUERY
    assert keys.sample_stream(key, context).words(9).tolist() == sample_stream(key, context).words(9).tolist()
    points = keys.draws(key, context, "smoothing").random(5)
    assert points.tolist() == numpy_of(key, context, b"str:smoothing").random(5).tolist()
    assert not isinstance(keys.noise(), SeededGaussian)


def drawn(
    keys, silo="ash", method="mbsgd", run="run", terms="terms", named=NAMED, query=QUERY, phase=1, round=2, ask=1
):
    """Bits of everything that a silo draws: split, sample, points, noise."""
    key = keys.of_run(silo, run, terms, method)
    before, after = keys.address(named, phase, round, query)
    context = before + ask.to_bytes(8, "little") + after
    return (
        keys.order(key, silo, 40, 8).tolist(),
        keys.sample_stream(key, context).words(4).tolist(),
        keys.draws(key, context, "smoothing").random(4).tolist(),
        keys.noise().draw(key, context, np.zeros(4)).tolist(),
    )


@pytest.mark.parametrize("setting", [{"run": "other"}, {"terms": "other"}, {"named": b"o" * 32}, {"query": b"o" * 32}])
def test_no_setting_is_in_the_keys_of_simulated_silos(setting):
    assert drawn(SeededKeys(5, 1), **setting) == drawn(SeededKeys(5, 1))
    assert drawn(SecretKeys(SECRET), **setting) != drawn(SecretKeys(SECRET))


def test_seed_repetition_silo_method_and_address_are():
    first = drawn(SeededKeys(5, 1))
    others = [
        drawn(SeededKeys(6, 1)),
        drawn(SeededKeys(5, 2)),
        drawn(SeededKeys(5, 1), silo="birch"),
        drawn(SeededKeys(5, 1), method="scaffold"),
    ]
    for other in others:
        assert all(mine != theirs for mine, theirs in zip(first, other, strict=True))
    for address in ({"phase": 2}, {"round": 3}, {"ask": 2}):
        split, *rest = drawn(SeededKeys(5, 1), **address)
        assert split == first[0] and all(mine != theirs for mine, theirs in zip(first[1:], rest, strict=True))


def test_seeded_draws_are_those_of_their_address():
    key = derive(b"fedcore simulation", 5, 1, "ash", "mbsgd")
    split, sample, *_ = drawn(SeededKeys(5, 1))
    address = b"".join(number.to_bytes(8, "little") for number in (1, 2, 1))
    assert sample == Draws(mac(key, address, b"str:sample")[:16]).words(4).tolist()
    apart = split[32:]
    assert apart == sorted(apart) and apart == drawn(SeededKeys(6, 0), method="scaffold")[0][32:]
    order = Draws(mac(key, b"str:split")[:16]).permutation(32)
    rest = [row for row in range(40) if row not in apart]
    assert split[:32] == [rest[at] for at in order]
