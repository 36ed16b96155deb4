"""Whitening of a schema's numbers: a matrix with public constants, after centres and scales.

Columns that say nearly the same thing make a loss that is flat along their differences, which gradients then take many
rounds to learn. Decorrelated ones do not. The matrix is public as centres and scales are, so the map stays one of each
record by itself; entries are cut again, so the norm of a record stays bounded.
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
"""Of correlations: directions of less variance are magnified as if they had that."""
MOST_COLUMNS = 256
"""That are whitened: the matrix travels with the silos' sources, and noise grows with the number of its entries."""
_LARGEST = 1e6  # of an entry: no product of a record overflows, whoever made the matrix


class Whitening(Section):
    """z -> M z, each entry cut to the limit, over the features of `columns` after centre and scale."""

    columns: tuple[str, ...] = Field(min_length=1, max_length=MOST_COLUMNS)
    """Numbers of the schema, each with one such feature; what says where values are missing stays as it is."""
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
        """With a matrix (p, p) of as many columns."""
        return cls(columns=columns, limit=limit, matrix=tuple(tuple(row) for row in matrix.tolist()))

    def fits(self, schema: Schema) -> bool:
        """Whether all columns are numbers of the schema."""
        return set(self.columns) <= number_places(schema).keys()

    def __call__(self, rows: Matrix, schema: Schema) -> Matrix:
        """Features (n, d) as `schema` makes them, with the columns' whitened; each row by itself. The schema fits."""
        starts, made = number_places(schema), rows.copy()
        places = [starts[name] for name in self.columns]
        # A product per row, as of a projection: a row's bits do not depend on how many others there are.
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
    """By name of a column that is a number, where its feature is among all."""
    starts = np.cumsum([0, *(len(column.names) for column in schema)])
    return {
        column.name: int(start) for column, start in zip(schema, starts[:-1], strict=True) if column.categories is None
    }


def prepared(table: pa.Table, schema: Schema, whitening: Whitening | None) -> Matrix:
    """The features (n, d) of a table that has the schema's columns."""
    rows = features(table, schema)
    return rows if whitening is None else whitening(rows, schema)


def longest_prepared(schema: Schema, whitening: Whitening | None) -> float:
    """Largest norm of a record's features, bias not included."""
    return longest(schema) if whitening is None else whitening.longest(schema)


def standards(
    means: Vector, second: Matrix, noise: float, mean_noise: float, records: int
) -> tuple[Vector, Vector, Matrix]:
    """Centres (p,), scales (p,) and a matrix (p, p) for what they leave, of numbers from -1 to 1 of so many records.

    `means` (p,) have noise of deviation `mean_noise`, second moments `second` (p, p) `noise` on the diagonal and
    sqrt(1/2) of that elsewhere. Errors of correlations are those of noise and of a sample, to first order; that of
    scales is left out.
    """
    centres, scales = centres_and_scales(means, np.diag(second), noise, mean_noise)
    units = np.outer(scales, scales)
    squares = centres[:, None] ** 2 + centres**2
    errors = np.sqrt(noise**2 / 2.0 + mean_noise**2 * (squares + mean_noise**2)) / units
    correlations = (second - np.outer(means, means)) / units
    return centres, scales, decorrelation(correlations, np.hypot(errors, records**-0.5))


def decorrelation(correlations: Matrix, errors: Matrix) -> Matrix:
    """A symmetric matrix M (p, p) for which M R M is about the identity, of estimated correlations R (p, p).

    Scaled so that M R M has trace p where R is as it is estimated: records are on average about as long as before.

    `errors` (p, p): standard deviations of the estimates, of which those off the diagonal are looked at. Estimates are
    drawn towards 0 as normal ones around it of a common, unknown variance (empirical Bayes): with errors as large as
    what is there, M is the identity. Directions in which what is left of the errors may be all there is are not
    magnified beyond that: eigenvalues of symmetric noise of deviation e reach 2 e sqrt(p) (Wigner's semicircle), and
    half of that, or LEAST_EIGENVALUE, is the least that is taken. Symmetric, so that a feature stays the one most like
    its column.
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
