"""Addressed randomness: a generator for every (key, address, purpose), never a sequence shared by two draws."""

from __future__ import annotations

import hashlib
import hmac

import numpy as np

from fedcore.arrays import digest


def derive(key: bytes, *address: str | int | bytes) -> bytes:
    """32 bytes that only the holder of `key` can predict: HMAC-SHA256 over the length-prefixed address."""
    parts = [part if isinstance(part, bytes) else f"{type(part).__name__}:{part}".encode() for part in address]
    return hmac.digest(key, digest(*parts), "sha256")


def generator(key: bytes, *address: str | int | bytes) -> np.random.Generator:
    """NumPy generator (Philox, counter mode) keyed by `derive(key, *address)`."""
    return np.random.Generator(np.random.Philox(key=int.from_bytes(derive(key, *address)[:16], "little")))


def simulation_key(seed: int, silo: str) -> bytes:
    """A simulated silo's key. It follows from the public seed, so it protects nobody: every artefact says so."""
    return hashlib.sha256(f"fedcore simulation {seed} {silo}".encode()).digest()


def public_key(seed: int) -> bytes:
    """Key of the server's public draws (which silos take part)."""
    return hashlib.sha256(f"fedcore public {seed}".encode()).digest()


def participants(silos: tuple[str, ...], count: int, key: bytes, run: str, phase: int, round: int) -> tuple[str, ...]:
    """The `count` silos of this round, uniform without replacement, in the order of `silos`; all if count equals N."""
    if count >= len(silos):
        return silos
    chosen = generator(key, run, phase, round, "participation").choice(len(silos), size=count, replace=False)
    return tuple(silos[i] for i in sorted(chosen))
