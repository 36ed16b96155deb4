"""Questions to a silo in one run, its answers, and notes of its exact sums, taken inside it."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np

from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.filters import Cap, Charge
from fedcore.arrays import Arrays
from fedcore.audit.addresses import Sent
from fedcore.audit.answers import AUDITED, Sum
from fedcore.ledger.memory import MemoryLedger
from fedcore.silo.private_silo import PrivateSilo


@dataclass(frozen=True, eq=False)
class Transcript:
    """A answers of one silo in one run, with the exact means and noise that they should have.

    `payload`, `exact` (A, d). `sigma` (A,): of the noise.
    `sums`: notes of each answer's exact sums. `blank` (A,): true if one of them is zero, so that other records without
    gradients have the same. `unit` (A,): the question's factor on the sensitivity and noise of its event. `beside`:
    rounds that were also asked but are not read. They are of another kind, or about a step of length zero, which is
    answered without noise.
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
    unit: np.ndarray
    beside: tuple[Sent, ...] = ()

    @property
    def residuals(self) -> np.ndarray:
        """Release minus exact mean over planned sigma (A, d)."""
        return np.asarray((self.payload - self.exact) / self.sigma[:, None])


class RecordedKeys(MemoryLedger):
    """A ledger in memory that shows the keys of its runs."""

    def __init__(self, silo: str) -> None:
        super().__init__(silo)
        self.keys: dict[str, bytes] = {}

    def open_run(
        self,
        run: str,
        plan: str,
        key: bytes,
        charge: Charge,
        cap: Cap | None,
        person: str | None = None,
        lease: int = 0,
        policy: Cap | None = None,
    ) -> bytes:
        self.keys[run] = super().open_run(run, plan, key, charge, cap, person, lease, policy)
        return self.keys[run]


def watch(silo: PrivateSilo, run: str) -> list[Sum]:
    """A list that receives a note of every exact sum of this run, for kinds that can be audited."""
    notes: list[Sum] = []
    answers = silo._runs[run].answers
    for name in answers.keys() & AUDITED.keys():
        watched, kind = copy.copy(answers[name]), AUDITED[name].watched
        if isinstance(watched, kind):  # the silo under test shares answers between runs
            kind = type(watched)
        elif type(watched) is not kind.__base__:  # or it has an answer class of its own
            kind = type("Watched", (kind, type(watched)), {})
        object.__setattr__(watched, "__class__", kind)
        object.__setattr__(watched, "notes", notes)
        answers[name] = watched
    return notes
