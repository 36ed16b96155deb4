"""Hinge loss."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic.dataclasses import dataclass

from fedcore.arrays import Vector
from fedcore.hyperparameters import DECLARED
from fedcore.losses.traits import SCORE, TWO_CLASSES, LabelSet, Link
from fedcore.losses.two_slopes import TwoSlopes


@dataclass(frozen=True, config=DECLARED)
class Hinge(TwoSlopes):
    """max(0, 1 - y z) for labels y in {-1, +1}; convex, 1-Lipschitz in z, corner at z = y.

    Source: soft-margin classifiers (Cortes, Vapnik 1995); spec localized-isrl-dp 7.4. At the margin y z = 1 the
    subgradient is 0, as for a record beyond it.
    """

    name: Literal["hinge"] = "hinge"

    labels: ClassVar[LabelSet] = TWO_CLASSES
    link: ClassVar[Link] = SCORE
    lipschitz: ClassVar[float] = 1.0
    jump: ClassVar[float] = 1.0

    def slopes(self, y: Vector) -> tuple[Vector, Vector]:
        """(-1, 0) where y = +1 and (0, 1) where y = -1, (n,) each."""
        return np.minimum(-y, 0.0), np.maximum(-y, 0.0)
