"""Quantile loss, also called pinball or check loss."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedcore.arrays import Vector
from fedcore.hyperparameters import DECLARED, Real
from fedcore.losses.traits import IDENTITY, REALS, LabelSet, Link
from fedcore.losses.two_slopes import TwoSlopes


@dataclass(frozen=True, config=DECLARED)
class Quantile(TwoSlopes):
    """tau (y - z) below y, (1 - tau)(z - y) above; convex, max(tau, 1 - tau)-Lipschitz in z, for real y.

    A constant predictor that minimises it is a tau-quantile of the labels; tau = 1/2 is half of the absolute loss.
    Source: Koenker and Bassett 1978, Regression quantiles. At z = y the subgradient is 0.
    """

    name: Literal["quantile"] = "quantile"
    tau: Annotated[Real, Field(gt=0, lt=1)] = 0.5

    labels: ClassVar[LabelSet] = REALS
    link: ClassVar[Link] = IDENTITY
    jump: ClassVar[float] = 1.0

    @property
    def lipschitz(self) -> float:
        return max(self.tau, 1.0 - self.tau)

    def slopes(self, y: Vector) -> tuple[float, float]:
        """(-tau, 1 - tau)."""
        return -self.tau, 1.0 - self.tau
