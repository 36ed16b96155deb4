"""Addressed randomness: one stream for each (key, address, purpose), none shared by two draws.

Simulated and public draws come from `fedcore.draws` and are the same on every machine. `generator` is NumPy's, for
draws of guarded silos.
"""

from __future__ import annotations

import hmac

import numpy as np

from fedcore.arrays import digest
from fedcore.draws.stream import Draws


def derive(key: bytes, *address: str | int | bytes) -> bytes:
    """32 bytes that only a holder of `key` can predict: HMAC-SHA256 over the address."""
    parts = [part if isinstance(part, bytes) else f"{type(part).__name__}:{part}".encode() for part in address]
    return hmac.digest(key, digest(*parts), "sha256")


def generator(key: bytes, *address: str | int | bytes) -> np.random.Generator:
    """NumPy generator (Philox, counter mode) keyed by `derive(key, *address)`."""
    return np.random.Generator(np.random.Philox(key=int.from_bytes(derive(key, *address)[:16], "little")))


def draws(key: bytes, *address: str | int | bytes) -> Draws:
    """Simulated or public draws keyed by `derive(key, *address)`."""
    return Draws(derive(key, *address)[:16])


def simulation_key(seed: int, repetition: int, silo: str, method: str) -> bytes:
    """Key of all draws of a simulated silo under one method.

    The key follows from the public seed, so its noise protects no record, and every artefact states that. It depends
    on no setting: runs that differ in a setting alone share noise, samples and split.
    """
    return derive(b"fedcore simulation", seed, repetition, silo, method)


def public_key(seed: int) -> bytes:
    """Key of public draws that all methods share: the first weights, and draws by their seeds."""
    return derive(b"fedcore public", seed)


def driver_key(seed: int, repetition: int, method: str) -> bytes:
    """Key of a driver's draws: participants, and the noise of a simulated aggregator."""
    return derive(public_key(seed), repetition, method)


def participants(silos: tuple[str, ...], count: int, key: bytes, phase: int, round: int) -> tuple[str, ...]:
    """The `count` silos of this round, uniform without replacement, in the order of `silos`.

    The participants of a smaller count are a subset of those of a larger one.
    """
    if count >= len(silos):
        return silos
    chosen = draws(key, phase, round, "participation").choice(len(silos), count, replace=False)
    return tuple(silos[i] for i in sorted(chosen))
