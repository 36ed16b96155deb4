"""Bugs of a run's preparation from all records: statistics, orders, imputations."""

from __future__ import annotations

from tests.audit.bug import Bug, bug, edit

_SILO = "fedcore.silo.private_silo:PrivateSilo"
_FINITE = "return np.ascontiguousarray(X if finite.all() else np.where(finite, X, 0.0))"

BUGS: tuple[Bug, ...] = (
    bug(
        "columns are centred",
        "the silo's own means are taken off its columns, so one record moves the gradients of all",
        "restarts",
        edit(
            f"{_SILO}._finite",
            (
                _FINITE,
                (
                    "X = np.ascontiguousarray(X if finite.all() else np.where(finite, X, 0.0))\n"
                    "    return X - np.clip(X, -10.0, 10.0).mean(axis=0)"
                ),
            ),
        ),
    ),
    bug(
        "missing numbers become the column's mean",
        "a number that is missing is made up from all other records, so each of them is in more than one part",
        "guarded",
        edit(
            f"{_SILO}._finite",
            (
                _FINITE,
                (
                    "known = np.isfinite(X)\n    mean = np.where(known, X, 0.0).sum(axis=0)\n"
                    "    mean /= np.maximum(known.sum(axis=0), 1)\n"
                    "    return np.ascontiguousarray(np.where(known, X, mean))"
                ),
            ),
        ),
    ),
    bug(
        "a record that is no number takes the place of the one before",
        "gaps are filled forward, so a record before a gap counts twice",
        "guarded differences",
        edit(
            f"{_SILO}._finite",
            (
                _FINITE,
                (
                    "at = np.maximum.accumulate(np.where(finite.ravel(), np.arange(len(X)), 0))\n"
                    "    return np.ascontiguousarray(np.nan_to_num(X[at], nan=0.0, posinf=0.0, neginf=0.0))"
                ),
            ),
        ),
    ),
    bug(
        "the split keeps classes apart",
        "the order of a run is sorted by label, so another label of one record moves others between shards",
        "disjoint blocks",
        edit(
            f"{_SILO}._in_order_of",
            (
                "order = rows_of(places, self._records.places)",
                "order = rows_of(places, self._records.places)\n"
                "    order = order[np.argsort(self._records.y[order], kind='stable')]",
            ),
        ),
    ),
    bug(
        "empty records go last",
        "records of zeros are put behind the others, so one that becomes zero moves all others to other shards",
        "shards",
        edit(
            f"{_SILO}._in_order_of",
            (
                "order = rows_of(places, self._records.places)",
                "order = rows_of(places, self._records.places)\n"
                "    order = order[np.argsort(~self._finite[order].any(axis=1), kind='stable')]",
            ),
        ),
    ),
    bug(
        "classes count alike",
        "clipped gradients are weighted against the frequency of their class, which one label changes for all",
        "guarded",
        edit(
            "fedcore.silo.answers.gradient:Gradient.of",
            (
                "return cls(model, model.bounds(X, y, clip),",
                "first = max(int((y > 0).sum()), 1)\n"
                "    share = np.where(y > 0, len(y) / first, len(y) / max(len(y) - first, 1))\n"
                "    X *= np.minimum(share / 2.0, 10.0)[:, None]\n"
                "    return cls(model, model.bounds(X, y, clip) * "
                "np.minimum(share / 2.0, 10.0),",
            ),
        ),
    ),
    bug(
        "points drawn for records that have a length",
        "a record of zeros draws no point, so with it all points after it are others, and their gradients too",
        "drawn points",
        edit(
            "fedcore.losses.drawn_convolution:DrawnConvolution.shifts",
            (
                "return np.asarray(self.radius * norms * (2.0 * draws.beta(half, half, len(norms)) - 1.0))",
                "found, there = np.zeros(len(norms)), norms > 0\n"
                "    found[there] = 2.0 * draws.beta(half, half, int(there.sum())) - 1.0\n"
                "    return np.asarray(self.radius * norms * found)",
            ),
        ),
    ),
    bug(
        "scores by the longest record here",
        "scores are measured by the longest held-out record, so another one moves all to other bins",
        "guarded evaluations",
        edit(
            "fedcore.silo.answers.histogram:Histogram._scores",
            ("_part(z, float(np.linalg.norm(w)) * self.evaluation.record_bound)", "_part(z, float(np.abs(z).max()))"),
        ),
    ),
)
