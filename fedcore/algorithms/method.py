"""What a method is: hyperparameters plus pure functions, between a plan and a model.

The server side is a fold over rounds: broadcast(state) -> messages -> server_update(state, messages). State is frozen,
holds arrays and integers only, and is all that a checkpoint needs. The silo side is `silo_step`, which sees nothing of
a silo but the answers of the `Silo` protocol; each answer is already noised and charged.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, TypeVar

from fedcore.arrays import Arrays, Vector
from fedcore.optim.averaging import Messages
from fedcore.planning.plan import Phase, Plan
from fedcore.planning.problem import Problem
from fedcore.state import State


class Silo(Protocol):
    """What a method may ask of a silo in one round; the silo clips, adds noise and charges by the agreed plan."""

    @property
    def ridge(self) -> float:
        """Weight of the problem's ridge term, which is no part of any answer; public."""
        ...

    def gradient(self, w: Vector) -> Vector:
        """Noised mean of clipped per-record gradients at w (d,), over all records or a sample drawn for this ask."""
        ...

    def moments(self, bound: float) -> Vector:
        """Noised mean of all records' moments (`fedcore.planning.moments`), each record scaled to norm `bound`."""
        ...


S = TypeVar("S", bound=State)


class Method(Protocol[S]):
    """A method of federated learning; one frozen dataclass in one file, listed in `ALGORITHMS`."""

    @property
    def name(self) -> str: ...

    title: ClassVar[str]
    source: ClassVar[str]
    state: ClassVar[type[Any]]

    def plan(self, problem: Problem) -> Plan:
        """All phases, calibrated. Raises InputError naming the key or silo that does not fit."""
        ...

    def init(self, w0: Vector) -> S:
        """State before phase 1, round 1."""
        ...

    def broadcast(self, state: S, phase: Phase) -> Arrays:
        """Arrays that the participating silos receive in the state's round: vectors (d,) all of them.

        Of a matrix (N, d), one row per silo in the problem's order, each receives its own row and no other.
        """
        ...

    def silo_step(self, sent: Arrays, silo: Silo) -> Vector:
        """The silo's message: only what `silo` answered, or a function of it."""
        ...

    def server_update(self, state: S, messages: Messages, phase: Phase) -> S:
        """State after the round; after the last round of a phase, the state at the start of the next one."""
        ...

    def output(self, state: S) -> Vector:
        """The model that the state stands for (d,)."""
        ...
