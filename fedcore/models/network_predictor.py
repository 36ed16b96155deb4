"""Trained networks as scikit-learn estimators that scikit-learn lacks: softplus, or a real label.

Saved models name these classes: their names, their place and the names of their attributes must not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from fedcore.arrays import Matrix, Vector
from fedcore.models.activations import UNITS, Activation


class NetworkPredictor(BaseEstimator):
    """Predicts a number. A hidden unit's bias is the weight of the record's constant 1.

    Fitted are `first_` (features, hidden), `second_` (hidden, outputs) and `biases_` (outputs,).
    """

    first_: Matrix
    second_: Matrix
    biases_: Vector

    def __init__(self, activation: Activation = "softplus") -> None:
        self.activation = activation

    def fit(self, X: Any, y: Any) -> NetworkPredictor:
        """Raises NotImplementedError: silos trained the network. An estimator must have this method."""
        raise NotImplementedError("a network that silos trained is not fitted again")

    def predict(self, X: Any) -> np.ndarray:
        """The predicted number of each record (n, features), (n,)."""
        return np.asarray(self.outputs(X)[:, 0])

    def outputs(self, X: Any) -> Matrix:
        """Outputs of each record (n, outputs)."""
        records = np.asarray(X, dtype=np.float64)
        return np.asarray(UNITS[self.activation].values(records @ self.first_) @ self.second_ + self.biases_)


class NetworkClassifier(NetworkPredictor):
    """Predicts one of `classes`, values of the label of one type."""

    def __init__(self, activation: Activation = "softplus", classes: Sequence[str | int] = ()) -> None:
        super().__init__(activation)
        self.classes = classes

    def predict(self, X: Any) -> np.ndarray:
        """The class of the largest output of each record (n, features), the first of ties (n,)."""
        return np.asarray(np.array(self.classes)[self.outputs(X).argmax(axis=1)])

    def predict_proba(self, X: Any) -> Matrix:
        """The softmax of the outputs (n, classes)."""
        z = self.outputs(X)
        p = np.exp(z - z.max(axis=1, keepdims=True))
        return np.asarray(p / p.sum(axis=1, keepdims=True))
