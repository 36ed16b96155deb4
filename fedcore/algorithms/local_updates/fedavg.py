"""DP-FedAvg: averages of models after local noisy SGD steps.

Noble, Bellet and Dieuleveut, "Differentially Private Federated Learning on Heterogeneous Data", AISTATS 2022. Algorithm
2 (spec dp-scaffold 4.3); without noise the FedAvg of McMahan et al. 2017.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedcore.algorithms.local_updates.local_averaging import LocalAveraging
from fedcore.hyperparameters import DECLARED, Count


@dataclass(frozen=True, config=DECLARED, kw_only=True)
class Fedavg(LocalAveraging):
    """Local steps on fresh samples, then the mean of the silos' models (`LocalAveraging`)."""

    name: Literal["fedavg"] = "fedavg"
    local_steps: Annotated[Count, Field(ge=1)] = 10
    """K, local steps of a silo in one round; each uses one answer about a sample of its own."""

    title: ClassVar[str] = "DP-FedAvg: averaged models after local noisy SGD"
    source: ClassVar[str] = "Noble, Bellet, Dieuleveut 2022, Algorithm 2"

    @property
    def steps(self) -> int:
        return self.local_steps
