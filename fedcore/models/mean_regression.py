"""A trained linear model behind a link as a scikit-learn estimator: it predicts means of the label.

Saved models name this class: its name, its place and the names of its attributes must not change.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin

from fedcore.arrays import Vector
from fedcore.losses import LINKS


class MeanRegression(RegressorMixin, BaseEstimator):
    """Predicts the mean of each record by the inverse of `link`, a name of `LINKS`.

    Fitted are `coef_` (features,), `intercept_` and `n_features_in_`.
    """

    coef_: Vector
    intercept_: float
    n_features_in_: int

    def __init__(self, link: str = "log") -> None:
        self.link = link

    def fit(self, X: Any, y: Any) -> MeanRegression:
        """Raises NotImplementedError: silos trained the model."""
        raise NotImplementedError("a regression that silos trained is not fitted again")

    def predict(self, X: Any) -> np.ndarray:
        """The mean of each record (n, features), (n,)."""
        z = np.asarray(X, dtype=np.float64) @ self.coef_ + self.intercept_
        return np.asarray(LINKS[self.link].inverse(z))
