"""The shared part of methods with local steps: their numbers, and the length of a step.

Noble, Bellet and Dieuleveut, "Differentially Private Federated Learning on Heterogeneous Data", AISTATS 2022 (spec
dp-scaffold 4.0, 4.7).
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedcore.algorithms.method import Traits
from fedcore.hyperparameters import DECLARED, Count, Factor
from fedcore.optim.local import local_step


@dataclass(frozen=True, config=DECLARED, kw_only=True)
class LocalSteps(Traits):
    """Local steps: in a round a silo takes K steps, each along a noised gradient about its own sample."""

    rounds: Annotated[Count, Field(ge=1)] | None = 100
    """T, communication rounds; null: the largest number that keeps to privacy.epsilon with privacy.noise_multiplier."""
    sampling_rate: Annotated[Factor, Field(gt=0, le=1)] = 0.2
    """s: each local step uses floor(s n) of a silo's n records, drawn anew."""
    step: Annotated[Factor, Field(gt=0)] = 1.0
    """eta_0, squared weight per loss: a local step has length eta_0 / max(1, round(s K))."""
    global_step: Annotated[Factor, Field(gt=0)] = 1.0
    """eta_g, without a unit: factor on the mean of the silos' changes."""

    takes_nonconvex: ClassVar[bool] = True
    row_by_row: ClassVar[bool] = True
    takes_given_noise: ClassVar[bool] = True
    several_answers: ClassVar[bool] = True

    @property
    def steps(self) -> int:
        """K, local steps in a round."""
        raise NotImplementedError

    @property
    def length(self) -> float:
        """eta_l, the length of a local step."""
        return local_step(self.step, self.sampling_rate, self.steps)
