"""Centres and scales of columns from noised means and squares, when it is public how large the noise is.

A noised variance alone may be negative, or a tenth of the true one. But columns of one schema spread alike, more or
less, and how far noise has moved each estimate is known: so each is drawn towards what all of them say, the more the
less can be told of it by itself. A function of released numbers and public ones, so it costs nothing.
"""

from __future__ import annotations

import numpy as np

from fedcore.arrays import Matrix, Vector

LEAST_SCALE = 0.01
"""Of half of a range: nothing is magnified further, however little it seems to vary."""
USUAL_SCALE, DOUBT = 0.3, 0.5
"""What a column's deviation is expected to be, in halves of its range, and the deviation of its logarithm: a guess for
ranges that hold most values, made before any data and forgotten where estimates are good."""

_SCALES = np.linspace(np.log(LEAST_SCALE), 0.0, 120)
_LEVELS = np.linspace(np.log(USUAL_SCALE) - 3 * DOUBT, np.log(USUAL_SCALE) + 3 * DOUBT, 31)
_SPREADS = np.array([0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0])


def centres_and_scales(
    means: Vector, squares: Vector, noise: float, mean_noise: float | None = None
) -> tuple[Vector, Vector]:
    """Centres (p,) in -1 to 1 and scales (p,) in LEAST_SCALE to 1, of columns with values in -1 to 1.

    `means`, `squares` (p,): mean and mean square of each column, all with independent noise of deviation `noise`, the
    means with `mean_noise` if that is another; 0: without, and what comes out is mean and deviation.
    """
    own = noise if mean_noise is None else mean_noise
    centres = np.clip(_shrunk(means, own), -1.0, 1.0)
    variances = squares - means**2 + own**2
    if noise == 0:
        return centres, np.sqrt(np.clip(variances, LEAST_SCALE**2, 1.0))
    # Of the square, and of the square of the mean, whose own error counts twice.
    part = (own / noise) ** 2
    errors = noise * np.sqrt(1.0 + part * 4.0 * centres**2 + part * 2.0 * own**2)
    return centres, _posterior(variances, errors)


def _shrunk(means: Vector, noise: float) -> Vector:
    """Towards 0, the middles of ranges, by as much as noise makes of their size (James and Stein
    1961, positive part)."""
    size = float(np.mean(means**2))
    return means * max(0.0, size - noise**2) / size if size > 0 else means


def _posterior(variances: Vector, errors: Vector) -> Vector:
    """exp of the posterior means of log scales, on grids: log scales of columns are normal around a common level, with
    a common spread, both unknown; each variance is normal around its square with known error."""
    away = (variances[:, None] - np.exp(2.0 * _SCALES)) / errors[:, None]
    fits: Matrix = -0.5 * away**2
    likelihood = np.exp(fits - fits.max(axis=1, keepdims=True))
    prior = np.exp(-0.5 * ((_SCALES - _LEVELS[:, None, None]) / _SPREADS[:, None]) ** 2)
    prior /= prior.sum(axis=2, keepdims=True)
    evidence = np.einsum("lsk,jk->lsj", prior, likelihood) + np.finfo(np.float64).tiny
    expected = np.einsum("lsk,jk->lsj", prior * _SCALES, likelihood) / evidence
    weight = np.log(evidence).sum(axis=2) - 0.5 * ((_LEVELS[:, None] - np.log(USUAL_SCALE)) / DOUBT) ** 2
    weight = np.exp(weight - weight.max())
    mean = np.einsum("ls,lsj->j", weight / weight.sum(), expected)
    return np.exp(np.clip(mean, _SCALES[0], 0.0))
