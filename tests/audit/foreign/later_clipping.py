"""Bugs of clipping and sensitivity: a record moves a sum by more than its charge, or moves others."""

from __future__ import annotations

from tests.audit.bug import Bug, bug, edit, new_at

GRADIENT = "fedcore.silo.answers.gradient:Gradient."
HIDDEN = "fedcore.models.hidden_layer:HiddenLayer.clipped_gradient_sum"
SHORTENED = "fedcore.silo.answers.moments:shortened"
COLUMNS = "fedcore.silo.answers.column_moments:column_moment_sum"
FINITE = "return np.ascontiguousarray(X if finite.all() else np.where(finite, X, 0.0))"

BUGS: tuple[Bug, ...] = (
    bug(
        "norms before the bias",
        "clipping: what the last column adds to a record's norm is not shortened",
        "full batches",
        edit("fedcore.models.linear:residual_bounds", ("row_norms(X)", "row_norms(X[:, :-1])")),
    ),
    bug(
        "the largest entry of p - e",
        "clipping: a residual of several classes counts by its largest entry, up to sqrt(2) below its norm",
        "softmax",
        edit(
            "fedcore.models.softmax:SoftmaxRegression.clipped_gradient_sum",
            ('norms = np.sqrt(np.einsum("ij,ij->i", r, r))', "norms = np.abs(r).max(axis=1)"),
        ),
    ),
    bug(
        "each layer for itself",
        "clipping: each of two layers is shortened to the bound, so together they reach sqrt(2) of it",
        "network",
        edit(
            HIDDEN,
            (
                "norms = np.hypot(norms_of(delta2) * norms_of(h), norms_of(delta1) * norms_of(X))",
                "norms, outer = norms_of(delta1) * norms_of(X), norms_of(delta2) * norms_of(h)",
            ),
            ("delta2 * scale[:, None]", "delta2 * factors(outer, bounds, weights)[:, None]"),
        ),
    ),
    bug(
        "outputs without their biases",
        "clipping: the norm of a network's gradient leaves out the output's bias",
        "network of numbers",
        edit(HIDDEN, ("norms_of(delta2) * norms_of(h),", "norms_of(delta2) * norms_of(h[:, :-1]),")),
    ),
    bug(
        "the length of the model",
        "clipping: differences are shortened to the bound times |w|, and noised for that times the step",
        "differences",
        edit(
            "fedcore.silo.answers.gradient_difference:GradientDifference.sum",
            ("phase.question.clip * length", "phase.question.clip * float(np.linalg.norm(w))"),
        ),
    ),
    bug(
        "residuals without their record",
        "clipping: a difference of softmax is shortened by the norm of its residual alone",
        "differences of softmax",
        edit("fedcore.models.norms:shortened_products", ("norms_of(r) * norms_of(X)", "norms_of(r)")),
    ),
    bug(
        "only what lies along the change",
        "clipping: the part of a network's difference that is orthogonal to its outputs' change is not in the norm",
        "differences of a network",
        edit(
            "fedcore.models.network_difference:_outer_norms",
            (
                "norm = np.hypot(length * norms_of(h + along[:, None] * k), norms_of(across) * moved)",
                "norm = length * norms_of(h + along[:, None] * k)",
            ),
        ),
    ),
    bug(
        "long by its largest entry",
        "clipping: a record whose entries are all within the bound is not shortened, however long it is",
        "moments",
        edit(SHORTENED, ("long = norm > bound / top", "long = top > bound")),
    ),
    bug(
        "ranges taken for granted",
        "clipping: columns are not cut to -1 to 1, and squares of them grow beyond what is charged",
        "column moments",
        edit(COLUMNS, ("shortened(np.clip(X, -1.0, 1.0), bound)", "shortened(X, bound)")),
    ),
    bug(
        "squares before shortening",
        "clipping: squares of columns are those of the record as it was before it was shortened",
        "guarded column moments",
        edit(COLUMNS, ('np.einsum("ij,ij->j", rows, weighted)', "np.square(np.clip(X, -1.0, 1.0)).sum(axis=0)")),
    ),
    bug(
        "off the diagonal twice",
        "sensitivity: products of two features weigh 2 in place of sqrt(2), beyond the norm that is charged",
        "guarded moments",
        edit(
            "fedcore.silo.answers.moments:moment_sum",
            ("products *= math.sqrt(2.0)", "products *= 2.0"),
            ("diagonal *= math.sqrt(0.5)", "diagonal *= 0.5"),
        ),
    ),
    bug(
        "all records by the longest",
        "clipping: one factor scales all records, so the longest one moves the part of every other",
        "largest eigenvalue",
        edit(
            "fedcore.silo.answers.largest_eigenvalue:largest_eigenvalue",
            (
                "rows = shortened(X[at], bound)",
                "rows = X[at] * min(1.0, bound / max(float(np.linalg.norm(X[at], axis=1).max()), 1e-9))",
            ),
        ),
    ),
    bug(
        "ten steps of power iteration",
        "sensitivity: where the iteration has come to depends on one record, and its quotient by far more than B^2",
        "guarded largest eigenvalue",
        edit(
            "fedcore.silo.answers.largest_eigenvalue:largest_eigenvalue",
            (
                "return np.asarray(np.linalg.eigvalsh(total)[-1:], dtype=np.float64)",
                "v = total[0]\n    for _ in range(10):\n        v = total @ v / max(float(np.linalg.norm(v)), 1e-200)\n"
                "    return np.asarray([v @ total @ v / max(float(v @ v), 1e-200)])",
            ),
        ),
    ),
    bug(
        "an eigenvalue's half of a half",
        "sensitivity: half of the largest change is taken for the largest change, and noise is half of it",
        "largest eigenvalue",
        edit("fedcore.planning.curvature:half_diameter", ("bound**2 / 2.0", "bound**2 / 4.0")),
    ),
    bug(
        "column moments as of values alone",
        "sensitivity: what squares add to the change, 7.5 %, is not charged",
        "column moments",
        edit(
            "fedcore.planning.sensitivity.column_moments:half_diameter",
            ("return bound * math.sqrt(37.0 / 32.0)", "return bound"),
        ),
    ),
    bug(
        "a cell that changes by one",
        "sensitivity: a replaced record leaves one cell and enters another, and is charged for one of the two",
        "evaluations of classes",
        *(
            new_at(f"fedcore.{module}:HALF_DIAMETER", lambda right: right**2)
            for module in ("planning.evaluation", "planning.phases.evaluation_phase", "silo.answers.histogram")
        ),
    ),
    bug(
        "scores on an edge",
        "sensitivity: a record whose score is an edge, as that of zeros, is counted in the bins on both sides",
        "evaluations",
        edit(
            "fedcore.silo.answers.histogram:Histogram._counts",
            (
                "return np.asarray(counts, dtype=np.float64)",
                "scores = self._scores(w, self.model.predictors(w, shard.X))\n"
                '    left = np.searchsorted(self.evaluation.edges, scores, side="left")\n'
                "    left = labels * self.evaluation.columns + left\n"
                "    return counts + np.bincount(left, counted * (left != cells), self.evaluation.cells)",
            ),
        ),
    ),
    bug(
        "classes that weigh alike",
        "clipping: records of the rarer class count more than once, by a weight that labels decide",
        "coins",
        edit(
            GRADIENT + "clipped_sum",
            (
                "bounds = self.bounds[shard.at]",
                "bounds = self.bounds[shard.at]\n    first = shard.y > 0\n"
                "    shares = np.where(first, first.mean(), 1.0 - first.mean())\n"
                "    shard = replace(shard, weights=0.5 / shares)",
            ),
        ),
    ),
    bug(
        "clipped at the median norm",
        "clipping: what all records are shortened to follows from the records themselves",
        "shards",
        edit(
            GRADIENT + "of",
            (
                "model.bounds(X, y, clip)",
                "model.bounds(X, y, min(clip, float(np.median(row_norms(X)))))",
            ),
        ),
    ),
    bug(
        "points for records that are not zero",
        "clipping: whether a record is zero decides which drawn points all that come after it get",
        "drawn points",
        edit(
            "fedcore.losses.drawn_convolution:DrawnConvolution.shifts",
            (
                "return np.asarray(self.radius * norms * (2.0 * draws.beta(half, half, len(norms)) - 1.0))",
                "moved, some = np.zeros_like(norms), norms > 0\n"
                "    moved[some] = 2.0 * draws.beta(half, half, int(some.sum())) - 1.0\n"
                "    return self.radius * norms * moved",
            ),
        ),
    ),
    bug(
        "missing values by the column's mean",
        "clipping: records with a value that is no number follow the mean of all others",
        "network",
        edit(
            "fedcore.silo.private_silo:PrivateSilo._finite",
            (
                FINITE,
                "mean = np.where(finite, X, 0.0).sum(axis=0) / max(1, int(finite.sum()))\n"
                "    return np.ascontiguousarray(np.where(np.isfinite(X), X, mean))",
            ),
        ),
    ),
    bug(
        "features centred by their own mean",
        "clipping: every record is moved by the mean of all, so each record moves all parts of a sum",
        "differences of softmax",
        edit(
            "fedcore.silo.private_silo:PrivateSilo._finite",
            ("X = self._records.X", "X = self._records.X - np.nanmean(self._records.X, axis=0)"),
        ),
    ),
)
