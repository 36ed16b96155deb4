"""DP-FedProx: DP-FedAvg whose local steps are pulled back to the model they started from.

Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, "Federated Optimization in Heterogeneous Networks", MLSys 2020.
Algorithm 2, with the noised local steps of Noble et al. 2022 (spec dp-scaffold 4.6, an extension of that paper).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedcore.algorithms.local_updates.local_averaging import LocalAveraging
from fedcore.hyperparameters import DECLARED, Count, Factor


@dataclass(frozen=True, config=DECLARED, kw_only=True)
class Fedprox(LocalAveraging):
    """`fedavg` with a proximal term: local directions at y include prox_weight (y - x).

    x is the round's model. At `prox_weight` 0 the arithmetic is that of `fedavg`. Without noise and with all records in
    each answer the models are then equal up to rounding, since the order of records differs. With noise or samples the
    draws differ: their keys include the method. The term depends on no record, so it costs no privacy. Local steps are
    noisy SGD, not the inexact solver of the paper that has the term.
    """

    name: Literal["fedprox"] = "fedprox"
    local_steps: Annotated[Count, Field(ge=1)] = 10
    """K, local steps of a silo in one round; each uses one answer about a sample of its own."""
    prox_weight: Annotated[Factor, Field(ge=0)] = 0.1
    """mu_prox, loss per squared weight: pull of local models back to the round's model; not a step size."""

    title: ClassVar[str] = "DP-FedProx: DP-FedAvg with a proximal term"
    source: ClassVar[str] = "Li et al. 2020, Algorithm 2, with the noise of Noble et al. 2022"

    @property
    def steps(self) -> int:
        return self.local_steps

    @property
    def pull(self) -> float:
        return self.prox_weight

    @property
    def settings(self) -> dict[str, float]:
        return {**super().settings, "prox_weight": self.prox_weight}
