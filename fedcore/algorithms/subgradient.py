"""The server side of subgradient methods: `fedcore.optim.subgradient`."""

from __future__ import annotations

from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedcore.algorithms.method import Silo, Traits
from fedcore.arrays import Arrays, Vector
from fedcore.hyperparameters import DECLARED
from fedcore.optim.averaging import Messages, mean_message
from fedcore.optim.subgradient import Index, SubgradientState, subgradient_update
from fedcore.planning.phase import Phase


@dataclass(frozen=True, config=DECLARED, kw_only=True)
class Subgradient(Traits):
    """Config keys and functions of methods with steps 2 / (mu k) and an average whose weights grow with k."""

    index: Index = "paper"
    """Start of the step count k: the paper's, or the textbook's, which needs one answer less for the same bound."""

    state: ClassVar[type[SubgradientState]] = SubgradientState
    takes_nonsmooth: ClassVar[bool] = True
    row_by_row: ClassVar[bool] = True

    def init(self, w0: Vector) -> SubgradientState:
        return SubgradientState.start(w0)

    def broadcast(self, state: SubgradientState, phase: Phase) -> Arrays:
        return {"w": state.w}

    def silo_step(self, sent: Arrays, silo: Silo) -> Vector:
        return silo.ask("gradient", sent["w"])

    def server_update(self, state: SubgradientState, messages: Messages, phase: Phase) -> SubgradientState:
        return subgradient_update(state, mean_message(messages), phase, self.index)

    def output(self, state: SubgradientState) -> Vector:
        return state.mean
