"""Linear form of a method's message in its noised answers: an offset, and a weight for each answer.

Every auditable method's message is affine in the answers. It is one answer itself, or the mean direction of local
steps, where a later step's ridge and proximal terms repeat earlier answers. A message whose exact sums are known
therefore has a known mean, and Gaussian noise of a known size.
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
    """A silo whose answers are prescribed (K, d), with zeros after them; counts the questions."""

    ridge: float
    phase: Phase
    address: tuple[str, int, int]
    answers: np.ndarray
    questions: list[tuple[str, tuple[Vector, ...]]] = field(default_factory=list)

    def ask(self, kind: str, *arrays: Vector) -> Vector:
        self.questions.append((kind, arrays))
        if len(self.questions) > len(self.answers):
            return np.zeros(self.answers.shape[1])
        return self.answers[len(self.questions) - 1].copy()


@dataclass
class Reader:
    """Reads the messages of an audited silo's method."""

    audited: AuditedSilo
    _known: dict[tuple[str, ...], Vector] = field(default_factory=dict)

    def weights(self, sent: Arrays) -> Vector:
        """Weight of each of a round's K answers in the message to `sent` (K,).

        Raises InputError for a method that asks another number of times than it planned. Raises it also for a message
        that is no weighted sum of its answers, whose exact mean is unknown.
        """
        names = tuple(sorted(sent))
        if names not in self._known:
            self._known[names] = self._found(sent)
        return self._known[names]

    def offset(self, sent: Arrays) -> Vector:
        """The message to `sent` if all answers were zero (d,)."""
        return self._message(sent, np.zeros((self.audited.answers, self.audited.dim)))

    def unit(self, sent: Arrays) -> float:
        """Factor on the planned sensitivity and noise in the answer to `sent`: 1, or the step's length.

        The step is that between two models. 1 where a method asks several times in a round: it then asks for gradients.
        """
        if self.audited.answers > 1:
            return 1.0
        ((kind, arrays),) = self._questions(sent)
        return float(np.linalg.norm(np.subtract(*arrays))) if kind == DifferenceQuestion.kind else 1.0

    def fits(self, sent: Arrays, sums: Sequence[Sum]) -> bool:
        """True if each sum is about the arrays of the method's question.

        Always true for several answers in a round: later questions depend on earlier answers.
        """
        if self.audited.answers > 1:
            return True
        ((_, arrays),) = self._questions(sent)
        return not arrays or all(np.array_equal(one.w, np.concatenate(arrays)) for one in sums)

    def _questions(self, sent: Arrays) -> list[tuple[str, tuple[Vector, ...]]]:
        return self._step(sent, np.zeros((self.audited.answers, self.audited.dim)))[1]

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
            drawn = scale * rng.standard_normal((answers, dim))
            if not np.allclose(self._message(sent, drawn), offset + weights @ drawn, rtol=1e-9, atol=1e-9 * scale):
                raise InputError(
                    f"method {self.audited.method.name} sends something else than a weighted sum of its answers: the "
                    "audit cannot read it"
                )
        return weights

    def _message(self, sent: Arrays, answers: np.ndarray) -> Vector:
        return self._step(sent, answers)[0]

    def _step(self, sent: Arrays, answers: np.ndarray) -> tuple[Vector, list[tuple[str, tuple[Vector, ...]]]]:
        """The message to `sent` if these are the answers, and the method's questions for them."""
        phase = self.audited.phases[0]
        script = _Script(self.audited.plan.problem.objective.ridge, phase, (self.audited.silo, phase.index, 1), answers)
        message = self.audited.run_method.silo_step(sent, script)
        if len(script.questions) != self.audited.answers:
            raise InputError(
                f"method {self.audited.method.name} asks {len(script.questions)} times in a round planned for "
                f"{self.audited.answers}"
            )
        return message, script.questions
