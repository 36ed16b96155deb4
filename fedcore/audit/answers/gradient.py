"""Clipped gradients of single records, computed one by one without the code under test."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from fedcore.arrays import Matrix, Vector
from fedcore.audit.answers.answer import Sum
from fedcore.losses import DrawnConvolution, Loss
from fedcore.models import Classifier, Network, Objective, OneHiddenLayer, OwnLoss, SoftmaxRegression, model_of
from fedcore.planning.plan import Plan
from fedcore.planning.problem import Problem
from fedcore.randomness import draws, public_key
from fedcore.silo.answers.answer import Shard
from fedcore.silo.answers.gradient import Gradient


class WatchedGradient(Gradient):
    notes: list[Sum]

    def clipped_sum(
        self, w: Vector, shard: Shard, chosen: np.ndarray | None = None, shifts: Vector | None = None
    ) -> Vector:
        self.notes.append(Sum(w.copy(), chosen, shifts))
        return super().clipped_sum(w, shard, chosen, shifts)


class AuditedGradient:
    """A record adds the gradient of its loss, clipped to norm C."""

    watched: ClassVar[type[Any]] = WatchedGradient

    def __init__(self, plan: Plan, loss: Objective | None) -> None:
        if loss is None:
            raise ValueError("there is no loss to take gradients of")
        self.problem, self.loss = plan.problem, loss
        self.features = _features(loss, self.problem.objective.dim)
        self.classes = loss.classes if isinstance(loss, Classifier) else None
        self.silent = not isinstance(loss, Network)  # a network's outputs have biases of their own
        self.drawn = isinstance(loss, DrawnConvolution)
        self.allowed = self.problem.objective.clip  # |p - e_y|, or |z - y|, is about 1
        if not isinstance(loss, OwnLoss):
            self.allowed = self.problem.objective.clip / max(_steepness(loss), 1e-3)

    @cached_property
    def start(self) -> Vector:
        """0, or a network's first weights, within the domain."""
        w = model_of(self.loss).start(self.features, draws(public_key(0), "start"))
        return w * min(1.0, 0.49 * self.problem.objective.diameter / max(float(np.linalg.norm(w)), 1e-300))

    @property
    def about(self) -> Vector:
        return self.start

    @property
    def no_canaries(self) -> str | None:
        if self.drawn:
            return "gradients are taken at points that the silo draws and keeps to itself"
        if isinstance(self.loss, Network):
            return "records of a network share its hidden units, so canaries would disturb each other"
        return None

    def parts(self, w: Vector, X: Matrix, y: Vector, shifts: Vector | None = None) -> Matrix:
        gradients, clip = self.gradients(w, X, y, shifts), self.problem.objective.clip
        norms = np.sqrt(np.einsum("ij,ij->i", gradients, gradients))
        return gradients * (clip / np.maximum(norms, clip))[:, None]

    def gradients(self, w: Vector, X: Matrix, y: Vector, shifts: Vector | None = None) -> Matrix:
        """Unclipped gradients of each record's loss at w (n, d)."""
        loss = self.loss
        if isinstance(loss, SoftmaxRegression):
            delta = _softmax(X @ w.reshape(loss.classes, -1).T)
            delta[np.arange(len(y)), y.astype(int)] -= 1.0
            return np.asarray((delta[:, :, None] * X[:, None, :]).reshape(len(X), -1))
        if isinstance(loss, Network):
            return _network(loss, w, X, y)
        z = X @ w if shifts is None else X @ w + shifts
        return np.asarray(loss.residual(z, y)[:, None] * X)

    def folded(self, total: Vector) -> Vector:
        return total

    def loud(self, norm: float) -> float:
        return norm if isinstance(self.loss, OwnLoss) else norm / _steepness(self.loss)

    def extremes(self) -> tuple[tuple[Vector, Vector], ...]:
        return ()

    def farthest(self, x: Vector, y: float) -> tuple[Vector, float]:
        return (-x, y) if isinstance(self.loss, OwnLoss) else (x, self.loss.labels.opposite(y))

    def elsewhere(self, problem: Problem) -> Problem:
        objective = replace(problem.objective, diameter=1.5 * problem.objective.diameter)
        return replace(problem, objective=objective)


def _features(loss: Objective, dim: int) -> int:
    if isinstance(loss, SoftmaxRegression):
        return dim // loss.classes
    if isinstance(loss, Network):
        outputs = loss.classes if isinstance(loss, OneHiddenLayer) else 1
        return (dim - outputs * (loss.hidden + 1)) // loss.hidden
    return dim


def _steepness(loss: Loss) -> float:
    """The smaller |derivative| of the loss at prediction 0 for its pair of labels."""
    return float(np.abs(loss.residual(np.zeros(2), np.array(loss.labels.pair))).min())


def _softmax(z: Matrix) -> Matrix:
    p = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(p / p.sum(axis=1, keepdims=True))


def _network(loss: Network, w: Vector, X: Matrix, y: Vector) -> Matrix:
    """Gradients by the chain rule, layer by layer (n, d)."""
    first = loss.hidden * X.shape[1]
    W1, W2 = w[:first].reshape(loss.hidden, -1), w[first:].reshape(-1, loss.hidden + 1)
    before = X @ W1.T
    if loss.activation == "relu":
        units, slopes = np.maximum(before, 0.0), (before > 0.0).astype(np.float64)
    else:
        tail = np.exp(-np.abs(before))  # log(1 + exp(z)) = max(z, 0) + log(1 + exp(-|z|))
        units, slopes = np.maximum(before, 0.0) + np.log1p(tail), np.where(before > 0.0, 1.0, tail) / (1.0 + tail)
    h = np.hstack([units, np.ones((len(X), 1))])
    if isinstance(loss, OneHiddenLayer):
        outer = _softmax(h @ W2.T)
        outer[np.arange(len(y)), y.astype(int)] -= 1.0
    else:
        outer = loss.loss.residual(h @ W2[0], y)[:, None]
    inner = (outer @ W2[:, :-1]) * slopes
    return np.hstack([(a[:, :, None] * b[:, None, :]).reshape(len(X), -1) for a, b in ((inner, X), (outer, h))])
