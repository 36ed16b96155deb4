"""Principal components: constants of a per-record map, their computation, and their byte form.

The origin of the constants decides whether the map may precede a private answer. Constants of public data are public.
Constants of silos' records move with one record, and so do all other prepared rows. Constants of released statistics
(noised and charged) are a post-processing of public numbers, hence public.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from threadpoolctl import threadpool_limits

from fedcore.arrays import Matrix, Vector, digest, pack, unpack
from fedcore.errors import InputError
from fedcore.hyperparameters import Count, Real, Section
from fedcore.limits import MOST_WEIGHTS

Origin = Literal["public", "simulation", "released"]

_LARGEST = 1e150
"""Bound to which a record's entries are clipped, so that no product or sum of a row overflows."""
_VANISHING = 1e-12
"""Least variance of a direction, relative to the largest: below it rounding decides sign and angle."""


class PcaConfig(Section):
    """Principal components in place of pixels, with constants of one origin."""

    key: ClassVar[str] = "data.pca"

    dimension: Count = Field(50, ge=1, le=MOST_WEIGHTS)
    """Features of a projected record, without the bias column."""
    constants: Literal["public", "simulation", "released"] = "public"
    """public: from images that no silo holds; simulation: from all silos' records without noise, OUTSIDE OF THE
    GUARANTEE, as papers do; released: from moments that silos release with noise and a charge before training."""
    fraction: Real = Field(0.1, gt=0, lt=1)
    """With public constants: part of the images set aside for them, before silos are built."""

    epsilon: Real | None = Field(None, gt=0)
    """With released constants: target for the release of the moments, at the run's delta; required unless privacy.trust
    is none. It comes on top of privacy.epsilon, which covers training; results show the composition."""
    bound: Real | None = Field(None, gt=0)
    """With released constants: for the moments each image (pixels in 0 to 1) is scaled to at most this norm; null: half
    of the root of the number of pixels."""

    @model_validator(mode="after")
    def _keys_fit_the_origin(self) -> PcaConfig:
        if self.constants != "public" and self.fraction != type(self).model_fields["fraction"].default:
            raise ValueError(f"data.pca.fraction has no meaning with constants = {self.constants}: leave it out")
        for key in ("epsilon", "bound"):
            if self.constants != "released" and getattr(self, key) is not None:
                raise ValueError(f"data.pca.{key} has no meaning with constants = {self.constants}: leave it out")
        return self


@dataclass(frozen=True, eq=False)
class Projection:
    """x -> (x - mean) @ components.T / divide_by; `components` (d, features) is orthonormal."""

    mean: Vector
    components: Matrix
    divide_by: float
    """Root mean square norm of the projected rows from which the constants were computed."""

    @property
    def dim(self) -> int:
        return self.components.shape[0]

    def __call__(self, X: Matrix) -> Matrix:
        """Projects finite X (n, features) to finite rows (n, d), each from its own row alone."""
        centred = np.clip(X, -_LARGEST, _LARGEST) - self.mean
        # One product per row, so that a row's bits do not depend on the number of rows. The memory order is fixed,
        # since BLAS adds in another order for the other.
        rows: Matrix = np.matmul(np.ascontiguousarray(self.components), centred[:, :, None])[:, :, 0]
        largest = np.finfo(np.float64).max
        with np.errstate(over="ignore"):
            return np.clip(rows / self.divide_by, -largest, largest)

    @classmethod
    def fit(cls, blocks: Iterable[NDArray[np.float64]], dimension: int) -> Projection:
        """The `dimension` directions of largest variance of all rows (n_b, features), in order.

        In each direction the first entry of largest absolute value is positive, so signs do not depend on the solver.
        Raises InputError if the rows vary in fewer directions.
        """
        with threadpool_limits(limits=1, user_api="blas"):  # the number of threads changes the last bits
            count, mean, scatter = _moments(blocks)
            variances, directions = np.linalg.eigh(scatter / count)
        variances, components = variances[::-1], directions.T[::-1]
        rank = int((variances > _VANISHING * variances[0]).sum()) if variances[0] > 0 else 0
        if dimension > rank:
            raise InputError(
                f"data.pca.dimension = {dimension}, but the {count} images that its constants come from vary in {rank} "
                "directions only; choose fewer dimensions, or set more images aside (data.pca.fraction)"
            )
        return cls(mean, _signed(components[:dimension]), float(np.sqrt(variances[:dimension].sum())))

    @classmethod
    def of_moments(cls, mean: Vector, second: Matrix, dimension: int) -> Projection:
        """As `fit`, from noised mean (features,) and second moment (features, features).

        The covariance is second - mean mean^T, made symmetric; with noise it may have negative eigenvalues. The scale
        is the root of its trace over the chosen directions. Raises InputError if that trace is not positive.
        """
        if dimension > len(mean):
            raise InputError(f"data.pca.dimension = {dimension} is more than the {len(mean)} features of a record")
        covariance = second - np.outer(mean, mean)
        with threadpool_limits(limits=1, user_api="blas"):
            variances, directions = np.linalg.eigh((covariance + covariance.T) / 2)
        chosen = float(variances[::-1][:dimension].sum())
        if not 0 < chosen < np.inf:
            raise InputError(
                f"data.pca.epsilon is too small: with its noise the released variance along {dimension} directions is "
                f"{chosen:.4g}, not positive; what was released stays charged. Raise data.pca.epsilon, or lower "
                "data.pca.dimension or data.pca.bound"
            )
        return cls(mean, _signed(directions.T[::-1][:dimension]), float(np.sqrt(chosen)))

    def to_bytes(self) -> bytes:
        """Byte form, equal for equal constants only."""
        return pack({"mean": self.mean, "components": self.components, "divide_by": np.array([self.divide_by])})

    @classmethod
    def from_bytes(cls, data: bytes) -> Projection:
        """The projection that `to_bytes` wrote. Raises ValueError for other bytes."""
        arrays = unpack(data)
        try:
            mean, components, (scale,) = arrays["mean"], arrays["components"], arrays["divide_by"]
        except KeyError as error:
            raise ValueError(f"no array {error}") from None
        if mean.shape != components.shape[1:]:
            raise ValueError(f"mean of shape {mean.shape} does not fit components of shape {components.shape}")
        if not (np.isfinite(mean).all() and np.isfinite(components).all() and 0 < scale < np.inf):
            raise ValueError("constants that are not finite")
        return cls(mean, components, float(scale))

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the constants."""
        return digest(self.to_bytes()).hex()


def _signed(directions: Matrix) -> Matrix:
    """The rows with signs that make the first entry of largest absolute value in each positive."""
    components = directions.copy(order="C")
    top = np.abs(components).argmax(axis=1)
    components *= np.sign(components[np.arange(len(components)), top])[:, None]
    return components


def _moments(blocks: Iterable[NDArray[np.float64]]) -> tuple[int, Vector, Matrix]:
    """Number of rows, mean (features,), and sum of (x - mean)(x - mean)^T (features, features).

    Computed block by block, so that the pooled rows need not fit in memory (Chan, Golub, LeVeque 1983, 2.1).
    """
    count, mean, scatter = 0, np.zeros(0), np.zeros((0, 0))
    for X in blocks:
        own = X.mean(axis=0)
        centred = X - own
        if count == 0:
            count, mean, scatter = len(X), own, centred.T @ centred
            continue
        both = count + len(X)
        step = own - mean
        scatter = scatter + centred.T @ centred + np.outer(step, step) * (count * len(X) / both)
        mean, count = mean + step * (len(X) / both), both
    return count, mean, scatter
