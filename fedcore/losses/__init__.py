"""Per-record losses on a predictor, with the constants that clipping and theory need.

Those of LOSSES are for a linear predictor z = <w, x>. To add one: one file here and its import below
(docs/how-to/add-loss.md); the contract tests then run it. `Softmax` has a predictor of several values and a model of
its own.
"""

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any

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
from fedcore.losses.traits import CLASSES, COUNTS, LINKS, REALS, TWO_CLASSES, LabelSet, Link, PredictorLoss

_imported: list[Any] = [
    kind for kind in globals().values() if isinstance(kind, type) and issubclass(kind, PredictorLoss)
]

LOSSES: dict[str, Any] = {kind.name: kind for kind in _imported if isinstance(kind.name, str)}
"""Losses of a linear predictor by name: every one that is imported above."""

if TYPE_CHECKING:
    NamedLoss = PredictorLoss
    Loss = PredictorLoss
    LossConfig = PredictorLoss | Softmax
else:
    NamedLoss = reduce(or_, LOSSES.values())
    Loss = NamedLoss | Moreau | Convolution | DrawnConvolution
    LossConfig = Annotated[NamedLoss | Softmax, Field(discriminator="name")]


def unsmoothed(loss: Loss) -> NamedLoss:
    """The loss under a smoothed loss, which reports are about; any other loss itself."""
    return loss.loss if isinstance(loss, Moreau | Convolution | DrawnConvolution) else loss
