"""Per-record losses on a linear predictor z = <w, x>, with the constants that clipping and theory need.

Conventions: z and y are float64 (n,); every function answers (n,). A record's gradient is residual(z, y) * x.
To add a loss: one file here, one line in LOSSES; the contract tests then run it.
"""

from typing import Annotated

from pydantic import Field

from fedcore.losses.huber import Huber
from fedcore.losses.logistic import Logistic
from fedcore.losses.squared import Squared

LOSSES = {loss.name: loss for loss in (Logistic, Squared, Huber)}

Loss = Logistic | Squared | Huber
LossConfig = Annotated[Loss, Field(discriminator="name")]

__all__ = ["LOSSES", "Huber", "Logistic", "Loss", "LossConfig", "Squared"]
