"""Synthetic records that distinguish two data sets: one or many loud records, or random signs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedcore.audit.audit_session import row_order
from fedcore.audit.audited_silo import AuditedSilo
from fedcore.audit.scenes import labels, unit
from fedcore.audit.transcript import Transcript
from fedcore.data.records import Records
from fedcore.losses import Loss
from fedcore.models import OwnLoss

OVER = 4.0
"""Ratio of a canary's unclipped gradient norm to the bound, at a fair prediction."""


@dataclass(frozen=True, eq=False)
class Pair:
    """Two data sets: records at `rows` (k,) push along `direction` (d,) in the second, back in the first.

    All other records have no features.
    """

    without: Records
    canary: Records
    direction: np.ndarray
    rows: np.ndarray


def clipping_pair(audited: AuditedSilo, rows: np.ndarray, rng: np.random.Generator) -> Pair:
    """A pair whose records have an unclipped gradient norm of 1,000 C.

    The norm is 40 times the noise on a sum if that is more. The two forms of a record are as far apart as the auditor
    can place them for its kind of answer (`AuditedAnswer.farthest`). With one row the two data sets are neighbours.
    """
    first = audited.events[0]
    wanted = max(1000.0 * audited.clip, 40.0 * first.sigma * first.rate * (first.stop - first.start))
    x = unit(rng, audited.answer.features) * audited.answer.loud(wanted)
    label = float(labels(audited, rng, 1)[0])
    forms = (audited.answer.farthest(x, label), (x, label))
    sides, parts = [], []
    for features, y in forms:
        X = np.zeros((audited.n, audited.answer.features))
        X[rows] = features
        ys = np.full(audited.n, 1.0)
        ys[rows] = y
        sides.append(Records(X, ys))
        part = audited.answer.parts(audited.answer.about, features[None, :], np.array([y]))[0]
        parts.append(audited.answer.folded(part))
    away = parts[1] - parts[0]
    return Pair(sides[0], sides[1], away / max(float(np.linalg.norm(away)), 1e-300), rows)


@dataclass(frozen=True, eq=False)
class Canaries:
    """m canaries at `positions` of the split, each with its sign, and alone on its feature in its shard.

    `axes` are the features.
    All are (m,). `plus`, `minus`: the two forms of each canary; `records` holds the form of its sign.
    """

    records: Records
    positions: np.ndarray
    axes: np.ndarray
    signs: np.ndarray
    plus: Records
    minus: Records


def canary_records(audited: AuditedSilo, run: str, rng: np.random.Generator) -> Canaries:
    """Canaries at as many positions as features can keep apart among records that an answer sums.

    The other records have no features. Each coin flip replaces one record by another with the opposite gradient, which
    is the change of a sum that sensitivity bounds.
    """
    positions, axes = [], []
    for start, stop in _shards(audited):
        many = min(stop - start, audited.answer.features)
        positions.append(start + rng.permutation(stop - start)[:many])
        axes.append(rng.permutation(audited.answer.features)[:many])
    at, axis = np.concatenate(positions), np.concatenate(axes)
    signs = rng.choice(np.array([-1.0, 1.0]), size=len(at))
    plus = np.zeros((len(at), audited.answer.features))
    if isinstance(audited.loss, OwnLoss):
        plus[np.arange(len(at)), axis] = OVER * audited.clip
        minus, y = -plus, labels(audited, rng, len(at))
        opposite = y
    else:
        length, label = _canary_form(audited.linear_loss, audited.clip, audited.plan.problem.objective.diameter)
        plus[np.arange(len(at)), axis] = length
        minus, y = plus, np.full(len(at), label)
        opposite = np.full(len(at), audited.linear_loss.labels.opposite(label))
    rows = row_order(audited, run)[at]
    X, ys = np.zeros((audited.n, audited.answer.features)), np.ones(audited.n)
    X[rows] = np.where(signs[:, None] > 0, plus, minus)
    ys[rows] = np.where(signs > 0, y, opposite)
    return Canaries(Records(X, ys), at, axis, signs, Records(plus, y), Records(minus, opposite))


def scores(audited: AuditedSilo, canaries: Canaries, transcript: Transcript) -> np.ndarray:
    """Log likelihood ratio (m,) of sign +1 against -1, by all answers about a canary's shard.

    The weights of every question are known and canaries share no features. The released coordinates of a canary are
    therefore one of two known vectors plus planned noise. No other score separates the signs better.
    """
    total = np.zeros(len(canaries.signs))
    for event, sums, payload in zip(transcript.events, transcript.sums, transcript.payload, strict=True):
        inside = (canaries.positions >= event.start) & (canaries.positions < event.stop)
        plus, minus = (
            audited.answer.parts(sums[0].w, side.X[inside], side.y[inside]) for side in (canaries.plus, canaries.minus)
        )
        count = event.stop - event.start
        away = plus - minus
        total[inside] += ((payload * count - (plus + minus) / 2) * away).sum(axis=1) / (event.sigma * count) ** 2
    return total


def canary_count(audited: AuditedSilo) -> int:
    """Number of canaries that `canary_records` places."""
    return sum(min(stop - start, audited.answer.features) for start, stop in _shards(audited))


def _shards(audited: AuditedSilo) -> list[tuple[int, int]]:
    """The finest disjoint ranges of positions that cover those of all answers, in order."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted({(event.start, event.stop) for event in audited.events}):
        if found and start < found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], stop))
        else:
            found.append((start, stop))
    return found


def _canary_form(loss: Loss, clip: float, diameter: float) -> tuple[float, float]:
    """Norm of a canary's features and size of its label, to clip both forms where that is possible.

    A label of the loss's pair leaves a confident prediction with a small gradient. A real label is placed out of the
    domain's reach.
    """
    steep = loss.lipschitz if math.isfinite(loss.lipschitz) else 1.0
    length = OVER * clip / steep
    if not loss.labels.unbounded:
        return length, loss.labels.pair[1]
    return length, OVER * (1.0 + steep + diameter * length)
