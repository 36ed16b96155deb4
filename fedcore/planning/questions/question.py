"""The question of a phase: kind of answer, bound on one record's part, and lengths of messages.

Each kind is a class of its own, and holds the numbers that no other kind needs. `kind` is the name by which a method
requests an answer (`Silo.ask`) and a silo finds its code (`fedcore.silo.answers`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedcore.accounting.rounding import Rounding
from fedcore.planning.sensitivity import second_order
from fedcore.planning.sensitivity.rounding import rounding_of


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question about one model, or about none.

    `clip`: bound C on one record's part of the sum, in the answer's unit. `vectors_down`: arrays (d,) that a silo
    receives in a round.
    """

    gradients: ClassVar[int] = 1
    """Gradients of one record that an answer takes."""

    kind: str
    clip: float
    vectors_down: int = 1

    @property
    def rounding(self) -> Rounding:
        """Slack that rounding adds to the answer's sums."""
        return rounding_of(self.kind)

    @property
    def one_sample(self) -> bool:
        """True if all answers of a round are about one sample, and so are one privacy event."""
        return False

    def length(self, dim: int) -> int:
        """Length of an answer about a model of `dim` weights."""
        return dim

    def sent(self, dim: int) -> int:
        """Length of a silo's message of a round."""
        return self.length(dim)


@dataclass(frozen=True, kw_only=True)
class GradientQuestion(Question):
    """The mean of clipped gradients at a model."""

    kind: Literal["gradient"] = "gradient"


@dataclass(frozen=True, kw_only=True)
class DifferenceQuestion(Question):
    """The mean of clipped differences of gradients at two models.

    Events are in units of the distance of the models. `vectors_up`: arrays (d,) of a silo's message.
    """

    gradients: ClassVar[int] = 2

    kind: Literal["gradient-difference"] = "gradient-difference"
    vectors_down: int = 2
    vectors_up: int = 1

    def sent(self, dim: int) -> int:
        return self.vectors_up * self.length(dim)


@dataclass(frozen=True, kw_only=True)
class SecondOrderQuestion(Question):
    """The means of gradients and Hessians at one model.

    `balance`: squared ratio of the longest Hessian part to the longest gradient part
    (`fedcore.planning.sensitivity.second_order`).
    """

    kind: Literal["gradient-and-hessian"] = "gradient-and-hessian"
    balance: float

    @property
    def rounding(self) -> Rounding:
        longest = second_order.largest_norm(1.0, self.balance)
        return Rounding(longest / second_order.half_diameter(1.0, self.balance))

    def length(self, dim: int) -> int:
        return second_order.length(dim)


@dataclass(frozen=True, kw_only=True)
class QuadraticModelQuestion(Question):
    """The mean of clipped gradients of quadratic models at a displacement.

    `numbers`: coordinates of the model in it. `one_sample`: all answers of a round are about one sample of the records.
    """

    kind: Literal["gradient-and-hessian-vector"] = "gradient-and-hessian-vector"
    numbers: int
    one_sample: bool = False

    def length(self, dim: int) -> int:
        return self.numbers
