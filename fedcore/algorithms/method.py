"""What a method is: hyperparameters plus pure functions, between a plan and a model.

The server side is a fold over rounds: broadcast(state) -> messages -> server_update(state, messages). State is frozen,
holds arrays and integers only, and is all that a checkpoint needs. The silo side is `silo_step`, which sees nothing of
a silo but the answers of the `Silo` protocol; each answer is already noised and charged.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, TypeVar

from fedcore.arrays import Arrays, Vector
from fedcore.optim.averaging import Messages
from fedcore.planning.phase import Phase
from fedcore.planning.plan import Plan
from fedcore.planning.problem import Problem
from fedcore.state import State


class Silo(Protocol):
    """What a method may ask of a silo in one round; the silo clips, adds noise and charges by the agreed plan."""

    @property
    def ridge(self) -> float:
        """Weight of the problem's ridge term, which is no part of any answer; public."""
        ...

    @property
    def address(self) -> tuple[str, int, int]:
        """Its name, the phase and the round: public."""
        ...

    @property
    def phase(self) -> Phase:
        """The agreed phase as it is in this round, with the method's own numbers: public."""
        ...

    def ask(self, kind: str, *asked: Vector) -> Vector:
        """Noised mean over all records, or a sample drawn for this ask, of what the answer of this kind sums (d,).

        gradient: gradients at a model (d,), each clipped to the phase's `clip`; gradient-difference: those at one model
        minus those at another, each difference clipped to the phase's `clip` times the length between; moments:
        `fedcore.planning.sensitivity.moments` of records scaled to its `record_bound`, about nothing;
        gradient-and-hessian: both at a model, as `fedcore.planning.sensitivity.second_order` writes them;
        gradient-and-hessian-vector: gradients of quadratic models around a model, in the coordinates that a mask keeps
        and at a displacement among these, each clipped to the phase's `clip`. Raises SiloError for a kind that the
        phase does not name.
        """
        ...


S = TypeVar("S", bound=State)


class Traits(Protocol):
    """Declarations of a method for the configuration, silos, audits and tests; a method overrides those that differ."""

    title: ClassVar[str]
    source: ClassVar[str]
    state: ClassVar[type[Any]]
    trains: ClassVar[bool] = True
    """Whether it makes a model: one that does not is no choice of `algorithm`."""
    asks: ClassVar[tuple[str, ...]] = ("gradient",)
    """The kinds of answers that its plans name."""
    takes_nonsmooth: ClassVar[bool] = False
    """Whether a nonsmooth loss may be given to it; other methods need a finite smoothness constant."""
    takes_nonconvex: ClassVar[bool] = False
    """Whether a model without convexity may be given to it: its steps are given, not derived from convexity."""
    takes_given_noise: ClassVar[bool] = False
    """Whether noise may be given in place of a target; other methods take numbers of their schedule from epsilon."""
    several_answers: ClassVar[bool] = False
    """Whether silos answer several times in a round."""
    sends_own_arrays: ClassVar[bool] = False
    """Whether its broadcast has an array (N, d), of which each silo receives a row of its own."""
    takes_aggregator: ClassVar[bool] = False
    """Whether a trusted aggregator may stand between silos and server: of other methods, schedules and messages are
    those of silos that add their noise themselves."""
    needs_all_silos: ClassVar[bool] = False
    """Whether all silos have to take part in every round."""
    linear_only: ClassVar[bool] = False
    """Whether it takes a linear predictor and no other model: it asks for Hessians."""
    sends_sums: ClassVar[bool] = True
    """Whether a message is a weighted sum of the answers of its round, which is what an audit can read."""
    vectors_up: ClassVar[int] = 1
    """Largest number of arrays (d,) that a message of a silo is made of."""

    @property
    def from_theory(self) -> tuple[str, ...]:
        """Its hyperparameters that are left to a theorem, which is about convex losses."""
        return ()

    def message_lengths(self, problem: Problem) -> tuple[int, ...]:
        """What a silo's message can be long."""
        return tuple({problem.objective.dim, self.vectors_up * problem.objective.dim})

    def envelope(self, problem: Problem) -> float | None:
        """b of the Moreau envelope of a nonsmooth loss by the method's own theorem, loss per squared weight.

        None: Gao et al.'s, whatever the method (`fedcore.models.smoothing.theory_beta`). `problem` is that of the loss
        itself, whose smoothness is infinite. Raises InputError for noise that is given in place of a target.
        """
        return None

    def shown(self, phase: Phase) -> dict[str, float]:
        """Public numbers of a phase by name, beside its settings: no part of what silos agree to."""
        return {}

    def curve(self, before: Any, after: Any, phase: Phase) -> dict[str, float]:
        """Public numbers of a round by name, of the states before and after it: of releases and the plan alone."""
        return {}


class Method(Traits, Protocol[S]):
    """A method of federated learning; one frozen dataclass with `Traits` in one file, listed in `ALGORITHMS`."""

    @property
    def name(self) -> str: ...

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
