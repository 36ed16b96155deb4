"""Measures of a model on public test data, beside those of a constant answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcore.arrays import Vector
from fedcore.data.labels import from_unit
from fedcore.data.records import Records
from fedcore.losses.traits import SOFTMAX
from fedcore.models.model import Model


def measures(
    model: Model,
    w: Vector,
    test: Records,
    classes: Sequence[str | int] | None,
    label_range: tuple[float, float] | None = None,
    parts: Sequence[tuple[str, int]] = (),
) -> dict[str, Any]:
    """Loss and errors of the model at w on public records, and errors without a model, by their names in `RunResult`.

    For `classes`: test_error, recall by class, the area under the ROC curve, and the error of always answering the test
    data's most frequent class. With more than two classes the area is the mean of each against the rest, by softmax
    probabilities.

    For numbers (`classes` None): errors of the predicted mean in the label's own units, and the explained part of the
    test labels' variance. It is at most 1; at 0 or less, the mean of the test labels predicts as well.

    `parts`: silos in order, each with the number of test records of its kind. They add errors by silo and their plain
    mean.
    """
    losses, wrong = model.evaluate(w, test.X, test.y)
    found: dict[str, Any] = {"test_loss": float(np.mean(losses))}
    z = model.predictors(w, test.X)
    if classes is None or wrong is None:
        return found | (_of_numbers(model.link.inverse(z), test.y, label_range) if classes is None else {})
    numbers = np.where(test.y > 0, 1, 0) if z.ndim == 1 else test.y.astype(np.int64)
    counts = np.bincount(numbers, minlength=len(classes))
    right = np.bincount(numbers[~wrong], minlength=len(classes))
    return (
        found
        | _by_part(wrong, numbers, parts)
        | {
            "test_error": float(np.mean(wrong)),
            "majority_error": float(1.0 - counts.max() / len(numbers)),
            "test_recall": {str(classes[k]): float(right[k] / counts[k]) for k in map(int, np.flatnonzero(counts))},
            "test_auc": _area(z, numbers),
        }
    )


def area_under_curve(scores: NDArray[np.float64], positive: NDArray[np.bool_]) -> float | None:
    """Probability that a positive record has a higher score than a negative one, ties counting half; None without both.

    Mann and Whitney's U over the number of pairs: the area under the ROC curve.
    """
    many, others = int(positive.sum()), int((~positive).sum())
    if not many or not others:
        return None
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2.0)[place]
    return float((ranks[positive].sum() - many * (many + 1) / 2.0) / (many * others))


def _by_part(wrong: NDArray[np.bool_], numbers: NDArray[np.int64], parts: Sequence[tuple[str, int]]) -> dict[str, Any]:
    """Errors on each silo's test records, their mean, and the mean error of each silo's most frequent class."""
    if not parts:
        return {}
    ends = np.cumsum([n for _, n in parts])[:-1]
    errors = [float(np.mean(part)) for part in np.split(wrong, ends)]
    alone = [1.0 - np.bincount(part).max() / len(part) for part in np.split(numbers, ends)]
    return {
        "test_errors": dict(zip((name for name, _ in parts), errors, strict=True)),
        "silo_mean_error": float(np.mean(errors)),
        "silo_mean_majority_error": float(np.mean(alone)),
    }


def _area(z: NDArray[np.float64], numbers: NDArray[np.int64]) -> float | None:
    if z.ndim == 1:
        return area_under_curve(z, numbers == 1)
    if z.shape[1] == 2:
        return area_under_curve(z[:, 1] - z[:, 0], numbers == 1)
    each = [area_under_curve(share, numbers == k) for k, share in enumerate(SOFTMAX.inverse(z).T)]
    known = [area for area in each if area is not None]
    return float(np.mean(known)) if known else None


def _of_numbers(z: Vector, y: Vector, label_range: tuple[float, float] | None) -> dict[str, Any]:
    """Errors of predicted means `z` (n,) of labels `y` (n,), in the units of `label_range`."""
    if label_range is not None:
        z, y = from_unit(z, label_range), from_unit(y, label_range)
    off = z - y
    spread = float(np.mean((y - y.mean()) ** 2))
    return {
        "test_rmse": float(np.sqrt(np.mean(off**2))),
        "test_mae": float(np.mean(np.abs(off))),
        "mean_rmse": float(np.sqrt(spread)),
        "variance_explained": float(1.0 - np.mean(off**2) / spread) if spread > 0 else None,
    }
