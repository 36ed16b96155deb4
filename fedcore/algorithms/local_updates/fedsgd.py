"""DP-FedSGD: DP-FedAvg with about one pass over a silo's records per round.

Noble, Bellet and Dieuleveut 2022, Section 5 ("K s = 1", the experiments; spec dp-scaffold 4.4). Section 2 of the paper
describes FedSGD as one local update instead: `local_steps: one`.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass

from fedcore.algorithms.local_updates.local_averaging import LocalAveraging
from fedcore.hyperparameters import DECLARED


@dataclass(frozen=True, config=DECLARED, kw_only=True)
class Fedsgd(LocalAveraging):
    """`fedavg` with K = round(1/s) local steps (`epoch`), or one (`one`); other keys: `LocalAveraging`."""

    name: Literal["fedsgd"] = "fedsgd"
    local_steps: Literal["epoch", "one"] = "epoch"
    """epoch: K = round(1/s), about one pass over the records; one: K = 1."""

    title: ClassVar[str] = "DP-FedSGD: DP-FedAvg with one local pass"
    source: ClassVar[str] = "Noble, Bellet, Dieuleveut 2022, Section 5"

    @property
    def steps(self) -> int:
        return 1 if self.local_steps == "one" else round(1.0 / self.sampling_rate)
