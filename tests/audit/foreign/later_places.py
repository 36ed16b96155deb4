"""Bugs of places: the rows that an answer is about, their bounds and labels, and cached shards."""

from __future__ import annotations

from tests.audit.bug import Bug, bug, edit

SILO = "fedcore.silo.private_silo:PrivateSilo."
AT = "at = slice(event.start * places, event.stop * places)"
SLOT = "slot = (question.phase, kind, question.round if phase.schedule.fresh_blocks else 0)"

BUGS: tuple[Bug, ...] = (
    bug(
        "blocks that begin one record early",
        "sampling: a block's first record is also the last of the block before, charged in one of them only",
        "disjoint blocks",
        edit(SILO + "_shard", (AT, "at = slice(max(event.start - 1, 0) * places, event.stop * places)")),
    ),
    bug(
        "every shard from the first record on",
        "sampling: all phases are about the first records, which are charged for one phase",
        "shards",
        edit(SILO + "_shard", (AT, "at = slice(0, (event.stop - event.start) * places)")),
    ),
    bug(
        "shards kept without their phase",
        "sampling: the evaluation is about training's records, once more, with training's noise",
        "evaluations",
        edit(SILO + "_shard", (SLOT, "slot = (kind, question.round if phase.schedule.fresh_blocks else 0)")),
    ),
    bug(
        "blocks kept without their round",
        "sampling: every round is about the first block, whose records are charged for one round",
        "disjoint blocks",
        edit(SILO + "_shard", (SLOT, "slot = (question.phase, kind)")),
    ),
    bug(
        "shards kept without the kind of round",
        "noise: differences have the noise that was found for the few restarts",
        "guarded differences",
        edit(SILO + "_shard", (SLOT, "slot = (question.phase, question.round if phase.schedule.fresh_blocks else 0)")),
    ),
    bug(
        "an evaluation about all records",
        "sampling: the records of training are in the histogram of held-out ones too, and pay twice",
        "evaluations of classes",
        edit(
            SILO + "_shard", (AT, "at = slice((0 if phase.evaluates else event.start) * places, event.stop * places)")
        ),
    ),
    bug(
        "training on what is held out",
        "sampling: held-out records are in each answer of training and charged for evaluation only",
        "guarded evaluations",
        edit(
            SILO + "_shard",
            (AT, "at = slice(event.start * places, (event.stop if phase.evaluates else self.n) * places)"),
        ),
    ),
    bug(
        "bounds in the order of the file",
        "clipping: a record is shortened by the norm of the one that stands at its place in the file",
        "guarded",
        edit(
            SILO + "approve",
            (
                "ANSWERS[kind].of(problem, loss, X, y, bound)",
                "ANSWERS[kind].of(problem, loss, self._finite, self._records.y, bound)",
            ),
        ),
    ),
    bug(
        "bounds from the first shard",
        "clipping: in later phases a record is shortened by the norm of one of the first shard",
        "shards",
        edit(
            "fedcore.silo.answers.gradient:Gradient.clipped_sum",
            ("bounds = self.bounds[shard.at]", "bounds = self.bounds[: len(shard.y)]"),
        ),
    ),
    bug(
        "labels of other records in a histogram",
        "sampling: held-out records are counted by labels of training's, which pay for training only",
        "guarded evaluations",
        edit(
            "fedcore.silo.answers.histogram:Histogram._counts",
            (
                "known, labels = self.known[shard.at], self.labels[shard.at]",
                "known, labels = self.known[: len(shard.y)], self.labels[: len(shard.y)]",
            ),
        ),
    ),
    bug(
        "a split sorted by label",
        "sampling: which shard a record is in depends on the labels of the others",
        "shards",
        edit(
            SILO + "_in_order_of",
            (
                "order = rows_of(places, self._records.places)",
                "order = rows_of(places[np.argsort(self._records.y[places], kind='stable')], self._records.places)",
            ),
        ),
    ),
)
