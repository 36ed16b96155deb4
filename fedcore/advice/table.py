"""What methods came to on other silos: rows of a table that was made once, and the public facts that a row is about."""

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
"""Of the rows of convex losses, and of those of networks."""
_HESSIANS = "noised-newton"


class Facts(Section):
    """What everybody may know of silos and of what is asked of them."""

    silos: Count = Field(ge=1)
    per_round: Real = Field(gt=0)
    """Silos in a round; of a drawn number the harmonic mean, as in the bounds."""
    records: Real = Field(gt=0)
    """Of each of as many equal silos whose mean would have as much noise: 1 / sqrt(mean of (w_i / n_i)^2), for weights
    w_i of mean 1, to three decimals. With weights by records it is the mean; with equal weights small silos decide."""
    weights: Count = Field(ge=1)
    """Of the model: d."""
    convex: bool
    epsilon: Real = Field(gt=0)
    delta: Real = Field(gt=0, lt=1)

    @classmethod
    def of(cls, config: ExperimentConfig) -> Facts:
        """Of a config; no record is read. Raises InputError, as a plan does, and for a run without a target."""
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
        """Whether each is in every round."""
        return self.per_round >= self.silos

    @property
    def noise(self) -> float:
        """sqrt(d ln(1/delta)) / (n epsilon sqrt(M)): how large the noise of the mean answers is beside what they are
        about, up to the number of rounds; the term that all five papers' bounds on the excess risk share."""
        spread = math.sqrt(self.weights * math.log(1.0 / self.delta))
        return spread / (self.records * self.epsilon * math.sqrt(self.per_round))


class Row(Section):
    """One place of a figure: what each method's error was, with the settings that were chosen for it there."""

    figure: str
    facts: Facts
    measure: str
    """What `errors` are: all at least 0, less is better."""
    errors: Mapping[str, Real]
    """Means over trials, by method."""
    tied: tuple[str, ...]
    """The best method, and those that are not told apart from it."""
    settings: Mapping[str, Mapping[str, Any]]
    """By method, sections of an experiment with what the method was set to."""
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
        """Numbers that all silos of these facts would send in the method's run with the row's settings: a gradient
        grows with the weights, a Hessian (of noised-newton) with their square."""
        there, here = self.facts.weights, facts.weights
        wider = here * (here + 3) / (there * (there + 3)) if method == _HESSIANS else here / there
        return self.floats[method] * wider * facts.per_round / self.facts.per_round

    def affordable(self, method: str, facts: Facts, rounds: int | None, floats: float | None) -> bool:
        """Whether the method's run with the row's settings keeps to so many rounds and numbers sent; None: any."""
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
