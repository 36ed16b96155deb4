"""The public facts from which a plan is made: sizes, constants, participation and the privacy budget."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from pydantic import FailFast

from fedcore.accounting.calibration import Budget
from fedcore.directed_rounding import in_full, shown_down
from fedcore.errors import InputError
from fedcore.limits import MOST_SHARES, MOST_SILOS, MOST_WEIGHTS
from fedcore.planning.evaluation import Evaluation
from fedcore.planning.participation import Participation, SilosPerRound
from fedcore.planning.shuffle import Shuffle

LARGEST = 2**40
"""Upper bound on every count and constant of a problem."""
LEAST_CLIP = 1e-100
"""Least clipping bound, far above the subnormal numbers: rounding of sensitivities, sums and noise stays relative."""
LONGEST_NAME = 200
"""Largest number of characters of a silo's name, or of a run's id."""
LARGEST_DIAMETER = 1e9
"""Largest diameter of the domain: predictors of models within it stay far below overflow."""


@dataclass(frozen=True)
class SiloFacts:
    """Public facts of a silo: its name and its number of records, or of persons.

    `held`: number that is held out of training, for evaluation. `weight`: of the silo's answers in the objective and in
    every mean of the server; weights have mean 1 over all silos.
    """

    name: str
    n: int
    held: int = 0
    weight: float = 1.0

    @property
    def trained(self) -> int:
        """Number of records that training is about, the first ones of the silo's split."""
        return self.n - self.held


def unit_of(person: str | None) -> str:
    """The protected unit in words: records, or the persons that a column names."""
    return "records" if person is None else f"persons by column {person!r}"


@dataclass(frozen=True)
class ObjectiveFacts:
    """Public constants of the objective. `dim`: weights of the model.

    `clip`: bound C on one record's gradient, which is also the L of the schedules. `smoothness`: beta of the per-record
    loss, infinite if it is nonsmooth. `diameter`: D, of the ball around 0 that models stay in. `ridge`: weight of
    (ridge/2)|w|^2 in the objective, over all weights, a bias included. The server, or a silo with local steps, adds its
    gradient after noise, so it needs no clipping. `drawn_points`: gradients are taken at points drawn anew for each
    record and round (Algorithm 7 of Gao et al.). They then vary even where all records take part.
    """

    dim: int
    clip: float
    smoothness: float
    diameter: float
    ridge: float = 0.0
    drawn_points: bool = False

    @property
    def lipschitz(self) -> float:
        """Bound on the objective's gradient over W, in norm: clip + ridge D / 2. Silos clip at `clip` alone."""
        return self.clip + self.ridge * self.diameter / 2.0

    def smoothness_for(self, method: str) -> float:
        """beta of the objective, ridge included, for the schedule of `method`.

        Raises InputError if it is infinite.
        """
        if math.isfinite(self.smoothness):
            return self.smoothness + self.ridge
        raise InputError(
            f"{method} needs a smooth loss, and this problem's smoothness is infinite: use a subgradient method, or a "
            "smoothed loss (Moreau, Convolution) with its constant"
        )

    def check(self) -> None:
        """Raises InputError for numbers outside their ranges."""
        if not 0 < self.dim <= MOST_WEIGHTS:
            raise InputError(f"{self.dim:g} weights make no problem; 1 to {MOST_WEIGHTS} do")
        _within("clip", self.clip, LARGEST, LEAST_CLIP)
        if self.diameter != math.inf:  # infinite: no question is about a model (`fedcore.silo.question`)
            _within("diameter", self.diameter, LARGEST_DIAMETER)
        if not self.ridge < LARGEST:
            raise InputError(f"model.ridge = {self.ridge:g} must be below {LARGEST:g}")
        if not (self.smoothness >= 0 and self.ridge >= 0):
            raise InputError(f"model: smoothness {self.smoothness:g} and ridge {self.ridge:g} must be at least 0")


@dataclass(frozen=True)
class Trust:
    """The protected unit, and the parties between silos and server.

    `person`: the column that names the person of a row. Neighbours then differ in one person with all rows, and every
    number of records, n among them, counts persons. None: neighbours differ in one record. `shuffle`: the public
    numbers of the shuffler; None: there is none. `aggregator`: True if a simulated one receives silos' sums and adds
    the noise.
    """

    person: str | None = None
    shuffle: Shuffle | None = None
    aggregator: bool = False


@dataclass(frozen=True)
class Problem:
    """All inputs of planning; none depends on the content of a record.

    `participants`: M silos in a round, or the law of their number, of which `participation` has the means.
    `evaluation`: the questions about held-out records; None: silos hold out none.
    """

    silos: Annotated[tuple[SiloFacts, ...], FailFast()]
    objective: ObjectiveFacts
    budget: Budget
    participants: SilosPerRound
    trust: Trust = Trust()
    evaluation: Evaluation | None = None

    def __post_init__(self) -> None:
        """Raises InputError for numbers outside their ranges, wherever the object comes from."""
        if len(self.silos) > MOST_SILOS:
            raise InputError(f"{len(self.silos)} silos are more than the {MOST_SILOS} of a problem; take fewer")
        names = {silo.name for silo in self.silos}
        if not names or len(names) < len(self.silos) or not all(0 < silo.n < LARGEST for silo in self.silos):
            raise InputError(f"{len(self.silos)} silos need a name of their own each, and 1 to {LARGEST} records")
        if not all(0 < len(name) <= LONGEST_NAME and name.isprintable() for name in names):
            raise InputError(f"a silo's name has 1 to {LONGEST_NAME} printable characters")
        self.objective.check()
        Participation.of(self.participants, len(self.silos))
        person, shuffle = self.trust.person, self.trust.shuffle
        if person is not None and not (0 < len(person) <= LONGEST_NAME and person.isprintable()):
            raise InputError(f"a column of persons has a name of 1 to {LONGEST_NAME} printable characters")
        if not all(0 <= silo.held < silo.n and (silo.held > 0) == (self.evaluation is not None) for silo in self.silos):
            raise InputError("an evaluation needs records of each silo, held out, and training needs some of them, too")
        if self.evaluation is not None and (self.evaluation.epsilon is not None) != self.budget.private:
            raise InputError("an evaluation has a target of its own where training adds noise, and only there")
        whole = self.budget.whole_silo
        if whole is not None and not whole.delta < 1.0 / len(self.silos):
            raise InputError(
                f"privacy.whole_silo.delta = {in_full(whole.delta)} must be below 1/N = "
                f"{shown_down(1 / len(self.silos))} (N = {len(self.silos)} silos): above it, publishing one silo in "
                "full would count as private"
            )
        if shuffle is not None and whole is not None:
            raise InputError(
                "privacy.whole_silo is a target without a shuffler, and privacy.trust = shuffler has none for whole "
                "silos: leave one out"
            )
        if shuffle is not None:
            shuffle.check({silo.n for silo in self.silos}, self.participants, self.weights, self.evaluation)
            shuffle.check_delta(self.budget, [silo.n for silo in self.silos])
        if self.weights is not None:
            if not all(0 < weight <= LARGEST for weight in self.weights):  # 0 would charge a silo for nothing
                raise InputError(f"a silo's weight is above 0 and at most {LARGEST}")
            if abs(sum(self.weights) / len(self.silos) - 1.0) > 1e-9:
                raise InputError("weights of silos have mean 1")

    @property
    def unit(self) -> str:
        """The unit that the guarantee protects and sizes count, as one word: records or persons."""
        return "records" if self.trust.person is None else "persons"

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Records of each silo, by its name."""
        return {silo.name: silo.n for silo in self.silos}

    @cached_property
    def facts(self) -> dict[str, SiloFacts]:
        """Public facts of each silo, by its name."""
        return {silo.name: silo for silo in self.silos}

    @cached_property
    def weights(self) -> tuple[float, ...] | None:
        """Weights of the silos, in their order; None: all are 1."""
        found = tuple(silo.weight for silo in self.silos)
        return None if all(weight == 1.0 for weight in found) else found

    @property
    def lengths(self) -> tuple[int, ...]:
        """Possible lengths of answers: as many numbers as the model has weights, or an evaluation has cells."""
        dim = self.objective.dim
        return (dim,) if self.evaluation is None else (dim, self.evaluation.cells)

    @property
    def n(self) -> int:
        """Number of records that the smallest silo trains on: n of schedules, which assume equal silos."""
        return min(silo.trained for silo in self.silos)

    @property
    def n_silos(self) -> int:
        return len(self.silos)

    @cached_property
    def participation(self) -> Participation:
        """The law of the number of silos in a round."""
        return Participation.of(self.participants, self.n_silos)

    @property
    def harmonic_participants(self) -> float:
        """M of the theorems: the harmonic mean of the numbers of participants over rounds, 1 / E[1 / M_r]."""
        return self.participation.harmonic

    @property
    def delta(self) -> float:
        """Largest delta of any silo: the delta of the papers' schedules."""
        return max(self.budget.delta(silo.n) for silo in self.silos)


def check_shares(silos: int, kinds: int, key: str) -> None:
    """Raises InputError, naming `key`, for a plan with too many shares (silos times kinds of rounds)."""
    if silos * kinds > MOST_SHARES:
        raise InputError(
            f"{key}: {kinds} phases and kinds of rounds of {silos} silos are more than {MOST_SHARES} shares; choose "
            "fewer phases, or fewer silos"
        )


def _within(key: str, value: float, most: float, least: float = 0.0) -> None:
    if not (0 < value <= most and least <= value):
        raise InputError(f"model.{key} = {value:g} must be more than {least:g} and at most {most:g}")
