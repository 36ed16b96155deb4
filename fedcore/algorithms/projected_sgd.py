"""The server side of noisy minibatch SGD: projected steps along the mean answer, and an average.

Source: spec localized-isrl-dp 6.4 (`fedcore.optim.sgd`).
"""

from __future__ import annotations

from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedcore.algorithms.method import Silo, Traits
from fedcore.arrays import Arrays, Vector
from fedcore.hyperparameters import DECLARED
from fedcore.optim.averaging import Messages, mean_message
from fedcore.optim.sgd import SgdState, TheoremsAverage, sgd_update
from fedcore.planning.phase import Phase


@dataclass(frozen=True, config=DECLARED, kw_only=True)
class ProjectedSgd(Traits):
    """Config keys and functions of methods whose server takes steps of one length in a phase."""

    average: TheoremsAverage = "uniform"
    """The model of a phase: the uniform average of its iterates, or the last one."""

    state: ClassVar[type[SgdState]] = SgdState
    takes_nonconvex: ClassVar[bool] = True
    row_by_row: ClassVar[bool] = True

    def init(self, w0: Vector) -> SgdState:
        return SgdState.start(w0)

    def broadcast(self, state: SgdState, phase: Phase) -> Arrays:
        return {"w": state.w}

    def silo_step(self, sent: Arrays, silo: Silo) -> Vector:
        return silo.ask("gradient", sent["w"])

    def server_update(self, state: SgdState, messages: Messages, phase: Phase) -> SgdState:
        return sgd_update(state, mean_message(messages), phase, self.average)

    def output(self, state: SgdState) -> Vector:
        return state.model(self.average)
