"""Config section `model`: the loss, the scaling of records, and the public bounds."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, model_validator

from fedcore.hyperparameters import Count, Factor, Section
from fedcore.limits import MOST_WEIGHTS
from fedcore.losses import Logistic, LossConfig, Smoothable, Softmax
from fedcore.models.activations import Activation
from fedcore.models.hidden_layer import Start
from fedcore.models.regression_network import RegressionLoss
from fedcore.models.smoothing import ConvolutionSmoothing, MoreauSmoothing

Normalise = Literal["record", "features"]
"""The part of a record that is scaled to a bounded norm: with its bias, or the features before the bias is appended."""


class ModelConfig(Section):
    """A model, chosen by its loss, with the public constants that the guarantee and the theory need."""

    loss: LossConfig = Logistic()
    smoothing: MoreauSmoothing | ConvolutionSmoothing | None = Field(None, discriminator="name")
    """Train on a smoothed form of a nonsmooth loss (hinge, absolute, quantile); null: on the loss itself."""
    hidden: Count | None = Field(None, ge=1, le=MOST_WEIGHTS)
    """Units of a hidden layer between features and classes (loss softmax), or one output for a real label (squared,
    huber); null: predictors are linear."""
    activation: Activation = "relu"
    """Activation of the hidden units: relu, or softplus, which has no corners."""
    start: Start = "fan-in"
    """Half-width of the uniform distribution of a network's first weights, layer by layer. fan-in: 1/sqrt(fan_in);
    literal: sqrt(fan_in), as DIFF2's paper prints."""
    bias: bool = True
    """Append a constant feature 1 to each record, before or after scaling as `normalise` selects."""
    feature_bound: Factor = Field(1.0, gt=0)
    """Largest Euclidean norm of the scaled part (`normalise`) of each record."""
    normalise: Normalise = "record"
    """record: scale the record with its bias. features: scale the features alone, before the bias is appended, as
    DP-SCAFFOLD's paper does; a record's norm is then at most sqrt(feature_bound^2 + 1)."""
    clip: Factor | None = Field(None, gt=0)
    """Bound C on the Euclidean norm of one record's gradient; null: the loss's Lipschitz bound times that of a record's
    norm."""
    diameter: Factor = Field(20.0, gt=0)
    """Diameter D of the ball around 0 that the model stays in (radius D/2), also the D of the schedules."""
    ridge: Factor = Field(0.0, ge=0)
    """Weight of (ridge/2)|w|^2 in the objective, bias included; added after noise, so it costs no privacy."""

    @property
    def record_bound(self) -> float:
        """Bound on the Euclidean norm of a prepared record, bias column included."""
        if self.normalise == "features" and self.bias:
            return math.hypot(self.feature_bound, 1.0)
        return self.feature_bound

    @property
    def reach(self) -> float:
        """Bound on the size of a predictor: a record's norm times the radius of the domain."""
        return self.record_bound * self.diameter / 2

    @property
    def gradient_bound(self) -> float:
        """C: clipping bound of one record's gradient, in units of loss per weight."""
        return self.clip if self.clip is not None else self.loss.lipschitz * self.record_bound

    @model_validator(mode="after")
    def _features_have_a_bias_beside_them(self) -> ModelConfig:
        if self.normalise == "features" and not self.bias:
            raise ValueError("model.normalise = features has no meaning with model.bias = false: leave it out")
        return self

    @model_validator(mode="after")
    def _network_is_complete(self) -> ModelConfig:
        if self.hidden is None and (self.activation != "relu" or self.start != "fan-in"):
            key, value = ("activation", self.activation) if self.activation != "relu" else ("start", self.start)
            raise ValueError(f"model.{key} = {value} has no meaning without model.hidden: a linear model has no units")
        if self.hidden is not None and not isinstance(self.loss, Softmax | RegressionLoss):
            raise ValueError(
                f"model.hidden = {self.hidden} needs model.loss.name = softmax for classes, squared or huber for real "
                f"labels, not {self.loss.name!r}"
            )
        if self.hidden is not None and self.clip is None:
            raise ValueError(
                f"model.hidden = {self.hidden}: gradients of a network grow with its weights, so no constant bounds "
                "them: set model.clip to a positive number"
            )
        return self

    @model_validator(mode="after")
    def _gradient_is_bounded(self) -> ModelConfig:
        if self.clip is None and not self.loss.lipschitz < float("inf"):
            raise ValueError(f"loss {self.loss.name!r} has no Lipschitz constant: set model.clip to a positive number")
        return self

    @model_validator(mode="after")
    def _smoothing_is_of_a_nonsmooth_loss(self) -> ModelConfig:
        if self.smoothing is not None and not isinstance(self.loss, Smoothable):
            raise ValueError(f"model.smoothing must be null: loss {self.loss.name!r} is smooth already")
        return self

    @property
    def class_ids(self) -> bool:
        """True if labels are numbers of classes, 0 to C-1; else two classes are -1 and +1, or labels are real."""
        return self.loss.labels.numbered

    @property
    def convex(self) -> bool:
        """True if the trained objective is convex in the weights; else theorems have no constants for it."""
        return self.hidden is None

    @property
    def smooth(self) -> bool:
        """True if the trained objective has a finite smoothness constant."""
        return self.convex and (self.smoothing is not None or self.loss.smoothness_within(self.reach) < float("inf"))
