"""The server side of methods that average models after local steps.

Source: Noble, Bellet and Dieuleveut 2022, Algorithm 2 (spec dp-scaffold 4.3): `x^t = x^(t-1) + eta_g mean(dy_i)`, with
dy_i = -K eta_l times the silo's mean direction. The projection onto the domain's ball is ours; the paper has none.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedcore.arrays import Vector
from fedcore.optim.averaging import Messages, mean_message
from fedcore.optim.projection import onto_domain
from fedcore.planning.phase import Phase
from fedcore.state import State


@dataclass(frozen=True)
class ModelState(State):
    """`w`: the server's model (d,)."""

    w: Vector


def model_average_update(state: ModelState, messages: Messages, phase: Phase) -> ModelState:
    """The state after a round of mean directions.

    `phase.settings` holds `step` (eta_l) and `global_step` (eta_g).
    """
    w = moved(state.w, mean_message(messages), phase)
    if state.round < phase.rounds:
        return ModelState(state.phase, state.round + 1, w)
    return ModelState(state.phase + 1, 1, w)


def moved(w: Vector, direction: Vector, phase: Phase) -> Vector:
    """The model after K local steps along the mean `direction`, and the global step; in the domain (d,)."""
    length = phase.settings["global_step"] * phase.schedule.answers * phase.settings["step"]
    return onto_domain(w - length * direction, phase.subproblem.diameter, w, phase.subproblem.radius)
