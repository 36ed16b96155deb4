"""Absolute loss."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass

from fedcore.arrays import Vector
from fedcore.hyperparameters import DECLARED
from fedcore.losses.traits import IDENTITY, REALS, LabelSet, Link
from fedcore.losses.two_slopes import TwoSlopes


@dataclass(frozen=True, config=DECLARED)
class Absolute(TwoSlopes):
    """|z - y| for real y, in units of y; convex, 1-Lipschitz in z.

    A constant predictor that minimises it is a median. At z = y the subgradient is 0. Source: least absolute
    deviations; spec localized-isrl-dp 7.4.
    """

    name: Literal["absolute"] = "absolute"

    labels: ClassVar[LabelSet] = REALS
    link: ClassVar[Link] = IDENTITY
    lipschitz: ClassVar[float] = 1.0
    jump: ClassVar[float] = 2.0

    def slopes(self, y: Vector) -> tuple[float, float]:
        """(-1, 1)."""
        return -1.0, 1.0
