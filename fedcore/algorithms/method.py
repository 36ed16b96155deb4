"""The interface of a method: hyperparameters, and pure functions between a plan and a model.

The server side is a fold over rounds: broadcast(state) -> messages -> server_update(state, messages). State is frozen,
holds arrays and integers only, and is all that a checkpoint needs. The silo side is `silo_step`. It sees only the
answers of the `Silo` protocol; each answer is already noised and charged.
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
    """A silo's side of one round for methods; it clips, adds noise and charges by the agreed plan."""

    @property
    def ridge(self) -> float:
        """Weight of the problem's ridge term, which no answer contains; public."""
        ...

    @property
    def address(self) -> tuple[str, int, int]:
        """Name, phase and round: public."""
        ...

    @property
    def phase(self) -> Phase:
        """The agreed phase in this round's form, with the method's own numbers: public."""
        ...

    def ask(self, kind: str, *arrays: Vector) -> Vector:
        """Noised mean of one kind of answer, over all records or a sample drawn for this call (d,).

        - gradient: gradients at a model (d,), each clipped to the phase's `clip`.
        - gradient-difference: gradients at one model minus those at another. Each difference is clipped to `clip` times
          the distance of the models.
        - moments: `fedcore.planning.sensitivity.moments` of records scaled to the phase's `record_bound`, without a
          model.
        - gradient-and-hessian: both at a model, as `fedcore.planning.sensitivity.second_order` writes them.
        - gradient-and-hessian-vector: gradients of quadratic models around a model. They are in the coordinates of a
          mask, at a displacement among these, and each is clipped to `clip`.

        Raises SiloError for a kind that the phase does not name.
        """
        ...


S = TypeVar("S", bound=State)


class Traits(Protocol):
    """A method's declarations for configuration, silos, audits and tests, with defaults to override."""

    title: ClassVar[str]
    source: ClassVar[str]
    state: ClassVar[type[Any]]
    trains: ClassVar[bool] = True
    """True for a method that makes a model; others are no choice of `algorithm`."""
    asks: ClassVar[tuple[str, ...]] = ("gradient",)
    """The kinds of answers that its plans name."""
    takes_nonsmooth: ClassVar[bool] = False
    """True if it accepts a nonsmooth loss; other methods need a finite smoothness constant."""
    takes_nonconvex: ClassVar[bool] = False
    """True if it accepts a nonconvex model: its steps are given, not derived from convexity."""
    takes_given_noise: ClassVar[bool] = False
    """True if it accepts noise in place of a target; other methods take numbers of their schedule from epsilon."""
    several_answers: ClassVar[bool] = False
    """True if silos answer several times in a round."""
    sends_own_arrays: ClassVar[bool] = False
    """True if its broadcast has an array (N, d), of which each silo receives its own row."""
    takes_aggregator: ClassVar[bool] = False
    """True if it accepts a trusted aggregator between silos and server. Other methods' schedules and messages assume
    silos that add their noise themselves."""
    needs_all_silos: ClassVar[bool] = False
    """True if all silos have to take part in every round."""
    row_by_row: ClassVar[bool] = False
    """True if `silo_step` treats each row of arrays (silos, d) by itself. A site then calls it once for all its
    simulated silos, with answers as matrices; a round in turn asks one silo alone."""
    linear_only: ClassVar[bool] = False
    """True if it accepts only a linear predictor, because it uses Hessians."""
    sends_sums: ClassVar[bool] = True
    """True if a message is a weighted sum of the answers of its round, the form that an audit can read."""
    vectors_up: ClassVar[int] = 1
    """Largest number of arrays (d,) in a silo's message."""

    @property
    def from_theory(self) -> tuple[str, ...]:
        """Hyperparameters that are left to a theorem, which is about convex losses."""
        return ()

    def message_lengths(self, problem: Problem) -> tuple[int, ...]:
        """Possible lengths of a silo's message."""
        return tuple({problem.objective.dim, self.vectors_up * problem.objective.dim})

    def envelope(self, problem: Problem) -> float | None:
        """b of the Moreau envelope of a nonsmooth loss by the method's own theorem.

        Unit: loss per squared weight. None: Gao et al.'s b, whatever the method
        (`fedcore.models.smoothing.theory_beta`). `problem` is that of the loss itself, whose smoothness is infinite.
        Raises InputError for noise that is given in place of a target.
        """
        return None

    def shown(self, phase: Phase) -> dict[str, float]:
        """Public numbers of a phase by name, beside its settings; not part of the agreement with silos."""
        return {}

    def curve(self, before: Any, after: Any, phase: Phase) -> dict[str, float]:
        """Public numbers of a round by name, from the states before and after it.

        They are functions of releases and the plan alone.
        """
        return {}


class Method(Traits, Protocol[S]):
    """A method of federated learning: one frozen dataclass with `Traits`, one file, in `ALGORITHMS`."""

    @property
    def name(self) -> str: ...

    def plan(self, problem: Problem) -> Plan:
        """All phases, calibrated. Raises InputError naming the key or silo that does not fit."""
        ...

    def init(self, w0: Vector) -> S:
        """State before phase 1, round 1."""
        ...

    def broadcast(self, state: S, phase: Phase) -> Arrays:
        """Arrays that the participating silos receive in the state's round.

        A vector (d,) goes to all. A matrix (N, d) has one row per silo in the problem's order; each silo receives only
        its own.
        """
        ...

    def silo_step(self, sent: Arrays, silo: Silo) -> Vector:
        """The silo's message: an answer of `silo`, or a function of its answers alone.

        With `row_by_row`, arrays of single silos and answers may be matrices (silos, d), and so is the message.
        """
        ...

    def server_update(self, state: S, messages: Messages, phase: Phase) -> S:
        """State after the round; after the last round of a phase, the state at the start of the next one."""
        ...

    def output(self, state: S) -> Vector:
        """The model of this state (d,)."""
        ...
