"""Per-record losses on a predictor, with the constants that clipping and theory need.

Those of LOSSES are for a linear predictor z = <w, x>. Conventions: z and y are float64 (n,); every function answers
(n,). A record's gradient is residual(z, y) * x. To add one: one file here and its name in the union NamedLoss
(docs/adding-a-loss.md); the contract tests then run it. `Softmax` has a predictor of several values and a model of its
own.
"""

from typing import Annotated, get_args

from pydantic import Field

from fedcore.losses.absolute import Absolute
from fedcore.losses.convolution import Convolution
from fedcore.losses.drawn_convolution import DrawnConvolution
from fedcore.losses.hinge import Hinge
from fedcore.losses.huber import Huber
from fedcore.losses.logistic import Logistic
from fedcore.losses.moreau import Moreau, Smoothable
from fedcore.losses.poisson import Poisson
from fedcore.losses.quantile import Quantile
from fedcore.losses.softmax import Softmax
from fedcore.losses.squared import Squared
from fedcore.losses.traits import CLASSES, COUNTS, LINKS, REALS, TWO_CLASSES, LabelSet, Link

NamedLoss = Logistic | Squared | Huber | Hinge | Absolute | Quantile | Poisson
LOSSES: dict[str, type[NamedLoss]] = {loss.name: loss for loss in get_args(NamedLoss)}

LossConfig = Annotated[NamedLoss | Softmax, Field(discriminator="name")]
Loss = NamedLoss | Moreau | Convolution | DrawnConvolution


def unsmoothed(loss: Loss) -> NamedLoss:
    """The loss that a smoothed one stands for, and which reports are about; any other loss itself."""
    return loss.loss if isinstance(loss, Moreau | Convolution | DrawnConvolution) else loss


__all__ = [
    "CLASSES",
    "COUNTS",
    "LINKS",
    "LOSSES",
    "REALS",
    "TWO_CLASSES",
    "Absolute",
    "Convolution",
    "DrawnConvolution",
    "Hinge",
    "Huber",
    "LabelSet",
    "Link",
    "Logistic",
    "Loss",
    "LossConfig",
    "Moreau",
    "NamedLoss",
    "Poisson",
    "Quantile",
    "Smoothable",
    "Softmax",
    "Squared",
    "unsmoothed",
]
