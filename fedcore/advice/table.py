"""A table of methods' results on public data: its rows, and public facts of their silos."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import make_plan
from fedcore.hyperparameters import Count, Real, Section
from fedcore.planning.aggregated import mean_noise

LOSS = {True: "logistic", False: "squared"}
"""Loss of the rows, by whether it is convex; the others are of networks."""
_HESSIANS = "noised-newton"


class Facts(Section):
    """Public facts of a config: silos, model, epsilon and delta."""

    silos: Count = Field(ge=1)
    per_round: Real = Field(gt=0)
    """Silos in a round; the harmonic mean where their number is drawn, as in the papers' bounds."""
    records: Real = Field(gt=0)
    """Records of each of as many equal silos whose mean has the same noise: `1 / sqrt(mean of (w_i / n_i)^2)` for
    weights w_i of mean 1, to three decimals. With weights by records it is the mean of n_i; with equal weights small
    silos decide."""
    weights: Count = Field(ge=1)
    """Weights of the model: d."""
    convex: bool
    epsilon: Real = Field(gt=0)
    delta: Real = Field(gt=0, lt=1)

    @classmethod
    def of(cls, config: ExperimentConfig) -> Facts:
        """The facts of a config; reads no record. Raises InputError, also without epsilon."""
        if config.privacy.epsilon is None:
            raise InputError("privacy.epsilon is null, and methods are compared at a target: give one, as 2")
        problem = make_plan(config).problem
        sizes = [silo.trained for silo in problem.silos]
        variance = mean_noise([1.0 / n for n in sizes], problem.weights, entrusted=False)
        return cls(
            silos=len(sizes),
            per_round=problem.harmonic_participants,
            records=round((len(sizes) * variance) ** -0.5, 3),
            weights=problem.objective.dim,
            convex=config.model.convex,
            epsilon=config.privacy.epsilon,
            delta=problem.budget.delta(min(sizes)),
        )

    @property
    def all_silos(self) -> bool:
        """True if every silo is in every round."""
        return self.per_round >= self.silos

    @property
    def noise(self) -> float:
        """sqrt(d ln(1/delta)) / (n epsilon sqrt(M)): noise-to-signal ratio of the mean answer.

        All five papers' bounds on the excess risk share this term; the number of rounds is not in it.
        """
        spread = math.sqrt(self.weights * math.log(1.0 / self.delta))
        return spread / (self.records * self.epsilon * math.sqrt(self.per_round))


class Row(Section):
    """One point of a study's figure: each method's error, with its tuned settings."""

    figure: str
    facts: Facts
    measure: str
    """Name of the measure in `errors`: all at least 0, less is better."""
    errors: Mapping[str, Real]
    """Means over trials, by method."""
    tied: tuple[str, ...]
    """The best method, and those not significantly above it."""
    settings: Mapping[str, Mapping[str, Any]]
    """By method, the tuned keys of an experiment's sections."""
    rounds: Mapping[str, Count]
    floats: Mapping[str, Real]
    """Numbers that all silos sent in a run, by method."""

    @model_validator(mode="after")
    def _of_the_same_methods(self) -> Self:
        for name in ("settings", "rounds", "floats"):
            if getattr(self, name).keys() != self.errors.keys():
                raise ValueError(f"{name} are of other methods than errors")
        if not self.tied or not set(self.tied) <= self.errors.keys():
            raise ValueError("tied names no method of errors, or one that is not there")
        if min(self.errors.values()) < 0:
            raise ValueError("errors must be at least 0")
        return self

    def sent(self, method: str, facts: Facts) -> float:
        """Numbers that silos of these facts would send in a run with the row's settings.

        A gradient grows with the number of weights, a Hessian (of noised-newton) with its square.
        """
        there, here = self.facts.weights, facts.weights
        wider = here * (here + 3) / (there * (there + 3)) if method == _HESSIANS else here / there
        return self.floats[method] * wider * facts.per_round / self.facts.per_round

    def affordable(self, method: str, facts: Facts, rounds: int | None, floats: float | None) -> bool:
        """Checks that the method keeps to `rounds` and `floats` sent with the row's settings."""
        return (rounds is None or self.rounds[method] <= rounds) and (
            floats is None or self.sent(method, facts) <= floats
        )

    def above(self, method: str) -> float:
        """The method's error less the lowest of the row."""
        return self.errors[method] - min(self.errors.values())

    def times_the_best(self, method: str) -> float:
        """The method's error over the lowest of the row."""
        least = min(self.errors.values())
        return math.inf if least == 0 and self.errors[method] > 0 else self.errors[method] / max(least, 1e-300)
