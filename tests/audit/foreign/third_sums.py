"""Bugs of sums over records: clipping, the answer's own statistic, and state between sums."""

from __future__ import annotations

from tests.audit.bug import Bug, bug, edit

_ANSWERS = "fedcore.silo.answers"
_CLIPPED_SUM = f"{_ANSWERS}.gradient:Gradient.clipped_sum"

BUGS: tuple[Bug, ...] = (
    bug(
        "norms without the bias",
        "a record's norm leaves out the last column, so one that is long there is hardly clipped",
        "full batches",
        edit("fedcore.models.linear:residual_bounds", ("norms = row_norms(X)", "norms = row_norms(X[:, :-1])")),
    ),
    bug(
        "the largest class for the norm",
        "a residual is measured by its largest class, up to the square root of two shorter than it is",
        "softmax",
        edit(
            "fedcore.models.softmax:SoftmaxRegression.clipped_gradient_sum",
            ('np.sqrt(np.einsum("ij,ij->i", r, r))', "np.abs(r).max(axis=1)"),
        ),
    ),
    bug(
        "short steps have a least bound",
        "differences about steps below 0.01 are clipped as if they were 0.01, and noised as what they are",
        "differences",
        edit(
            f"{_ANSWERS}.gradient_difference:GradientDifference.sum",
            ("phase.question.clip * length", "phase.question.clip * max(length, 0.01)"),
        ),
    ),
    bug(
        "a diagonal that counts as if off it",
        "squares keep the square root of two of products, so unlike records lie farther apart than charged",
        "guarded moments",
        edit(f"{_ANSWERS}.moments:moment_sum", ("diagonal *= math.sqrt(0.5)", "diagonal *= 1.0")),
    ),
    bug(
        "columns that were bounded before",
        "entries are not cut to -1 and 1 again, so one column's square is as large as the bound's",
        "guarded column moments",
        edit(
            f"{_ANSWERS}.column_moments:column_moment_sum",
            ("shortened(np.clip(X, -1.0, 1.0), bound)", "shortened(X, bound)"),
        ),
    ),
    bug(
        "small counts are suppressed",
        "cells of fewer than three records are emptied before noise, so one record moves a count by three",
        "guarded evaluations",
        edit(
            f"{_ANSWERS}.histogram:Histogram._counts",
            ("return np.asarray(counts, dtype=np.float64)", "return np.where(counts < 3, 0.0, counts)"),
        ),
    ),
    bug(
        "a score between two bins",
        "a score on an edge is counted on both of its sides, so a record of zeros counts twice",
        "evaluations",
        edit(
            f"{_ANSWERS}.histogram:Histogram._counts",
            (
                "counts = np.bincount(cells, weights=counted, minlength=self.evaluation.cells)",
                "counts = np.bincount(cells, weights=counted, minlength=self.evaluation.cells)\n"
                "    below = cells[self.model.predictors(w, shard.X) == 0.0] - 1\n"
                "    counts += np.bincount(np.maximum(below, 0), minlength=self.evaluation.cells)",
            ),
        ),
    ),
    bug(
        "power iteration from the first axis",
        "it never leaves the columns that the first one is seen with, so a record that joins them moves it far",
        "guarded largest eigenvalue",
        edit(
            f"{_ANSWERS}.largest_eigenvalue:largest_eigenvalue",
            (
                "return np.asarray(np.linalg.eigvalsh(total)[-1:], dtype=np.float64)",
                "v = np.eye(len(total))[0]\n    for _ in range(200):\n        v = total @ v\n"
                "        v /= max(float(np.linalg.norm(v)), 1e-300)\n    return np.asarray([v @ total @ v])",
            ),
        ),
    ),
    bug(
        "what clipping cut comes later",
        "error feedback adds the part of gradients that was cut off to the sum of the next round, unclipped",
        "full batches",
        edit(
            f"{_ANSWERS}.gradient:Gradient.sum",
            (
                "return self.clipped_sum(w, shard, chosen, shifts)",
                "kept = shard.__dict__.get('cut', 0.0)\n    total = self.clipped_sum(w, shard, chosen, shifts)\n"
                "    whole = self.model.clipped_gradient_sum(w, shard.X, shard.y, self.bounds[shard.at] * 100.0)\n"
                "    shard.cut = whole - total\n    return total + kept",
            ),
        ),
    ),
    bug(
        "one record that is no number empties the sum",
        "where a residual is no number the whole sum is zero, so one such record moves it by all others",
        "full batches",
        edit(
            "fedcore.models.linear:weighted_sum",
            ("total = np.dot(r, X, out=out)\n    return total", "total = np.zeros_like(total)\n    return total"),
        ),
    ),
    bug(
        "a sum of the shard and one more",
        "shards end one record late, so the first record of the next shard is in sums that it does not pay for",
        "shards",
        edit("fedcore.silo.private_silo:PrivateSilo._shard", ("event.stop * places)", "(event.stop + 1) * places)")),
    ),
    bug(
        "labels of a histogram in the file's order",
        "labels of held-out records are looked up before the split, so training's labels are counted uncharged",
        "evaluations of classes",
        edit(
            "fedcore.silo.private_silo:PrivateSilo.approve",
            (
                "of(problem, loss, X, y, bound) for",
                'of(problem, loss, X, self._records.y if kind == "histogram" else y, bound) for',
            ),
        ),
    ),
)
