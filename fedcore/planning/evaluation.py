"""Federated evaluation: the held-out records of each silo, and the histogram released about them.

Evaluation serves runs without a public test file. At the ends of phases each silo releases a histogram of its held-out
records, label by bin of the model's score. Errors, recall and the area under the ROC curve follow from it. Training
never sees those records, so the two compose in parallel: a record pays for training or for evaluations, never for both.

Sensitivity (elementary). A record adds 1 to one cell. Replacing a record takes 1 from a cell and adds 1 to another. The
sum moves by at most sqrt(2) in norm, attained whenever the two cells differ. The clipping bound C of the plan is half
of that.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from fedcore.draws.stream import Draws
from fedcore.errors import InputError
from fedcore.randomness import draws, generator, public_key

EVALUATION: Final = "histogram"
"""Name of this kind of answer."""
HALF_DIAMETER = math.sqrt(0.5)
BINS = 4
"""Default number of score bins for two classes: the area under the curve comes out a little low, at little noise."""
MOST_BINS = 64
MOST_CLASSES = 1000

_GUARDED = hashlib.sha256(b"fedcore public 0").digest()
"""Key from which silos with secret keys draw the held-out records."""

Every = Literal["phase", "end"]


@dataclass(frozen=True)
class Evaluation:
    """Settings of the evaluations of a run.

    `epsilon`: target of all evaluations together at each silo's delta; None: without noise. `every`: after each phase
    of training, or at its end alone. `classes`: number of labels. `bins`: of scores for two classes, an even number,
    half of them on each side. For more classes the predicted class takes the place of a bin. `record_bound`: the norm
    of a record in which scores of linear models are measured.
    """

    epsilon: float | None
    every: Every
    classes: int
    bins: int = BINS
    record_bound: float = 1.0

    def __post_init__(self) -> None:
        """Raises InputError for numbers outside their ranges, wherever the object comes from."""
        if self.every not in ("phase", "end"):
            raise InputError("evaluation.every is phase or end")
        if not 2 <= self.classes <= MOST_CLASSES:
            raise InputError(f"an evaluation is of 2 to {MOST_CLASSES} classes, not of {self.classes:g}")
        if not (2 <= self.bins <= MOST_BINS and self.bins % 2 == 0):
            raise InputError(f"evaluation.bins = {self.bins:g} must be an even number from 2 to {MOST_BINS}")

        if not 1e-100 < self.record_bound < 1e100:
            raise InputError(f"an evaluation measures scores by a norm of records, not by {self.record_bound:g}")

    @property
    def columns(self) -> int:
        """Number of cells of one label."""
        return self.bins if self.classes == 2 else self.classes

    @property
    def cells(self) -> int:
        """Length of an answer, in numbers."""
        return self.classes * self.columns

    def count(self, phases: int) -> int:
        """Number of evaluations in a training of this many phases."""
        return phases if self.every == "phase" else 1

    @property
    def edges(self) -> NDArray[np.float64]:
        """Edges between bins of scores in [-1, 1] (bins - 1,): 0, and powers of two on both sides.

        The largest edge is 1/4: scores are in units of the largest possible score, and few records come near to that.
        """
        side = 0.5 ** np.arange(self.bins // 2, 1, -1)
        return np.concatenate([-side[::-1], [0.0], side])


def held_out(silo: str, n: int, held: int) -> NDArray[np.int64]:
    """Positions (held,), ascending, of the records that a simulated silo of n holds out.

    They follow from name and n alone: the same for all runs of all seeds, and a smaller number gives a subset of a
    larger.
    """
    return np.asarray(np.sort(draws(public_key(0), silo, n, "held out").choice(n, held, replace=False)))


def guarded_held_out(silo: str, n: int, held: int) -> NDArray[np.int64]:
    """Positions (held,) that a silo with secret keys holds out, drawn by NumPy as in earlier versions."""
    order = generator(_GUARDED, silo, n, "held out").permutation(n)
    return np.asarray(np.sort(order[:held]))


def order_of_run(
    run_order: np.random.Generator | Draws, n: int, held: int, apart: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Positions of all records in the order of a run's split (n,).

    The training records come first, permuted, then those held `apart`.
    """
    if not held:
        return np.asarray(run_order.permutation(n))
    rest = np.setdiff1d(np.arange(n), apart, assume_unique=True)
    return np.concatenate([rest[run_order.permutation(n - held)], apart])
