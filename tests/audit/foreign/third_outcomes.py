"""Bugs of outcomes that depend on records: failures, sentences, statements, early refusals."""

from __future__ import annotations

from tests.audit.bug import Bug, bug, edit

_SILO = "fedcore.silo.private_silo:PrivateSilo"
_ANSWERS = "fedcore.silo.answers"

BUGS: tuple[Bug, ...] = (
    bug(
        "infinite numbers are numbers",
        "only NaN is made zero, so a record with an infinite number spoils the sum and the answer fails",
        "guarded",
        edit(f"{_SILO}._finite", ("np.isfinite(X).all(axis=1", "(~np.isnan(X)).all(axis=1")),
    ),
    bug(
        "records that can be used are counted",
        "the size that a plan is held against is that of finite records, and the refusal says how many",
        "guarded moments",
        edit(f"{_SILO}.n", ("return self._records.n", "return int(np.isfinite(self._records.X).all(axis=1).sum())")),
    ),
    bug(
        "labels are looked at before a run",
        "a run of two classes is refused where one label is neither, which says that there is such a record",
        "guarded",
        edit(
            f"{_SILO}.compare",
            (
                "rows, features = self._records.X.shape",
                "rows, features = self._records.X.shape\n"
                "    if getattr(loss, 'binary', False) and not np.isin(self._records.y, (-1.0, 1.0)).all():\n"
                "        raise SiloError(self.name, 'labels', 'the loss is for labels -1 and +1, and it holds others')",
            ),
        ),
    ),
    bug(
        "clips that are too small are said",
        "a helpful sentence says how many gradients were far beyond the clip, by the records themselves",
        "full batches",
        edit(
            f"{_ANSWERS}.gradient:Gradient.sum",
            (
                "return self.clipped_sum(w, shard, chosen, shifts)",
                "long = int((self.bounds[shard.at] < 0.05).sum())\n    if long:\n"
                "        from fedcore.errors import InputError\n"
                "        raise InputError(f'model.clip = {self.clip:g} cuts {long} gradients short; choose more')\n"
                "    return self.clipped_sum(w, shard, chosen, shifts)",
            ),
        ),
    ),
    bug(
        "classes as indices",
        "labels index an identity matrix, so one beyond the classes makes the silo refuse the run",
        "softmax",
        edit(
            "fedcore.losses.softmax:Softmax.one_hot",
            (
                "return np.asarray(y == np.arange(float(classes))[:, None]).T",
                "return np.eye(classes, dtype=bool)[y.astype(int)]",
            ),
        ),
    ),
    bug(
        "an evaluation needs both classes",
        "held-out records of one class alone are refused, so one record decides whether there is an answer",
        "guarded evaluations",
        edit(
            f"{_ANSWERS}.histogram:Histogram.sum",
            (
                "(w,) = arrays",
                "(w,) = arrays\n    if len(np.unique(self.labels[shard.at][self.known[shard.at]])) < 2:\n"
                "        raise ValueError('one class')",
            ),
        ),
    ),
    bug(
        "sums are at most as long as they should be",
        "a check for sums beyond what records at random add up to fails where they are alike",
        "guarded column moments",
        edit("fedcore.mechanisms.grid:GridGaussian.noised", ("grid.limit**2:", "0.5 * grid.limit**2:")),
    ),
    bug(
        "nothing new is not sent",
        "a silo whose sum is zero says that it has nothing to send, which is said of its records exactly",
        "guarded",
        edit(
            "fedcore.silo.round_view:RoundView.ask",
            (
                "return self._released(total, context, scale)",
                "if not total.any():\n        raise SiloError(self._silo, 'nothing', 'it has nothing to add')\n"
                "    return self._released(total, context, scale)",
            ),
        ),
    ),
    bug(
        "a difference has to be finite",
        "an assertion that norms are finite fails for one huge record only, and the answer with it",
        "guarded differences",
        edit(
            "fedcore.models.norms:shortened_products",
            (
                "norms = norms_of(r) * norms_of(X)",
                "norms = norms_of(r) * norms_of(X)\n    assert np.isfinite(norms).all()",
            ),
        ),
    ),
    bug(
        "what failed is said",
        "an unforeseen error's own text is sent, which quotes the record that it is about",
        "evaluations of classes",
        edit(
            "fedcore.silo.refusal:with_public_errors",
            (
                'public = (silo, "failed", "it could not answer; see the log at the silo")',
                'import sys\n        public = (silo, "failed", f"it could not answer: {sys.exc_info()[1]}")',
            ),
        ),
        edit(
            f"{_ANSWERS}.histogram:Histogram._counts",
            (
                "cells = labels * self.evaluation.columns + self._columns(w, shard.X)",
                "odd = np.flatnonzero(~known)\n    if odd.size:\n"
                "        raise ValueError(f'record {odd[0]} with features {shard.X[odd[0]]} has no class')\n"
                "    cells = labels * self.evaluation.columns + self._columns(w, shard.X)",
            ),
        ),
    ),
    bug(
        "answers are counted that say something",
        "the number of answers in a silo's account leaves out those whose sum was zero before noise",
        "local steps",
        edit(
            "fedcore.silo.round_view:RoundView._released",
            (
                "    shard, key = self._shard, self._run.key",
                "    shard, key = self._shard, self._run.key\n"
                "    shard.__dict__.setdefault('said', []).append(bool(total.any()))",
            ),
        ),
        edit(f"{_SILO}.answer", ("self.computed += 1", "self.computed += any(view._shard.said[-view.answered:])")),
    ),
)
