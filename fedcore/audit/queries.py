"""The auditing server's questions: about the first model, other models, and the domain's edge.

Any server is within the guarantee, so long as its models are in the domain. A question about two models is about a
public step between them. A step of length zero is answered with zeros, without noise, so questions here have a positive
length.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np

from fedcore.algorithms.statistics.evaluated import MODEL
from fedcore.arrays import Arrays, Vector
from fedcore.audit.audited_silo import AuditedSilo
from fedcore.audit.scenes import unit

BEFORE = "before"
"""Name of the array with the previous model, for questions about its difference from `w`."""
SHORTEST = 1e-6
"""Shortest step at the edge, in units of the distance between two models there."""


class Queries:
    """Arrays that the audited silo receives. `own`: names of those that are for it alone."""

    def __init__(self, audited: AuditedSilo) -> None:
        self.audited = audited
        self.own: frozenset[str] = frozenset()
        self._end: Vector | None = None
        self._first: dict[tuple[int, int], dict[str, np.ndarray]] = {}

    def received(self, arrays: Arrays) -> dict[str, np.ndarray]:
        """This silo's part of a broadcast: its own row of every matrix, and each vector."""
        self.own = self.own | {name for name, array in arrays.items() if array.ndim > 1}
        return {name: array if array.ndim == 1 else array[self.audited.place] for name, array in arrays.items()}

    def first(self, address: tuple[int, int]) -> dict[str, np.ndarray]:
        """The arrays of this round when the model is the first one, and the previous model one step away."""
        phase = self.audited.plan.phases[address[0] - 1]
        alike = (phase.index, phase.kind(address[1]))
        if alike not in self._first:
            method, answer = cast(Any, self.audited.run_method), self.audited.answer
            # The form of a question depends on the round's number only through its kind.
            state = replace(method.init(answer.start), phase=phase.index, round=phase.first_rounds[alike[1]])
            sent = self.received(method.broadcast(state, phase))
            if BEFORE in sent:
                sent[BEFORE] = answer.about[answer.start.size :]
            self._first[alike] = sent
        return self._first[alike]

    def other(self, address: tuple[int, int]) -> dict[str, np.ndarray]:
        """Other arrays of the same names, within the domain; empty for a query without arrays."""
        step = np.zeros(self.audited.plan.problem.objective.dim)
        step[0] = min(1.0, 0.25 * self.audited.plan.problem.objective.diameter)
        return {name: 0.5 * array if array.any() else step for name, array in self.first(address).items()}

    def far(self, address: tuple[int, int], rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Arrays with a model at the edge of the domain; the previous model is on the way to another there.

        Every second step ends at the model of the step before.
        """
        sent = self.first(address)
        found = {name: self._edge(rng, array) if name in ("w", MODEL) else array for name, array in sent.items()}
        if BEFORE in sent:
            found["w"], self._end = (found["w"], found["w"]) if self._end is None else (self._end, None)
            way = self._edge(rng, sent[BEFORE]) - found["w"]
            found[BEFORE] = found["w"] + SHORTEST ** rng.random() * way
        return found

    def _edge(self, rng: np.random.Generator, like: Vector) -> Vector:
        return unit(rng, like.size) * (0.499 * self.audited.plan.problem.objective.diameter)
