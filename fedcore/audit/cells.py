"""Combination of many exact tests: families of p-values share one false alarm probability.

Within a family the smallest p-value counts, times the number of its cells (Bonferroni). A family of thousands of cells
thus takes no power from one of a few.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats
from scipy.special import betainc

from fedcore.audit.finding import Finding


def least(
    instrument: str,
    families: Mapping[str, np.ndarray],
    false_alarm: float,
    sentence: str,
    names: Mapping[str, Sequence[object]] | None = None,
) -> Finding:
    """The finding of the family with the least corrected p-value; `false_alarm` or more passes.

    `families`: p-values of any shape by name; an empty family is left out. `sentence`: the tested hypothesis. `names`:
    labels of a family's first axis, instead of numbers from 0. A p-value that is not a number alarms.
    Raises ValueError if there is no cell at all.
    """
    seen = {name: np.asarray(cells, dtype=float) for name, cells in families.items() if np.size(cells)}
    if not seen or not 0 < false_alarm < 1:
        raise ValueError(f"{len(seen)} families at a false alarm probability of {false_alarm} make no test")
    corrected = {
        name: -1.0 if np.isnan(cells).any() else float(cells.min()) * cells.size * len(seen)
        for name, cells in seen.items()
    }
    worst = min(corrected, key=lambda name: corrected[name])
    p, cells = min(1.0, corrected[worst]), seen[worst]
    at = [int(place) for place in np.unravel_index(int(np.argmin(cells)), cells.shape)]
    known = None if names is None else names.get(worst)
    labels = [str(known[at[0]]), *map(str, at[1:])] if known is not None else list(map(str, at))
    where = "" if cells.size == 1 else f" {', '.join(labels)}"
    cells_in_all = sum(cells.size for cells in seen.values())
    detail = (
        f"{sentence}: of {cells_in_all} tests in {len(seen)} families the least likely is {worst}{where}, corrected "
        f"p-value {max(p, 0.0):.3g}; at least {false_alarm:.3g} passes"
    )
    # NaN must alarm: a comparison with NaN is false.
    return Finding(instrument, p >= false_alarm, p, false_alarm, false_alarm, detail)


def chi_square(total: np.ndarray, freedom: np.ndarray | float) -> np.ndarray:
    """Two-sided p-values of sums of squares of `freedom` standard normals; both tails are exact."""
    return np.asarray(np.minimum(1.0, 2.0 * np.minimum(stats.chi2.cdf(total, freedom), stats.chi2.sf(total, freedom))))


def normal(z: np.ndarray) -> np.ndarray:
    """Two-sided p-values of standard normals."""
    return np.asarray(2.0 * stats.norm.sf(np.abs(z)))


def binomial(count: np.ndarray, trials: np.ndarray | int, rate: np.ndarray | float) -> np.ndarray:
    """Two-sided p-values of counts: twice the smaller tail, at most 1."""
    tails = np.minimum(stats.binom.cdf(count, trials, rate), stats.binom.sf(np.asarray(count) - 1, trials, rate))
    return np.asarray(np.minimum(1.0, 2.0 * tails))


def cosine(c: np.ndarray, width: int) -> np.ndarray:
    """Two-sided p-values of the cosine of two independent vectors of `width` numbers, one isotropic.

    The squared cosine is Beta(1/2, (width - 1)/2), whatever the other vector is. One number has no angle: p = 1. An
    angle below 1e-7 counts as 1e-7: rounding shows in smaller ones, which are not rare among millions of pairs in the
    plane.
    """
    if width < 2:
        return np.ones_like(np.asarray(c, dtype=float))
    left = np.clip(1.0 - np.square(c), 1e-14, 1.0)
    return np.asarray(betainc((width - 1) / 2.0, 0.5, left))
