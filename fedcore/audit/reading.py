"""How a method's message is made of its noised answers: an offset, and a weight for each answer.

A message is affine in the answers for every method here: one answer itself, or the mean direction of local steps, in
which a later step's ridge and proximal terms repeat earlier answers. So a message whose exact sums are known has a
known mean, and Gaussian noise of a known size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fedcore.arrays import Arrays, Vector
from fedcore.audit.answers import Sum
from fedcore.audit.audited_silo import AuditedSilo
from fedcore.errors import InputError
from fedcore.planning.phase import Phase
from fedcore.planning.questions.question import DifferenceQuestion


@dataclass
class _Script:
    """A silo that gives the answers it was told (K, d), and zeros after them; counts how often it was asked."""

    ridge: float
    phase: Phase
    address: tuple[str, int, int]
    answers: np.ndarray
    asked: int = 0
    questions: list[tuple[str, tuple[Vector, ...]]] = field(default_factory=list)

    def ask(self, kind: str, *asked: Vector) -> Vector:
        self.asked += 1
        self.questions.append((kind, asked))
        if self.asked > len(self.answers):
            return np.zeros(self.answers.shape[1])
        return self.answers[self.asked - 1].copy()


@dataclass
class Reader:
    """Reads the messages of a audited's method."""

    audited: AuditedSilo
    _known: dict[tuple[str, ...], Vector] = field(default_factory=dict)

    def weights(self, sent: Arrays) -> Vector:
        """What each of the K answers of a round counts in the message to `sent` (K,).

        Raises InputError for a method that asks another number of times than it planned, or whose message is something
        else than a weighted sum of its answers: then nothing here knows the exact mean.
        """
        names = tuple(sorted(sent))
        if names not in self._known:
            self._known[names] = self._found(sent)
        return self._known[names]

    def offset(self, sent: Arrays) -> Vector:
        """The message to `sent` if all answers were zero (d,)."""
        return self._message(sent, np.zeros((self.audited.answers, self.audited.dim)))

    def unit(self, sent: Arrays) -> float:
        """What sensitivity and noise of the planned event should be multiplied by in the answer to `sent`: 1, or the
        length of the step between two models.

        1 where a method asks several times in a round: then it asks for gradients.
        """
        if self.audited.answers > 1:
            return 1.0
        ((kind, asked),) = self._questions(sent)
        return float(np.linalg.norm(np.subtract(*asked))) if kind == DifferenceQuestion.kind else 1.0

    def fits(self, sent: Arrays, sums: Sequence[Sum]) -> bool:
        """Whether one sum is about what the method asks about; later ones of a round depend on answers before."""
        if self.audited.answers > 1:
            return True
        ((_, asked),) = self._questions(sent)
        return not asked or all(np.array_equal(one.w, np.concatenate(asked)) for one in sums)

    def _questions(self, sent: Arrays) -> list[tuple[str, tuple[Vector, ...]]]:
        return self._told(sent, np.zeros((self.audited.answers, self.audited.dim)))[1]

    def _found(self, sent: Arrays) -> Vector:
        answers, dim = self.audited.answers, self.audited.dim
        offset = self.offset(sent)
        weights = np.empty(answers)
        for at in range(answers):
            impulse = np.zeros((answers, dim))
            impulse[at, 0] = 1.0
            weights[at] = (self._message(sent, impulse) - offset)[0]
        rng = np.random.default_rng(0)
        for scale in (1.0, 1e-3):
            told = scale * rng.standard_normal((answers, dim))
            if not np.allclose(self._message(sent, told), offset + weights @ told, rtol=1e-9, atol=1e-9 * scale):
                raise InputError(
                    f"method {self.audited.method.name} sends something else than a weighted sum of its answers: the "
                    "audit cannot read it"
                )
        return weights

    def _message(self, sent: Arrays, answers: np.ndarray) -> Vector:
        return self._told(sent, answers)[0]

    def _told(self, sent: Arrays, answers: np.ndarray) -> tuple[Vector, list[tuple[str, tuple[Vector, ...]]]]:
        """The message to `sent` if these are the answers, and what was asked for them."""
        phase = self.audited.phases[0]
        script = _Script(self.audited.plan.problem.objective.ridge, phase, (self.audited.silo, phase.index, 1), answers)
        message = self.audited.asking.silo_step(sent, script)
        if script.asked != self.audited.answers:
            raise InputError(
                f"method {self.audited.method.name} asks {script.asked} times in a round planned for "
                f"{self.audited.answers}"
            )
        return message, script.questions
