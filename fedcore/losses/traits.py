"""Traits that every loss declares: labels, link to predictions, constants over a range."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from fedcore.arrays import Vector

Values = NDArray[np.float64]

RESIDUAL_ERROR = 2.0**-40
"""Default bound on the rounding of a residual, far above a few units in the last place of numbers below 2."""
HELD = 300.0
"""Largest predictor that the log link exponentiates. Squares of exp(300) are finite, and no data have such counts."""


@dataclass(frozen=True)
class LabelSet:
    """A set of labels, as plain values, so that a silo's source can carry it.

    `name`: a plural noun for messages. `classes`: labels are classes of `data.classes`. A model is then measured by
    error, recall and AUC, and otherwise by RMSE and MAE of its mean. `numbered`: classes are coded 0 to C-1, each with
    a predictor of its own. `values`: the only labels; None: no list. `whole`: integers. `least`: the smallest label;
    None: there is none. `pair`: two labels whose gradients at predictor 0 are opposite. `unbounded`: labels lie far on
    either side of every predictor.
    """

    name: str
    classes: bool
    pair: tuple[float, float]
    numbered: bool = False
    values: tuple[float, ...] | None = None
    whole: bool = False
    least: float | None = None
    unbounded: bool = False

    def contains(self, y: Vector) -> NDArray[np.bool_]:
        """True for labels in the set (n,); a label that is not finite is never in it."""
        found = np.isfinite(y)
        if self.least is not None:
            found &= y >= self.least
        if self.whole:
            found &= np.floor(y) == y
        if self.values is not None:
            found &= np.isin(y, self.values)
        return np.asarray(found)

    def opposite(self, y: float) -> float:
        """The other label of the pair; in general, a label's mirror image in the pair's middle."""
        return self.pair[0] + self.pair[1] - y


TWO_CLASSES = LabelSet("two classes", classes=True, pair=(-1.0, 1.0), values=(-1.0, 1.0))
CLASSES = LabelSet("classes", classes=True, pair=(0.0, 1.0), numbered=True, whole=True, least=0.0)
REALS = LabelSet("real numbers", classes=False, pair=(-1.0, 1.0), unbounded=True)
COUNTS = LabelSet("counts 0, 1, 2, ...", classes=False, pair=(0.0, 2.0), whole=True, least=0.0)


@dataclass(frozen=True)
class Link:
    """The map from predictors to predictions.

    `inverse`: from predictors, (n,) or (n, C), to predictions of the same shape. `probable`: predictions are
    probabilities, of the second class or of each; a served model then has `predict_proba`.
    """

    name: str
    inverse: Callable[[Values], Values]
    probable: bool = False


def _same(z: Values) -> Values:
    return z


def held_exponential(z: Values) -> Values:
    """exp(min(z, HELD)), in an array of its own."""
    mean = np.minimum(z, HELD)
    return np.asarray(np.exp(mean, out=mean))


def _probability(z: Values) -> Values:
    return np.asarray(expit(z))


def shares(z: Values) -> Values:
    """exp(z) over its sum in each row (n, C)."""
    odds = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(odds / odds.sum(axis=1, keepdims=True))


IDENTITY = Link("identity", _same)
LOG = Link("log", held_exponential)
SCORE = Link("score", _same)
LOGIT = Link("logit", _probability, probable=True)
SOFTMAX = Link("softmax", shares, probable=True)

LINKS = {link.name: link for link in (IDENTITY, LOG, SCORE, LOGIT, SOFTMAX)}
"""Links by the name that a saved model holds."""


class LossTraits:
    """Constants of a loss that planning, evaluation, serving and audits read.

    A loss declares the properties as class variables or as properties. A constant that grows with the predictor
    overrides the methods of a reach.
    """

    @property
    def labels(self) -> LabelSet:
        """The labels that the loss takes."""
        raise NotImplementedError

    @property
    def link(self) -> Link:
        """The map from predictors to the predictions that are measured and served."""
        raise NotImplementedError

    @property
    def smoothness(self) -> float:
        """Bound on the second derivative in the predictor; infinite where the derivative jumps."""
        raise NotImplementedError

    @property
    def curvature_lipschitz(self) -> float:
        """Bound on the change of the second derivative per predictor; infinite where there is none."""
        return float("inf")

    def smoothness_within(self, reach: float) -> float:
        """Bound on the second derivative for predictors from -reach to reach."""
        return self.smoothness

    def curvature_lipschitz_within(self, reach: float) -> float:
        """Bound on the change of the second derivative per predictor, from -reach to reach."""
        return self.curvature_lipschitz

    def residual_error(self, reach: float) -> float:
        """Bound on the rounding of a residual for predictors from -reach to reach."""
        return RESIDUAL_ERROR


class PredictorLoss(LossTraits):
    """A loss on one predictor z per record. z and y are float64 (n,), and so are the results.

    A class with a `name` is a choice of `model.loss.name`.
    """

    @property
    def name(self) -> str:
        """As in `model.loss.name`."""
        raise NotImplementedError

    @property
    def lipschitz(self) -> float:
        """Bound on the size of the derivative; infinite where there is none, and `model.clip` has to be given."""
        raise NotImplementedError

    def value(self, z: Vector, y: Vector) -> Vector:
        """Loss of each record."""
        raise NotImplementedError

    def residual(self, z: Vector, y: Vector) -> Vector:
        """Derivative in z, in an array of its own; a record's gradient is residual(z, y) * x."""
        raise NotImplementedError

    def residual_change(self, z: Vector, dz: Vector, y: Vector) -> Vector:
        """residual(z, y) - residual(z - dz, y), with the relative accuracy of dz, however small."""
        raise NotImplementedError

    def curvature(self, z: Vector, y: Vector) -> Vector:
        """Second derivative in z where it exists."""
        raise NotImplementedError
