"""Tests that the noise of all releases, and of all coordinates, is independent.

Noise may be used twice in another form: with the other sign, scaled, shifted by some coordinates, reordered, or as a
part of another vector. Directions of independent normal vectors are independent and uniform, so the cosine of two
of them has a known distribution. That also holds for two long vectors made of many releases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from scipy.special import gammaln

from fedcore.audit.cells import cosine, least
from fedcore.audit.finding import Finding
from fedcore.audit.releases import OTHER_PLAN, SHARED, Releases

WIDE = 256
"""Most coordinates compared in pairs, and most that are compared between two releases."""
SHIFTED = 128
"""Number of first coordinates in comparisons of shifted releases."""


def related_releases(releases: Releases, false_alarm: float) -> Finding:
    """Tests all pairs of releases for a common direction, and for equal numbers up to order and sign.

    Some pairs have something in common: neighbours in a run, one address at two silos, in two runs, about two data
    sets, of two plans. These are also compared with one of them shifted or reversed, each alone and all of a kind
    together. statistic: the least corrected p-value; threshold: the least that passes.
    """
    residuals = releases.residuals
    families = {
        "any two releases": _closest_directions(residuals[:, :WIDE]),
        "any two in another order": _same(residuals, releases.step),
    }
    for name, pairs in kinds(releases).items():
        families |= _shifted(name, residuals[:, :SHIFTED], pairs)
    return least("related releases", families, false_alarm, "noise of different releases is independent")


def kinds(releases: Releases) -> Mapping[str, np.ndarray]:
    """Pairs (P, 2) of releases that a fault in the noise's key would join."""
    return {
        "neighbours": releases.pairs(place=1),
        "next but one": releases.pairs(place=2),
        "next run": releases.pairs(run=1),
        "another silo": releases.pairs(scene=1, at=0),
        "other records": releases.pairs(scene=SHARED, at=0),
        "another plan": releases.pairs(scene=OTHER_PLAN, at=0),
    }


def related_coordinates(releases: Releases, false_alarm: float) -> Finding:
    """Tests all pairs of coordinates over all releases.

    Of a wide model, evenly chosen ones and neighbours.
    Compares values, and signs alone, which no rare large value can hide. statistic: the least corrected p-value.
    """
    residuals = releases.residuals
    width = residuals.shape[1]
    if width < 2:
        return least("related coordinates", {"one coordinate": np.ones(1)}, false_alarm, "there is but one coordinate")
    some = np.unique(np.linspace(0, width - 1, min(width, WIDE)).astype(int))
    columns = _unit(residuals[:, some].T)
    upper = np.triu_indices(len(some), 1)
    near = _unit(residuals.T)
    signs = np.sign(residuals[:, some])
    families = {
        "pair of coordinates": cosine((columns @ columns.T)[upper], releases.count),
        "neighbours": cosine(np.einsum("ij,ij->i", near[:-1], near[1:]), releases.count),
        "signs of a pair": _coins((signs.T @ signs)[upper], releases.count),
    }
    return least("related coordinates", families, false_alarm, "coordinates of the noise are independent")


def _coins(total: np.ndarray, many: int) -> np.ndarray:
    """Two-sided p-values of a sum of `many` fair signs, by Hoeffding's bound 2 exp(-t^2 / 2n)."""
    return np.asarray(np.minimum(1.0, 2.0 * np.exp(-np.square(total) / (2.0 * many))))


def _unit(rows: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(norms > 0, norms, 1.0))


def _closest_directions(rows: np.ndarray) -> np.ndarray:
    """P-value (1,) of the largest cosine of any two rows, over all pairs."""
    unit, worst = _unit(rows), 0.0
    for start in range(0, len(unit), 512):
        block = np.abs(unit[start : start + 512] @ unit[start:].T)
        block[np.arange(len(block)), np.arange(len(block))] = 0.0
        worst = max(worst, float(block.max())) if np.isfinite(block).all() else math.nan
    pairs = math.comb(len(unit), 2)
    return np.minimum(1.0, pairs * cosine(np.array([worst]), rows.shape[1]))


def _same(rows: np.ndarray, step: float = 0.0) -> np.ndarray:
    """P-value (1,) of the closest two rows up to order and signs.

    Only neighbours in norm can be that close.
    For one order and one choice of signs the squared distance of two rows over 2 is chi-square. It is below t with
    probability at most (t/2)^(d/2) / Gamma(d/2 + 1). There are d! orders, 2^d signs, and all pairs (Bonferroni).
    `step`: largest movement of a number by a grid; two numbers may have come closer by twice as much.
    """
    width, pairs = rows.shape[1], math.comb(len(rows), 2)
    order = np.argsort(np.square(rows).sum(axis=1))
    sorted_rows = np.sort(np.abs(rows), axis=1)[order]
    closest = math.sqrt(float(np.square(np.diff(sorted_rows, axis=0)).sum(axis=1).min()))
    half = (closest + 2.0 * step * math.sqrt(width)) ** 2 / 2.0
    if not math.isfinite(half):
        return np.array([math.nan])
    one = (width / 2) * math.log(max(half, 1e-300) / 2) - gammaln(width / 2 + 1)
    return np.array([math.exp(min(0.0, one + math.log(pairs) + width * math.log(2.0) + gammaln(width + 1)))])


def _shifted(name: str, rows: np.ndarray, pairs: np.ndarray) -> dict[str, np.ndarray]:
    """P-values for the first rows of pairs against the second, shifted by any number, also reversed.

    `... all together`: pairs that share no release are joined to two long vectors, for each shift.
    """
    if not len(pairs):
        return {}
    unit = _unit(rows)
    a, b = unit[pairs[:, 0]], unit[pairs[:, 1]]
    found = {}
    spectrum, width = np.fft.rfft(a, axis=1), rows.shape[1]
    apart = _disjoint(pairs)
    for turned, second in (("", b), (" reversed", b[:, ::-1])):
        lags = np.fft.irfft(spectrum.conj() * np.fft.rfft(second, axis=1), width, axis=1)
        largest = np.array([np.abs(lags).max()])
        found[f"{name}{turned}, any pair and shift"] = np.minimum(1.0, lags.size * cosine(largest, width))
        found[f"{name}{turned}, all together, shift"] = _joint(rows, pairs[apart], bool(turned))
    return found


def _joint(rows: np.ndarray, pairs: np.ndarray, reverse: bool) -> np.ndarray:
    """P-values by shift (d,) of the cosine of all first rows in one vector and all shifted second ones."""
    a, b = rows[pairs[:, 0]], rows[pairs[:, 1]]
    b = b[:, ::-1] if reverse else b
    dots = np.fft.irfft((np.fft.rfft(a, axis=1).conj() * np.fft.rfft(b, axis=1)).sum(axis=0), rows.shape[1])
    norms = max(float(np.linalg.norm(a) * np.linalg.norm(b)), np.finfo(float).tiny)
    return cosine(dots / norms, a.size)


def _disjoint(pairs: np.ndarray) -> np.ndarray:
    """Mask (P,) of pairs of which no two share a release: each pair that is disjoint from those before."""
    used: set[int] = set()
    disjoint = np.zeros(len(pairs), dtype=bool)
    for at, (first, second) in enumerate(pairs.tolist()):
        if first not in used and second not in used:
            disjoint[at] = True
            used |= {first, second}
    return disjoint
