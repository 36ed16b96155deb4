"""Models: clipped sums of gradients without per-record tensors, and evaluation, behind one protocol."""

from fedcore.losses import Loss
from fedcore.models.linear import Linear
from fedcore.models.model import Flags, Model
from fedcore.models.network import OneHiddenLayer
from fedcore.models.regression_network import RegressionNetwork
from fedcore.models.softmax import SoftmaxRegression

Classifier = SoftmaxRegression | OneHiddenLayer
"""Models of classes, with a predictor for each."""

Network = OneHiddenLayer | RegressionNetwork
"""Models with a hidden layer."""

OwnLoss = SoftmaxRegression | OneHiddenLayer | RegressionNetwork
"""Models that have their own loss."""

Objective = Loss | OwnLoss
"""The function whose gradients silos agree to release: a loss on a linear predictor, or a model with its own loss."""


def model_of(objective: Objective) -> Model:
    """The model of an objective; a loss by itself means the linear model."""
    return objective if isinstance(objective, OwnLoss) else Linear(objective)


__all__ = [
    "Classifier",
    "Flags",
    "Linear",
    "Model",
    "Network",
    "Objective",
    "OneHiddenLayer",
    "OwnLoss",
    "RegressionNetwork",
    "SoftmaxRegression",
    "model_of",
]
