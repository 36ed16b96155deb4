"""Bugs that confuse rounds, shards and runs: addresses, caches between them, and questions."""

from __future__ import annotations

from tests.audit.bug import Bug, bug, edit

_SILO = "fedcore.silo.private_silo:PrivateSilo"

BUGS: tuple[Bug, ...] = (
    bug(
        "a round too many",
        "the round after the last one is a round of the plan, too, and is answered beyond the charge",
        "full batches",
        edit(
            "fedcore.planning.plan:Plan.has",
            ("<= self.phases[phase - 1].rounds", "<= self.phases[phase - 1].rounds + 1"),
        ),
    ),
    bug(
        "the first block in all rounds",
        "the shard of the first round is kept for its phase, so one block's records are in every answer",
        "disjoint blocks",
        edit(f"{_SILO}._shard", ("question.round if phase.schedule.fresh_blocks else 0)", "0)")),
    ),
    bug(
        "the first block under each round's address",
        "a kept shard answers for the first block, and the ledger records the block that was its turn",
        "disjoint blocks",
        edit(f"{_SILO}._shard", ("question.round if phase.schedule.fresh_blocks else 0)", "0)")),
        edit(
            "fedcore.silo.round_view:RoundView.event",
            ("return self._shard.event", "return self._phase.event(self._silo, self._place[2])"),
        ),
    ),
    bug(
        "blocks that share a record",
        "a block begins with the last record of the one before, which pays for one of both",
        "disjoint blocks",
        edit(
            f"{_SILO}._shard",
            ("at = slice(event.start * places,", "at = slice((event.start - (question.round > 1)) * places,"),
        ),
    ),
    bug(
        "a shard for all runs",
        "what is kept of a phase is found by its number, so a second run has the first one's noise",
        "guarded moments",
        edit(
            f"{_SILO}._shard",
            ("self._shards.get(question.run)", "self._shards.get('last')"),
            ("self._shards[question.run] = slot", "self._shards['last'] = slot"),
        ),
    ),
    bug(
        "bounds for all runs",
        "bounds are made once for a silo, and a second run, whose order is another, has them awry",
        "full batches",
        edit(
            f"{_SILO}.approve",
            (
                "answers = {kind: ANSWERS[kind].of(problem, loss, X, y, bound) for kind in kinds}",
                "answers = self.__dict__.setdefault('answers', {kind: ANSWERS[kind].of(problem, loss, X, y, bound) "
                "for kind in kinds})",
            ),
        ),
    ),
    bug(
        "a phase's event is that of its first round",
        "rounds between restarts are noised by the event of a restart, in units of another answer",
        "guarded differences",
        edit(
            f"{_SILO}._shard",
            (
                "event = phase.event(self.name, question.round)",
                "event = run.plan.phases[question.phase - 1].event(self.name, 1)",
            ),
            (
                "grid_of(self.name, run.plan.problem, phase, event)",
                "grid_of(self.name, run.plan.problem, run.plan.phases[0].at(1), event)",
            ),
        ),
    ),
    bug(
        "one step more than planned",
        "local steps go on to one more and the silo looks for too few only, beyond a round's charge",
        "local steps",
        edit("fedcore.optim.local:mean_direction", ("for _ in range(steps):", "for _ in range(steps + 1):")),
        edit(
            "fedcore.silo.round_view:PlannedRound.end",
            ("if self.answered != self._phase.schedule.answers:", "if self.answered < self._phase.schedule.answers:"),
        ),
    ),
    bug(
        "a step's length kept by its end",
        "a length is looked up by where the step ends, so a long one has a short one's noise",
        "differences",
        edit(
            "fedcore.silo.answers.gradient_difference:GradientDifference.scale",
            (
                "return step_of(reach_of(problem), *arrays)[2]",
                "kept = cls.__dict__.get('_lengths') or {}\n    cls._lengths = kept\n"
                "    return kept.setdefault(arrays[0].tobytes(), step_of(reach_of(problem), *arrays)[2])",
            ),
        ),
    ),
    bug(
        "evaluated on the last records of training",
        "an evaluation's shard begins two records early, among those that were trained on",
        "evaluations",
        edit(
            f"{_SILO}._shard",
            ("at = slice(event.start * places,", "at = slice((event.start - 2 * phase.evaluates) * places,"),
        ),
    ),
)
