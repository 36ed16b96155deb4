"""Smoothness constants that are known, given or released, and the statistic that bounds them.

The Hessian of a linear model's mean loss is a mean of h''(z_j) x_j x_j^T. (For softmax regression it is a mean of
Kronecker products of x_j x_j^T with matrices of norm at most h''_max.) Let S = (1/n) sum_j x_j x_j^T be the second
moments of n records. The Hessian's largest eigenvalue is at most h''_max lambda_max(S). Over all data sets of records
of norm at most B the worst case is h''_max B^2. A silo releases lambda_max of its own S.

Sensitivity (ours; elementary). Replace the record x by x'. The sum T = sum_j x_j x_j^T becomes T + x' x'^T - x x^T, and
lambda_max is monotone and subadditive on symmetric matrices, so

    lambda_max(T') <= lambda_max(T + x' x'^T) <= lambda_max(T) + |x'|^2 <= lambda_max(T) + B^2,

and the same with T and T' exchanged: lambda_max(T) moves by at most B^2, that of S by B^2 / n. A record of zeros beside
one of norm B attains it. The clipping bound C of the plan is B^2 / 2. Where a person has several rows, their weights
w_j >= 0 add up to at most 1. The matrix sum_j w_j x_j x_j^T is positive semidefinite of norm at most B^2. The same
lines hold with this matrix in place of x x^T.

Pooling. The objective weighs silo i by p_i >= 0, sum p_i = 1. lambda_max is convex, so
`lambda_max(sum_i p_i S_i) <= sum_i p_i lambda_max(S_i)`.
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
"""Features of a record, at most: the eigenvalues of a matrix of 2,000 rows take about a second."""
SOLVER = 16.0 * MOST_FEATURES
"""p of an assumption: LAPACK's largest eigenvalue of a sum T is exact for some T + F, |F| <= p u |T|, with `p = 16 d`.
We know of no proof with p below about d^2. A plan has no d and takes the largest. Replacing a record then moves the
computed eigenvalue by a further 2 p u n B^2, which is 7e-6 B^2 for a million records."""
LEAST = 1e-6
"""Least curvature in units of the worst case; the largest eigenvalue of records of zeros would be 0."""


def half_diameter(bound: float) -> float:
    """C = B^2 / 2 for B = `bound`: replacing a record moves lambda_max of a sum by at most 2 C."""
    return bound**2 / 2.0


def largest_norm(bound: float) -> float:
    """Largest lambda_max(x x^T) over records of norm at most `bound` B: B^2."""
    return bound**2


def pooled_bound(
    eigenvalues: Sequence[float], sigmas: Sequence[float], weights: Sequence[float] | None, bound: float
) -> float:
    """Upper bound on lambda_max of the pooled second moments, with probability at least `COVERED`.

    The probability is over the noise. By silo, in one order: `eigenvalues` of the second moments, as released;
    `sigmas`, standard deviations of their noise; `weights`, with mean 1 (None: all alike). `bound`: B. Returns
    `max(0, sum p_i lambda_i) + z_0.99 sqrt(sum p_i^2 sigma_i^2)`, at most B^2 and at least `LEAST` B^2.
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
    """released: the bound follows from the largest eigenvalue of the second moments of each silo's prepared records.
    Each silo releases that number with noise, and charges it, before training."""
    epsilon: Real | None = Field(None, gt=0)
    """Target of that release, on top of privacy.epsilon, at the run's delta; required unless privacy.trust is none."""
    scale: Real = Field(1.0, gt=0, le=LARGEST)
    """Factor on the resulting bound, a hyperparameter like a step length elsewhere. Steps stay stable down to about 3/8
    of the true curvature, which the bound may exceed."""


def _in_full(value: Any) -> Any:
    """One error for a value of none of the three forms; pydantic would raise one for each form."""
    if value == "released":
        return {"constants": "released"}
    if isinstance(value, str):  # YAML has 1e-2, without a point, as text; keys of one form take it for a number, too
        with suppress(ValueError):
            value = float(value)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value == "worst-case" or isinstance(value, dict | ReleasedCurvature) or (number and 0 < value <= LARGEST):
        return value
    raise ValueError(f"choose worst-case, released, or a public number above 0 and at most {LARGEST:g}")


Smoothness = Annotated[Literal["worst-case"] | float | ReleasedCurvature, BeforeValidator(_in_full)]


@dataclass(frozen=True, config=DECLARED, kw_only=True)
class KnownCurvature:
    """The key `smoothness` of methods whose steps follow from beta."""

    smoothness: Smoothness = "worst-case"
    """beta of the mean loss over records, without ridge and lambda. worst-case: over all data sets (h''_max B^2); a
    number: public, for instance from public records; released: of the silos' own records, {constants: released,
    epsilon: 0.1}. Too small a number can make steps unstable; the run stops with an error once the messages show that.
    """

    @property
    def known_curvature(self) -> float | None:
        """The number taken for beta; None for the worst case, and before a release."""
        return self.smoothness if isinstance(self.smoothness, float) else None

    @property
    def released_curvature(self) -> ReleasedCurvature | None:
        """The section that has silos release beta before training; None if they do not."""
        return self.smoothness if isinstance(self.smoothness, ReleasedCurvature) else None

    def known(self, problem: Problem) -> Problem:
        """The problem with the known beta; unchanged before a release, and for a nonsmooth loss."""
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
