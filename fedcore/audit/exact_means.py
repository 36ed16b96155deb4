"""Exact means of a silo's answers about the auditor's own records, summed record by record."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedcore.accounting.events import GaussianRelease
from fedcore.arrays import Vector
from fedcore.audit.answers import Sum
from fedcore.audit.audited_silo import AuditedSilo
from fedcore.data.records import Records


class ExactMeans:
    """Means before noise that a silo with these records should answer. Equal records are computed once."""

    def __init__(self, audited: AuditedSilo, records: Records) -> None:
        self._audited, self._records = audited, records
        rows = np.column_stack([records.X, records.y])
        _, first, self._kind = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        self._kind = self._kind.ravel()
        self._X, self._y = records.X[first], records.y[first]
        self._alike: tuple[bytes, np.ndarray] | None = None

    def of(self, event: GaussianRelease, one: Sum, order: Callable[[], np.ndarray]) -> Vector:
        """Exact mean of one answer: the sum over records of the shard, or the sample, over the public count."""
        if self._audited.answer.silent and not self._records.X.any():
            return np.zeros(self._audited.dim)
        places = np.arange(event.start, event.stop)
        w, shifts, count = one.w, one.shifts, event.rate * len(places)
        if one.chosen is not None:
            shifts = None if shifts is None else shifts[one.chosen]
            places = places[one.chosen]
        if shifts is not None:
            rows = order()[places]
            parts = self._audited.answer.parts(w, self._records.X[rows], self._records.y[rows], shifts)
            return self._audited.answer.folded(parts.sum(0)) / count
        whole = len(places) == self._audited.n or len(self._X) == 1
        kinds = self._kind[: len(places)] if whole else self._kind[order()[places]]
        return self._audited.answer.folded(np.bincount(kinds, minlength=len(self._X)) @ self._parts(w)) / count

    def _parts(self, w: Vector) -> np.ndarray:
        """Parts that a record of each kind adds about w; cached for the next question about the same w."""
        bits = w.tobytes()
        if self._alike is None or self._alike[0] != bits:
            self._alike = (bits, self._audited.answer.parts(w, self._X, self._y))
        return self._alike[1]
