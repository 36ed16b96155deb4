"""What a silo was asked in one run, and what it sent; and notes of what its sums are about, taken inside of it."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.filters import Cap, Charge
from fedcore.arrays import Arrays, Vector
from fedcore.ledger.ledger import MemoryLedger
from fedcore.silo.answers import Gradient, Piece
from fedcore.silo.private_silo import PrivateSilo


class Sum(NamedTuple):
    """One exact sum as the silo was about to make it: weights (d,), places of the piece (None: all), shifts."""

    w: Vector
    chosen: np.ndarray | None
    shifts: Vector | None


@dataclass(frozen=True, eq=False)
class Transcript:
    """A answers of one silo in one run: `payload`, `exact` (A, d) the mean it should have, `sigma` (A,) its noise.

    `sums`: for each answer, what its sums were about; empty where none was seen (moments). `blank` (A,): whether one of
    its exact sums is zero, so that other records without gradients have the same.
    """

    run: str
    addresses: tuple[tuple[int, int], ...]
    events: tuple[GaussianRelease, ...]
    sent: tuple[Arrays, ...]
    payload: np.ndarray
    exact: np.ndarray
    sigma: np.ndarray
    sums: tuple[tuple[Sum, ...], ...]
    blank: np.ndarray

    @property
    def residuals(self) -> np.ndarray:
        """Release minus exact mean over planned sigma (A, d)."""
        return np.asarray((self.payload - self.exact) / self.sigma[:, None])


class Watching(Gradient):
    """What a silo adds gradients up with, and notes of what its sums are about."""

    notes: list[Sum]

    def clipped_sum(
        self, w: Vector, piece: Piece, chosen: np.ndarray | None = None, shifts: Vector | None = None
    ) -> Vector:
        self.notes.append(Sum(w.copy(), chosen, shifts))
        return super().clipped_sum(w, piece, chosen, shifts)


class KeptKeys(MemoryLedger):
    """A ledger in memory that shows the keys of its runs."""

    def __init__(self, silo: str) -> None:
        super().__init__(silo)
        self.keys: dict[str, bytes] = {}

    def open_run(self, run: str, plan: str, key: bytes, charge: Charge, cap: Cap | None) -> bytes:
        self.keys[run] = super().open_run(run, plan, key, charge, cap)
        return self.keys[run]


def watch(silo: PrivateSilo, run: str) -> list[Sum]:
    """The list to which every sum of gradients of this run is noted from now on."""
    notes: list[Sum] = []
    answers = silo._runs[run].answers
    if Gradient.name in answers:
        watched = copy.copy(answers[Gradient.name])
        kind = Watching if type(watched) is Gradient else type("Watched", (Watching, type(watched)), {})
        object.__setattr__(watched, "__class__", kind)
        object.__setattr__(watched, "notes", notes)
        answers[Gradient.name] = watched
    return notes
