"""Whitening of a schema's numbers: a public matrix after centres and scales.

Nearly equal columns make the loss flat along their differences, and gradient methods then need many rounds. Whitened
columns do not. The matrix is public like centres and scales, so each record is mapped by itself. Entries are clipped
again, so a record's norm stays bounded.
"""

from __future__ import annotations

import math
from typing import Self

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator
from threadpoolctl import threadpool_limits

from fedcore.arrays import Matrix, Vector
from fedcore.data.constants.shrinkage import centres_and_scales
from fedcore.data.schema import LEAST_LIMIT, Schema, features, longest
from fedcore.hyperparameters import Real, Section

LEAST_EIGENVALUE = 0.05
"""Least eigenvalue of correlations: directions of less variance are magnified as if they had that."""
MOST_COLUMNS = 256
"""Most whitened columns: messages contain the matrix, and noise grows with the number of its entries."""
_LARGEST = 1e6
"""Largest entry of a matrix from any sender, so that no product with a record overflows."""


class Whitening(Section):
    """z -> M z, clipped to the limit, over the features of `columns` after centre and scale."""

    columns: tuple[str, ...] = Field(min_length=1, max_length=MOST_COLUMNS)
    """Numbers of the schema, each with one such feature; features that mark missing values stay unchanged."""
    limit: Real = Field(ge=LEAST_LIMIT, le=1000)
    matrix: tuple[tuple[Real, ...], ...]
    """M, row by row, in the order of the columns."""

    @model_validator(mode="after")
    def _is_square(self) -> Self:
        if len(set(self.columns)) != len(self.columns):
            raise ValueError("a column is whitened twice")
        if len(self.matrix) != len(self.columns) or any(len(row) != len(self.columns) for row in self.matrix):
            raise ValueError(f"a matrix for {len(self.columns)} columns has as many rows, and as many entries in each")
        if any(abs(entry) > _LARGEST for row in self.matrix for entry in row):
            raise ValueError(f"an entry of the matrix is beyond {_LARGEST:g}")
        return self

    @classmethod
    def of(cls, columns: tuple[str, ...], limit: float, matrix: Matrix) -> Self:
        """The whitening of p columns by a matrix (p, p)."""
        return cls(columns=columns, limit=limit, matrix=tuple(tuple(row) for row in matrix.tolist()))

    def fits(self, schema: Schema) -> bool:
        """Checks that all columns are numbers of the schema."""
        return set(self.columns) <= number_places(schema).keys()

    def __call__(self, rows: Matrix, schema: Schema) -> Matrix:
        """Features (n, d) of a fitting schema, with those of `columns` whitened, row by row."""
        starts, made = number_places(schema), rows.copy()
        places = [starts[name] for name in self.columns]
        # One product per row, as in `Projection`, so that a row's bits do not depend on the number of rows.
        inner = np.matmul(np.array(self.matrix), np.ascontiguousarray(rows[:, places])[:, :, None])[:, :, 0]
        made[:, places] = np.clip(inner, -self.limit, self.limit)
        return made

    def longest(self, schema: Schema) -> float:
        """Largest norm of a record's features, bias not included."""
        squares = 0.0
        for column in schema:
            own = math.hypot(self.limit, float(column.marked)) if column.name in self.columns else column.bound
            squares += own**2
        return math.sqrt(squares)


def number_places(schema: Schema) -> dict[str, int]:
    """Index of the feature of each numeric column, by the column's name."""
    starts = np.cumsum([0, *(len(column.names) for column in schema)])
    return {
        column.name: int(start) for column, start in zip(schema, starts[:-1], strict=True) if column.categories is None
    }


def prepared(table: pa.Table, schema: Schema, whitening: Whitening | None) -> Matrix:
    """The features (n, d) of a table with the schema's columns, whitened by `whitening`."""
    rows = features(table, schema)
    return rows if whitening is None else whitening(rows, schema)


def longest_prepared(schema: Schema, whitening: Whitening | None) -> float:
    """Largest norm of a record's features after an optional whitening, bias not included."""
    return longest(schema) if whitening is None else whitening.longest(schema)


def standards(
    means: Vector, second: Matrix, noise: float, mean_noise: float, records: int
) -> tuple[Vector, Vector, Matrix]:
    """Centres (p,), scales (p,) and a whitening matrix (p, p) of numbers from -1 to 1.

    `means` (p,) have noise of deviation `mean_noise`; second moments `second` (p, p) have `noise` on the diagonal and
    sqrt(1/2) times it elsewhere. Errors of correlations include those of noise and of sampling, to first order, without
    those of scales.
    """
    centres, scales = centres_and_scales(means, np.diag(second), noise, mean_noise)
    units = np.outer(scales, scales)
    squares = centres[:, None] ** 2 + centres**2
    errors = np.sqrt(noise**2 / 2.0 + mean_noise**2 * (squares + mean_noise**2)) / units
    correlations = (second - np.outer(means, means)) / units
    return centres, scales, decorrelation(correlations, np.hypot(errors, records**-0.5))


def decorrelation(correlations: Matrix, errors: Matrix) -> Matrix:
    """A symmetric M (p, p) with M R M close to the identity, for estimated correlations R (p, p).

    M R M has trace p for the estimate, so records have about the same mean norm as before. M is symmetric, so that
    each feature resembles its own column most.

    `errors` (p, p): standard deviations of the estimates; the diagonal is not used. Estimates shrink towards 0 as
    normal ones with a common unknown variance (empirical Bayes). If errors are as large as the estimates, M is the
    identity. Directions that may be noise are not magnified further: eigenvalues of symmetric noise of deviation e
    reach 2 e sqrt(p) (Wigner's semicircle). Half of that is the least eigenvalue used, or LEAST_EIGENVALUE if larger.
    """
    p = len(correlations)
    off = ~np.eye(p, dtype=bool)
    estimates, noise = np.where(off, np.clip(correlations, -1.0, 1.0), 0.0), np.where(off, errors**2, 0.0)
    count = max(1, p * (p - 1))
    signal = max(0.0, float((estimates**2 - noise).sum()) / count)
    weights = np.divide(signal, signal + noise, out=np.zeros((p, p)), where=(signal + noise > 0) & off)
    left = math.sqrt(float((weights**2 * noise).sum()) / count)
    shrunk = weights * estimates + np.eye(p)
    with threadpool_limits(limits=1, user_api="blas"):  # the number of threads changes the last bits
        values, directions = np.linalg.eigh((shrunk + shrunk.T) / 2.0)
        least = np.maximum(values, max(LEAST_EIGENVALUE, left * math.sqrt(p)))
        size = p / float(np.maximum(values / least, 0.0).sum())
        made: Matrix = (directions * np.sqrt(size / least)) @ directions.T
    return (made + made.T) / 2.0
