"""Synthetic records that make a silo's answers readable: one known gradient, one loud record, many random bits."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedcore.audit.transcript import Subject, Transcript, record_gradient, row_order
from fedcore.data.records import Records
from fedcore.losses import Loss

OVER = 4.0
"""Unclipped over clipped gradient norm of a canary at a fair prediction: clipped for all but confident predictions."""


def known_records(subject: Subject, rng: np.random.Generator) -> Records:
    """n equal records with half of the allowed gradient norm at w = 0: any piece of them has the mean of one."""
    x = _unit(rng, subject.plan.problem.dim) * (0.5 * subject.plan.problem.clip)
    return Records(np.tile(x, (subject.n, 1)), np.ones(subject.n))


def silent_records(subject: Subject) -> Records:
    """n records without features, hence without gradients: every exact sum is zero, of samples too."""
    return Records(np.zeros((subject.n, subject.plan.problem.dim)), np.ones(subject.n))


def known_means(subject: Subject, records: Records, transcript: Transcript) -> np.ndarray:
    """The exact mean of every answer about `known_records` (A, d)."""
    x, clip = records.X[0], subject.plan.problem.clip
    return np.array([record_gradient(subject.loss, w, x, 1.0, clip) for w in transcript.w])


@dataclass(frozen=True, eq=False)
class Pair:
    """Two data sets: those at `rows` (k,) of the records are (x, -1) or (x, +1), all others are zero and push nowhere.

    `direction` (d,): where such a record pushes from the first to the second, the opposite of x.
    """

    without: Records
    canary: Records
    direction: np.ndarray
    rows: np.ndarray
    x: np.ndarray

    def means(self, subject: Subject, y: float, transcript: Transcript, inside: np.ndarray) -> np.ndarray:
        """The exact mean of every answer about the side with label `y`, if `inside` (A,) of its records are in it."""
        clip = subject.plan.problem.clip
        gradients = [record_gradient(subject.loss, w, self.x, y, clip) for w in transcript.w]
        return np.array(gradients) * (inside / transcript.counts)[:, None]


def clipping_pair(subject: Subject, rows: np.ndarray, rng: np.random.Generator) -> Pair:
    """A pair whose records have an unclipped gradient norm of 1,000 C, or 40 times the noise on a sum if that is more.

    With one row the two are neighbours.
    """
    problem, first = subject.plan.problem, subject.events[0]
    wanted = max(1000.0 * problem.clip, 40.0 * first.sigma * (first.stop - first.start))
    residual = float(np.abs(subject.loss.residual(np.zeros(2), np.array([1.0, -1.0]))).min())
    unit = _unit(rng, problem.dim)
    X, y = np.zeros((subject.n, problem.dim)), np.ones(subject.n)
    X[rows] = x = unit * (wanted / residual)
    y[rows] = -1.0
    return Pair(Records(X, y), Records(X, np.ones(subject.n)), -unit, rows, x)


@dataclass(frozen=True, eq=False)
class Canaries:
    """m canaries: at `positions` of the split, each alone on its axis among `axes` within its piece, with its sign.

    All are (m,). A canary's record is (length e_axis, sign * label).
    """

    records: Records
    positions: np.ndarray
    axes: np.ndarray
    signs: np.ndarray
    length: float
    label: float


def canary_records(subject: Subject, run: str, rng: np.random.Generator) -> Canaries:
    """As many canaries as axes keep apart: at most d in records that are answered about together. The rest are zero.

    A coin flip replaces one record by another whose gradient is opposite: the change of a sum that sensitivity bounds.
    """
    problem = subject.plan.problem
    positions, axes = [], []
    for start, stop in _pieces(subject):
        many = min(stop - start, problem.dim)
        positions.append(start + rng.permutation(stop - start)[:many])
        axes.append(rng.permutation(problem.dim)[:many])
    at, axis = np.concatenate(positions), np.concatenate(axes)
    length, label = _canary_form(subject.loss, problem.clip, problem.diameter)
    signs = rng.choice(np.array([-1.0, 1.0]), size=len(at))
    rows = row_order(subject, run)[at]
    X, y = np.zeros((subject.n, problem.dim)), np.full(subject.n, label)
    X[rows, axis] = length
    y[rows] = signs * label
    return Canaries(Records(X, y), at, axis, signs, length, label)


def scores(subject: Subject, canaries: Canaries, transcript: Transcript) -> np.ndarray:
    """Log likelihood ratio (m,) of sign +1 against -1, by all answers about a canary's piece.

    The asked weights are known and axes are not shared, so the released coordinate of a canary is one of two known
    numbers plus planned noise: no other score tells the signs better.
    """
    clip, total = subject.plan.problem.clip, np.zeros(len(canaries.signs))
    for event, w, payload in zip(transcript.events, transcript.w, transcript.payload, strict=True):
        inside = (canaries.positions >= event.start) & (canaries.positions < event.stop)
        axes, count = canaries.axes[inside], event.stop - event.start
        z = w[axes] * canaries.length
        plus, minus = (
            np.clip(subject.loss.residual(z, np.full(len(z), sign * canaries.label)) * canaries.length, -clip, clip)
            for sign in (1.0, -1.0)
        )
        seen = payload[axes] * count
        total[inside] += (seen - (plus + minus) / 2) * (plus - minus) / (event.sigma * count) ** 2
    return total


def canary_count(subject: Subject) -> int:
    """How many canaries `canary_records` places."""
    return sum(min(stop - start, subject.plan.problem.dim) for start, stop in _pieces(subject))


def _pieces(subject: Subject) -> list[tuple[int, int]]:
    """The least disjoint ranges of positions that cover those of all answers, in order."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted({(event.start, event.stop) for event in subject.events}):
        if found and start < found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], stop))
        else:
            found.append((start, stop))
    return found


def _canary_form(loss: Loss, clip: float, diameter: float) -> tuple[float, float]:
    """Norm of a canary's features and size of its label, so that both of its forms are clipped where that can be.

    A label in {-1, +1} leaves a confident prediction with a small gradient; a real one is out of the domain's reach.
    """
    if loss.binary:
        return OVER * clip / loss.lipschitz, 1.0
    steep = loss.lipschitz if math.isfinite(loss.lipschitz) else 1.0
    length = OVER * clip / steep
    return length, OVER * (1.0 + steep + diameter * length)


def _unit(rng: np.random.Generator, dim: int) -> np.ndarray:
    direction = rng.standard_normal(dim)
    return np.asarray(direction / np.linalg.norm(direction))
