"""A known curvature: what accelerated methods may take for the worst case's beta, and the statistic that bounds it.

The Hessian of a linear model's mean loss is a mean of h''(z_j) x_j x_j^T (of softmax regression of Kronecker products
of x_j x_j^T with matrices of norm at most h''_max), so over n records with second moments S = (1/n) sum_j x_j x_j^T its
largest eigenvalue is at most h''_max lambda_max(S). The worst case over all data sets is h''_max B^2, for records of
norm at most B. A silo releases lambda_max of its own S.

Sensitivity (ours; elementary). Replace the record x by x'. The sum T = sum_j x_j x_j^T becomes T + x' x'^T - x x^T, and
lambda_max is monotone and subadditive on symmetric matrices, so

    lambda_max(T') <= lambda_max(T + x' x'^T) <= lambda_max(T) + |x'|^2 <= lambda_max(T) + B^2,

and the same with T and T' exchanged: lambda_max(T) moves by at most B^2, that of S by B^2 / n. A record of zeros beside
one of norm B attains it. Where a person has several rows, of weights w_j >= 0 that add up to at most 1, the matrix
sum_j w_j x_j x_j^T is positive semidefinite of norm at most B^2, and the same lines hold for it in place of x x^T. In a
plan's words the clipping bound C is B^2 / 2.

Pooling. The objective weighs silo i by p_i >= 0, sum p_i = 1. lambda_max is convex, so
lambda_max(sum_i p_i S_i) <= sum_i p_i lambda_max(S_i).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic.dataclasses import dataclass
from scipy.special import ndtri

from fedcore.hyperparameters import DECLARED, Real, Section
from fedcore.planning.problem import LARGEST, Problem

COVERED = 0.99
"""Probability with which released eigenvalues bound the pooled one."""
MOST_FEATURES = 2000
"""Of a record: the eigenvalues of a matrix of 2,000 rows take about a second."""
SOLVER = 16.0 * MOST_FEATURES
"""p, an assumption: LAPACK's largest eigenvalue of a sum T is exact for some T + F, |F| <= p u |T|, with p = 16 d. We
know of no proof with p below about d^2. A plan knows no d, so it takes the largest: replacing a record then moves the
computed eigenvalue by 2 p u n B^2 more, 7e-6 of B^2 for a million records."""
LEAST = 1e-6
"""Of the worst case, below which no curvature is taken: the largest eigenvalue of records of zeros is 0."""


def half_diameter(bound: float) -> float:
    """C such that replacing one record of norm at most `bound` B moves lambda_max of a sum by at most 2 C: B^2 / 2."""
    return bound**2 / 2.0


def largest_norm(bound: float) -> float:
    """Of lambda_max(x x^T), over records of norm at most `bound` B: B^2."""
    return bound**2


def pooled_bound(
    eigenvalues: Sequence[float], sigmas: Sequence[float], weights: Sequence[float] | None, bound: float
) -> float:
    """An upper bound on lambda_max of the pooled second moments, with probability at least `COVERED` over the noise.

    `eigenvalues`: of the silos' second moments, as released; `sigmas`: standard deviations of their noise; `weights`:
    of the silos, with mean 1 (None: all alike); `bound`: B. All by silo, in one order. Returns
    max(0, sum p_i lambda_i) + z_0.99 sqrt(sum p_i^2 sigma_i^2), at most B^2 and at least `LEAST` B^2.
    """
    silos = len(eigenvalues)
    parts = [weight / silos for weight in ((1.0,) * silos if weights is None else weights)]
    mean = math.fsum(part * value for part, value in zip(parts, eigenvalues, strict=True))
    spread = math.sqrt(math.fsum((part * sigma) ** 2 for part, sigma in zip(parts, sigmas, strict=True)))
    return min(max(max(mean, 0.0) + float(ndtri(COVERED)) * spread, LEAST * bound**2), bound**2)


class ReleasedCurvature(Section):
    """`algorithm.smoothness: {constants: released, epsilon: 0.1}`."""

    key: ClassVar[str] = "algorithm.smoothness"

    constants: Literal["released"] = "released"
    """released: from the largest eigenvalue of the second moments of each silo's prepared records, one number that it
    releases with noise and a charge before training."""
    epsilon: Real | None = Field(None, gt=0)
    """Target of that release, on top of privacy.epsilon, at the run's delta; required unless privacy.trust is none."""
    scale: Real = Field(1.0, gt=0, le=LARGEST)
    """Factor on the bound that follows from it: a hyperparameter, as the length of a step elsewhere. Steps stay stable
    down to about 3/8 of the true curvature, which the bound may be above."""


def _in_full(value: Any) -> Any:
    """One sentence for all that is none of the three forms; pydantic would say one for each of them."""
    if value == "released":
        return {"constants": "released"}
    if isinstance(value, str):  # YAML has 1e-2, without a point, as text; keys of one form take it for a number, too
        with suppress(ValueError):
            value = float(value)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value == "worst-case" or isinstance(value, dict | ReleasedCurvature) or (number and 0 < value <= LARGEST):
        return value
    raise ValueError(f"say worst-case, released, or a public number above 0 and at most {LARGEST:g}")


Smoothness = Annotated[Literal["worst-case"] | float | ReleasedCurvature, BeforeValidator(_in_full)]


@dataclass(frozen=True, config=DECLARED, kw_only=True)
class KnownCurvature:
    """The key of methods whose steps follow from beta."""

    smoothness: Smoothness = "worst-case"
    """beta of the mean loss over records, without ridge and lambda: worst-case, over all data sets (h''_max B^2); a
    public number, for instance h''_max times the largest eigenvalue of the second moments of public records; released:
    that of the silos' own records, {constants: released, epsilon: 0.1}. Too small a number can make steps unstable: the
    run then stops with a sentence once the noise lets it be seen."""

    @property
    def known_curvature(self) -> float | None:
        """The number that is taken for beta; None where it is the worst case, or not yet released."""
        return self.smoothness if isinstance(self.smoothness, float) else None

    @property
    def released_curvature(self) -> ReleasedCurvature | None:
        """The section by which silos release it before training; None if they do not."""
        return self.smoothness if isinstance(self.smoothness, ReleasedCurvature) else None

    def known(self, problem: Problem) -> Problem:
        """The problem with beta as it is known; before a release, and for a nonsmooth loss, as it is."""
        number = self.known_curvature
        if number is None or math.isinf(problem.objective.smoothness):
            return problem
        return replace(problem, objective=replace(problem.objective, smoothness=number))

    @model_validator(mode="after")
    def _planned_before_it_is_known(self) -> Self:
        left = [key for key in ("rounds", "batch") if key in getattr(self, "from_theory", ())]
        if self.released_curvature is not None and left:
            raise ValueError(
                "algorithm.smoothness = released becomes known only after the price of training is planned: give "
                f"algorithm.{left[0]}, which the theorem would take from it, as a number"
            )
        return self
