"""Tests that secret samples are as planned and independent: sizes, records, and overlaps.

Amplification by sampling fails if the same records are asked about again and again. The overlap of two independent
samples is binomial (coins) or hypergeometric (a fixed size).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from scipy import stats
from scipy.signal import fftconvolve

from fedcore.audit.cells import binomial, least
from fedcore.audit.finding import Finding
from fedcore.audit.releases import SHARED, Draw, Releases

COMPARED = 512
"""Most samples of one phase that are all compared with each other."""


def samples(releases: Releases, false_alarm: float) -> Finding:
    """Tests participation: every record and place as often as planned, and samples of planned sizes.

    Counts are binomial. Samples of a fixed size have exactly that size, and participation does not depend on records;
    these two tests have no chance. statistic: the least corrected p-value; threshold: the least that passes.
    """
    families: dict[str, np.ndarray] = {}
    draws = apart_from_shared_coins(releases.draws)
    for phase, mine in by_phase(draws).items():
        taken = np.array([draw.taken for draw in mine])
        rate, (many, n) = mine[0].rate, taken.shape
        rows = np.array([draw.rows for draw in mine])
        top = int(rows.max()) + 1
        there = np.bincount(rows.ravel(), minlength=top)
        in_sample = np.bincount(rows[taken], minlength=top)
        sizes = taken.sum(axis=1)
        families[f"phase {phase}, record"] = binomial(in_sample, there, rate)[there > 0]
        families[f"phase {phase}, place"] = binomial(taken.sum(axis=0), many, rate)
        if mine[0].sampling == "without-replacement":
            families[f"phase {phase}, size"] = np.array([float((sizes == round(rate * n)).all())])
        else:
            families[f"phase {phase}, size"] = binomial(sizes, n, rate)
            likely = stats.binom.pmf(round(rate * n), n, rate)
            families[f"phase {phase}, the likeliest size"] = binomial((sizes == round(rate * n)).sum(), many, likely)
    families["coins that look at records"] = np.array([float(_blind(releases.draws))])
    return least("samples", families, false_alarm, "every record is in a secret sample as often as planned")


def overlap(releases: Releases, false_alarm: float) -> Finding:
    """Tests overlaps of samples: any two of a phase, and all neighbouring asks, rounds, runs and silos.

    Also tests how many records of a sample are neighbours. statistic: the least corrected p-value; threshold: the least
    that passes.
    """
    families: dict[str, np.ndarray] = {}
    draws = apart_from_shared_coins(releases.draws)
    for phase, mine in by_phase(draws).items():
        families[f"phase {phase}, any two samples"] = _closest(mine[:COMPARED])
        index = {(d.scene, d.run, d.address[1], d.ask): d for d in mine}
        for name, step in {
            "asks of a round": (0, 0, 0, 1),
            "rounds": (0, 0, 1, 0),
            "rounds but one": (0, 0, 2, 0),
            "runs": (0, 1, 0, 0),
            "silos": (1, 0, 0, 0),
        }.items():
            both = [_joint(pairs) for odd in (0, 1) if (pairs := _apart(index, step, odd))]
            if both:
                families[f"phase {phase}, {name}"] = np.array(both)
        orders = ([draw.taken for draw in mine], [draw.taken[np.argsort(draw.rows)] for draw in mine])
        families[f"phase {phase}, neighbours by place and by row"] = np.array([_adjacent(taken) for taken in orders])
    return least("overlap of samples", families, false_alarm, "secret samples are independent")


def apart_from_shared_coins(draws: Iterable[Draw]) -> list[Draw]:
    """The draws that are independent of each other at a correct silo."""
    return [draw for draw in draws if draw.scene != SHARED]


def by_phase(draws: Iterable[Draw]) -> dict[int, list[Draw]]:
    """Draws by phase; those of one phase share shard and rate."""
    found: dict[int, list[Draw]] = {}
    for draw in draws:
        found.setdefault(draw.address[0], []).append(draw)
    return found


def _blind(draws: Iterable[Draw]) -> bool:
    """True if one key and one query drew the same sample from records without features and from others."""
    silent: dict[tuple[int, tuple[int, int], int], np.ndarray] = {}
    for draw in draws:
        key = (draw.run, draw.address, draw.ask)
        if draw.scene == 0:
            silent[key] = draw.taken
        elif draw.scene == SHARED and key in silent and not np.array_equal(silent[key], draw.taken):
            return False
    return True


def _closest(draws: list[Draw]) -> np.ndarray:
    """One-sided p-values of the overlap of two samples, by pair; not corrected for their number."""
    if len(draws) < 2:
        return np.array([])
    taken = np.array([draw.taken for draw in draws]).astype(float)
    shared = (taken @ taken.T)[np.triu_indices(len(draws), 1)]
    n, rate = taken.shape[1], draws[0].rate
    if draws[0].sampling == "without-replacement":
        size = round(rate * n)
        return np.asarray(stats.hypergeom.sf(np.arange(n + 1) - 1, n, size, size)[shared.astype(int)])
    return np.asarray(stats.binom.sf(np.arange(n + 1) - 1, n, rate**2)[shared.astype(int)])


def _apart(
    index: dict[tuple[int, int, int, int], Draw], step: tuple[int, int, int, int], odd: int
) -> list[tuple[Draw, Draw]]:
    """Disjoint pairs of draws whose scene, run, round and ask differ by `step`.

    `odd`: 1 for pairs that begin with an odd number of steps, else 0. Both scenes of a pair have equal keys, except
    that the first two scenes are two silos.
    """
    found = []
    for key, draw in index.items():
        other = (key[0] + step[0], key[1] + step[1], key[2] + step[2], key[3] + step[3])
        begun = sum(at // by for at, by in zip(key, step, strict=True) if by)
        if other in index and begun % 2 == odd and not (step[0] and key[0]):
            found.append((draw, index[other]))
    return found


def _adjacent(samples: Sequence[np.ndarray]) -> float:
    """Two-sided p-value of how often a record of a sample is followed by another one of it.

    Given its size s of n, each sample is equally likely. It falls into r stretches with the hypergeometric probability
    C(s - 1, r - 1) C(n - s + 1, r) / C(n, s); s - r of its records are followed by another.
    """
    n, total = len(samples[0]), np.ones(1)
    for size, many in Counter(int(taken.sum()) for taken in samples).items():
        followed = np.arange(max(1, size))
        one = np.asarray(stats.hypergeom.pmf(size - followed, n, n - size + 1, size)) if size else np.ones(1)
        total = np.maximum(fftconvolve(total, _power(one, many)), 0.0)
    seen = sum(int((taken[1:] & taken[:-1]).sum()) for taken in samples)
    below, above = float(total[: seen + 1].sum()), float(total[seen:].sum())
    return min(1.0, 2.0 * max(0.0, min(below, above)))


def _joint(pairs: list[tuple[Draw, Draw]]) -> float:
    """Two-sided p-value of the total overlap of all pairs: a sum of independent counts, one for each pair."""
    shared = sum(int((first.taken & second.taken).sum()) for first, second in pairs)
    n, rate, many = len(pairs[0][0].taken), pairs[0][0].rate, len(pairs)
    if pairs[0][0].sampling != "without-replacement":
        return float(binomial(np.array(shared), many * n, rate**2))
    size = round(rate * n)
    one = np.asarray(stats.hypergeom.pmf(np.arange(size + 1), n, size, size))
    total = _power(one, many)
    below, above = float(total[: shared + 1].sum()), float(total[shared:].sum())
    return min(1.0, 2.0 * max(0.0, min(below, above)))


def _power(pmf: np.ndarray, many: int) -> np.ndarray:
    """Distribution of the sum of `many` independent counts, by repeated squaring; errors about 1e-15."""
    result, square = np.ones(1), pmf
    while many:
        if many & 1:
            result = fftconvolve(result, square)
        many >>= 1
        if many:
            square = fftconvolve(square, square)
    return np.asarray(np.maximum(result, 0.0))
