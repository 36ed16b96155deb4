"""Clipped gradients and moments of single records, worked out apart from the code under test, one by one."""

from __future__ import annotations

import math

import numpy as np

from fedcore.algorithms import SecondMoments
from fedcore.arrays import Matrix, Vector
from fedcore.audit.subject import Subject
from fedcore.models import OneHiddenLayer, SoftmaxRegression


def record_parts(subject: Subject, w: Vector, X: Matrix, y: Vector, shifts: Vector | None = None) -> Matrix:
    """What each record adds to an exact sum about w (n, d): its gradient clipped to norm C, or its moments.

    `shifts` (n,): of the predictors, at points that the silo drew.
    """
    if isinstance(subject.method, SecondMoments):
        return _moments(X, subject.method.bound)
    loss = subject.objective
    if isinstance(loss, SoftmaxRegression):
        delta = _softmax(X @ w.reshape(loss.classes, -1).T)
        delta[np.arange(len(y)), y.astype(int)] -= 1.0
        gradients = (delta[:, :, None] * X[:, None, :]).reshape(len(X), -1)
    elif isinstance(loss, OneHiddenLayer):
        gradients = _network(loss, w, X, y)
    else:
        z = X @ w if shifts is None else X @ w + shifts
        gradients = loss.residual(z, y)[:, None] * X
    norms = np.sqrt(np.einsum("ij,ij->i", gradients, gradients))
    return gradients * (subject.clip / np.maximum(norms, subject.clip))[:, None]


def _softmax(z: Matrix) -> Matrix:
    p = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(p / p.sum(axis=1, keepdims=True))


def _network(loss: OneHiddenLayer, w: Vector, X: Matrix, y: Vector) -> Matrix:
    """Gradients by the chain rule, layer by layer (n, d)."""
    first = loss.hidden * X.shape[1]
    W1, W2 = w[:first].reshape(loss.hidden, -1), w[first:].reshape(loss.classes, -1)
    before = X @ W1.T
    h = np.hstack([np.maximum(before, 0.0), np.ones((len(X), 1))])
    outer = _softmax(h @ W2.T)
    outer[np.arange(len(y)), y.astype(int)] -= 1.0
    inner = (outer @ W2[:, :-1]) * (before > 0.0)
    return np.hstack([(a[:, :, None] * b[:, None, :]).reshape(len(X), -1) for a, b in ((inner, X), (outer, h))])


def _moments(X: Matrix, bound: float) -> Matrix:
    """(B x, upper triangle of x x', entries off the diagonal times sqrt(2)) of each record, cut to norm B."""
    norms = np.array([math.hypot(*row) for row in X])
    X = X * (bound / np.maximum(norms, bound))[:, None]
    rows, columns = np.triu_indices(X.shape[1])
    return np.hstack([bound * X, X[:, rows] * X[:, columns] * np.where(rows == columns, 1.0, math.sqrt(2.0))])
