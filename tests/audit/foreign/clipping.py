"""Bugs of a record's influence on a sum of gradients: bounds, norms, corners and unusual records."""

from __future__ import annotations

import numpy as np

from fedcore.models.linear import row_norms
from tests.audit.bug import Bug, as_if
from tests.problems import changed_phase

BOUNDS = "fedcore.models.linear:residual_bounds"
NORMS = "fedcore.models.linear:row_norms"
RESIDUALS = "fedcore.models.linear:clipped_residuals"


def _per_class(right):
    def summed(self, w, X, y, bounds, weights=None):
        z = self.predictors(w, X)
        p = np.exp(z - z.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        p[np.arange(len(y)), np.nan_to_num(y).astype(int) % self.classes] -= 1.0
        known = (bounds > 0)[:, None]
        return (np.where(known, np.clip(p, -bounds[:, None], bounds[:, None]), 0.0).T @ X).ravel()

    return summed


def _one_sided(right):
    return lambda loss, z, y, high, low, weights=None: right(loss, z, y, high, np.full_like(low, -np.inf), weights)


def _large_pass(right):
    return lambda X, clip: np.where(row_norms(X) > 50.0, np.inf, right(X, clip))


def _label_weight(right):
    def clipped(loss, z, y, high, low, weights=None):
        return right(loss, z, y, high, low, weights) * np.maximum(1.0, np.abs(np.nan_to_num(y)))

    return clipped


def _none_is_one(right):
    def summed(r, X):
        return np.where(np.isfinite(r), r, 1.0) @ X

    return summed


def _pairs(right):
    """A micro-batch of two is clipped to twice the bound."""

    def summed(self, w, shard, chosen=None, shifts=None):
        residual = self.model.loss.residual(shard.X @ w, shard.y)
        each = np.nan_to_num(residual)[:, None] * shard.X
        pairs = each[0::2].copy()
        pairs[: len(each[1::2])] += each[1::2]
        lengths = np.linalg.norm(pairs, axis=1, keepdims=True)
        return (pairs * np.minimum(1.0, 2.0 * self.clip / np.maximum(lengths, 1e-300))).sum(axis=0)

    return summed


def _adaptive(right):
    """The clipping bound follows the median gradient, as far as it is below the planned one."""

    def bounds(X, clip):
        return right(X, min(clip, float(np.median(row_norms(X)))))

    return bounds


def _network_labels(right):
    return lambda self, X, y, clip: right(self, X, y, clip) * np.maximum(1.0, np.abs(np.nan_to_num(y)) / 10.0)


def _smaller_part(right):
    return lambda self, w, X, y, bounds, weights=None: right(self, w, X, y, bounds * 1.4142, weights)


def _first_rows(right):
    def bounds(X, clip):
        found = right(X, clip)
        found[: len(found) // 10] *= 1.5
        return found

    return bounds


def _late_weights(right):
    """Records of class +1 are rare at some silos, so they are upweighted after clipping."""

    def clipped(loss, z, y, high, low, weights=None):
        return right(loss, z, y, high, low, weights) * np.where(y > 0, 1.25, 1.0)

    return clipped


def _least_bound(right):
    return lambda X, clip: np.maximum(right(X, clip), 0.02)


def _step_at_least(right):
    def summed(self, phase, shard, chosen, draw, *arrays):
        length = float(np.linalg.norm(arrays[0] - arrays[1]))
        wider = max(length, 0.5) / length if length > 0 else 1.0
        return right(self, changed_phase(phase, clip=phase.question.clip * wider), shard, chosen, draw, *arrays)

    return summed


def _fifth_more(right):
    return lambda self, w, before, X, y, bound, weights=None: right(self, w, before, X, y, bound * 1.2, weights)


def _first_block(right):
    """In a sample, records that are not chosen are clipped to a hundredth of their bound instead of zero."""

    def summed(self, w, shard, chosen=None, shifts=None):
        total = right(self, w, shard, chosen, shifts)
        return total if chosen is None else total + 0.02 * right(self, w, shard, None, shifts)

    return summed


DIFFERENCE = "fedcore.silo.answers.gradient_difference:GradientDifference.sum"

BUGS = (
    Bug(
        "bound twice as long",
        "clipping: a record moves a sum by 4 clip, twice what is charged",
        lambda: as_if((BOUNDS, lambda right: lambda X, clip: right(X, 2.0 * clip))),
    ),
    Bug(
        "bound a seventh longer",
        "clipping: bounds are 15 % longer than the charge allows",
        lambda: as_if((BOUNDS, lambda right: lambda X, clip: right(X, 1.15 * clip))),
    ),
    Bug(
        "bound a fiftieth longer",
        "clipping: bounds are 2 % longer than the charge allows",
        lambda: as_if((BOUNDS, lambda right: lambda X, clip: right(X, 1.02 * clip))),
    ),
    Bug(
        "norm without the last column",
        "clipping: a record along the last column (a bias) is measured as short",
        lambda: as_if((NORMS, lambda right: lambda X: right(X[:, :-1]))),
    ),
    Bug(
        "largest entry for a norm",
        "clipping: norms are those of the largest entry, sqrt(d) too short",
        lambda: as_if((NORMS, lambda right: lambda X: np.abs(X).max(axis=1, initial=0.0))),
    ),
    Bug(
        "norms at half precision",
        "clipping: norms are rounded to 11 bits, 5e-4 too short, where 1e-6 is charged",
        lambda: as_if((NORMS, lambda right: lambda X: right(X).astype(np.float16).astype(np.float64))),
    ),
    Bug(
        "only one side clipped",
        "clipping: residuals below zero have no bound, so records of class +1 have none",
        lambda: as_if((RESIDUALS, _one_sided)),
        "coins",
    ),
    Bug(
        "outliers unclipped",
        "clipping: records longer than 50 are let through whole",
        lambda: as_if((BOUNDS, _large_pass)),
    ),
    Bug(
        "weight of a label",
        "clipping: a label other than +-1 multiplies its record after it was clipped",
        lambda: as_if((RESIDUALS, _label_weight)),
    ),
    Bug(
        "not a number counts one",
        "clipping: a record whose label is no number adds all of its row, of any length",
        lambda: as_if(("fedcore.models.linear:weighted_sum", _none_is_one)),
    ),
    Bug(
        "pairs clipped together",
        "clipping: two records share one bound, and one of them may turn both",
        lambda: as_if(("fedcore.silo.answers.gradient:Gradient.clipped_sum", _pairs)),
    ),
    Bug(
        "bound from the median",
        "clipping: the bound is a statistic of the records, without noise; one moves all",
        lambda: as_if((BOUNDS, _adaptive)),
    ),
    Bug(
        "first tenth of rows wider",
        "clipping: the records in the first places of the split have bounds 1.5 as long",
        lambda: as_if((BOUNDS, _first_rows)),
        "shards",
    ),
    Bug(
        "class weights after clipping",
        "clipping: records of class +1 count 1.25 after they were clipped to 1",
        lambda: as_if((RESIDUALS, _late_weights)),
        "local steps",
    ),
    Bug(
        "least bound of residuals",
        "clipping: no residual is held below 0.02, so records above 50 exceed the clip",
        lambda: as_if((BOUNDS, _least_bound)),
    ),
    Bug(
        "classes clipped one by one",
        "clipping: each class of a softmax gradient has the whole bound, twice in all",
        lambda: as_if(("fedcore.models.softmax:SoftmaxRegression.clipped_gradient_sum", _per_class)),
        "softmax",
    ),
    Bug(
        "layers clipped apart",
        "clipping: a network's bound is sqrt(2) too long, as if each layer had its own",
        lambda: as_if(("fedcore.models.hidden_layer:HiddenLayer.clipped_gradient_sum", _smaller_part)),
        "network",
    ),
    Bug(
        "norm without biases",
        "clipping: the last columns of rows and hidden units are not measured",
        lambda: as_if(("fedcore.models.norms:norms_of", lambda right: lambda rows: right(rows[:, :-1]))),
        "network",
    ),
    Bug(
        "bound by the label",
        "clipping: a number to predict above 10 lengthens its record's bound in proportion",
        lambda: as_if(("fedcore.models.hidden_layer:HiddenLayer.bounds", _network_labels)),
        "network of numbers",
    ),
    Bug(
        "steps of half at least",
        "clipping: differences are clipped as if the step were 0.5 long, noise is not",
        lambda: as_if((DIFFERENCE, _step_at_least)),
        "differences",
    ),
    Bug(
        "differences a fifth longer",
        "clipping: differences of softmax gradients are clipped 20 % too late",
        lambda: as_if(("fedcore.models.softmax:SoftmaxRegression.clipped_difference_sum", _fifth_more)),
        "differences of softmax",
    ),
    Bug(
        "network differences a quarter longer",
        "clipping: differences of a network's gradients: 25 % late",
        lambda: as_if(
            (
                "fedcore.models.hidden_layer:HiddenLayer.clipped_difference_sum",
                lambda right: (
                    lambda self, w, b, X, y, bound, weights=None: right(self, w, b, X, y, 1.25 * bound, weights)
                ),
            )
        ),
        "differences of a network",
    ),
    Bug(
        "drawn points clipped at thrice",
        "clipping: at drawn points the bound is another clip, 3 times as long",
        lambda: as_if(("fedcore.models.linear:residual_bounds", lambda right: lambda X, clip: right(X, 3.0 * clip))),
        "drawn points",
    ),
    Bug(
        "the unchosen count a fiftieth",
        "sampling: a record that is in no sample still adds 2 % of its gradient",
        lambda: as_if(("fedcore.silo.answers.gradient:Gradient.clipped_sum", _first_block)),
        "coins",
    ),
)
