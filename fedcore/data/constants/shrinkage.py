"""Centres and scales of columns from noised means and squares with noise of known deviation.

A noised variance alone may be negative, or a tenth of the true one. But columns of one schema have similar deviations,
and the size of the noise is public. So each estimate shrinks towards the common level, the more the larger its error.
This is a function of released and public numbers, so it has no privacy cost.
"""

from __future__ import annotations

import numpy as np

from fedcore.arrays import Matrix, Vector

LEAST_SCALE = 0.01
"""Least scale, in halves of a range, which limits the magnification of a column that varies little."""
USUAL_SCALE, DOUBT = 0.3, 0.5
"""Prior of a column's deviation, in halves of its range, and the deviation of its logarithm. It is a guess for ranges
that hold most values, made before any data; good estimates outweigh it."""

_SCALES = np.linspace(np.log(LEAST_SCALE), 0.0, 120)
_LEVELS = np.linspace(np.log(USUAL_SCALE) - 3 * DOUBT, np.log(USUAL_SCALE) + 3 * DOUBT, 31)
_SPREADS = np.array([0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0])


def centres_and_scales(
    means: Vector, squares: Vector, noise: float, mean_noise: float | None = None
) -> tuple[Vector, Vector]:
    """Centres (p,) in -1 to 1 and scales (p,) in LEAST_SCALE to 1, of columns in -1 to 1.

    `means`, `squares` (p,): mean and mean square of each column with independent noise of deviation `noise`.
    `mean_noise`: deviation for the means, if it differs. Without noise (0) the result is mean and deviation.
    """
    own = noise if mean_noise is None else mean_noise
    centres = np.clip(_shrunk(means, own), -1.0, 1.0)
    variances = squares - means**2 + own**2
    if noise == 0:
        return centres, np.sqrt(np.clip(variances, LEAST_SCALE**2, 1.0))
    # Errors of the square, and of the squared mean, in which the mean's error counts twice.
    part = (own / noise) ** 2
    errors = noise * np.sqrt(1.0 + part * 4.0 * centres**2 + part * 2.0 * own**2)
    return centres, _posterior(variances, errors)


def _shrunk(means: Vector, noise: float) -> Vector:
    """Shrinks means towards 0, the middle of each range, by the noise's share of their size.

    This is the positive-part estimator of James and Stein 1961.
    """
    size = float(np.mean(means**2))
    return means * max(0.0, size - noise**2) / size if size > 0 else means


def _posterior(variances: Vector, errors: Vector) -> Vector:
    """exp of the posterior means of log scales, on grids.

    Model: log scales of columns are normal around an unknown common level with an unknown common spread. Each noised
    variance is normal around its squared scale, with known error.
    """
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
