"""Random streams of generated data: one for each purpose and, within it, for each silo or class."""

from __future__ import annotations

from fedcore.draws.stream import Draws
from fedcore.randomness import draws


def stream(seed: int, purpose: int, index: int | None = None) -> Draws:
    """The draws of a purpose, a positive number of one module, and of a silo's or class's index.

    Purposes: 101 to 103 synthetic, 104 generators, 105 and 106 alpha_beta, 107 to 109 similarity, 110 regression, 111
    tables, 112 to 114 teacher, 115 libsvm.
    """
    return draws(b"fedcore data", seed, purpose, *(() if index is None else (index,)))


def silo_names(silos: int) -> tuple[str, ...]:
    """Names of the silos, `silo-000`, ..., in order."""
    return tuple(f"silo-{index:03d}" for index in range(silos))
