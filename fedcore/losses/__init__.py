"""Per-record losses on a predictor, with the constants that clipping and theory need.

Those of LOSSES are for a linear predictor z = <w, x>. Conventions: z and y are float64 (n,); every function answers
(n,). A record's gradient is residual(z, y) * x. To add one: one file here, one line in LOSSES and in the union
NamedLoss; the contract tests then run it. `Softmax` has a predictor of several values and a model of its own.
"""

from typing import Annotated

from pydantic import Field

from fedcore.losses.absolute import Absolute
from fedcore.losses.convolution import Convolution
from fedcore.losses.drawn_convolution import DrawnConvolution
from fedcore.losses.hinge import Hinge
from fedcore.losses.huber import Huber
from fedcore.losses.logistic import Logistic
from fedcore.losses.moreau import Moreau, Smoothable
from fedcore.losses.quantile import Quantile
from fedcore.losses.softmax import Softmax
from fedcore.losses.squared import Squared

LOSSES = {loss.name: loss for loss in (Logistic, Squared, Huber, Hinge, Absolute, Quantile)}

NamedLoss = Logistic | Squared | Huber | Hinge | Absolute | Quantile
LossConfig = Annotated[NamedLoss | Softmax, Field(discriminator="name")]
Loss = NamedLoss | Moreau | Convolution | DrawnConvolution


def unsmoothed(loss: Loss) -> NamedLoss:
    """The loss that a smoothed one stands for, and which reports are about; any other loss itself."""
    return loss.loss if isinstance(loss, Moreau | Convolution | DrawnConvolution) else loss


__all__ = [
    "LOSSES",
    "Absolute",
    "Convolution",
    "DrawnConvolution",
    "Hinge",
    "Huber",
    "Logistic",
    "Loss",
    "LossConfig",
    "Moreau",
    "NamedLoss",
    "Quantile",
    "Smoothable",
    "Softmax",
    "Squared",
    "unsmoothed",
]
