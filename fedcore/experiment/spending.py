"""What a run has cost up to a round: accounted with every silo asked, under honest silo sampling, by the paper."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from fedcore.accounting.calibration import Passes, paper_formula
from fedcore.experiment.statistics import composed_epsilon, largest_honest_sampling
from fedcore.planning.phase import Phase
from fedcore.planning.phases.local_phase import claimed
from fedcore.planning.plan import Plan


def is_shown(plan: Plan, phase: int, round: int) -> bool:
    """Whether `spent_so_far` is worth its time at this round: at each where nothing is sampled or drawn, which takes
    microseconds; else at the rounds 1, 2, 4, 8, ... of a phase and its last one. So, too, where whole silos have a
    target and each round a block of its own: all blocks add there, one by one."""
    kinds = [kind for each in plan.phases for kind in each.kinds]
    quick = plan.problem.participation.full and all(kind.rate == 1 for kind in kinds)
    quick = quick and not (
        plan.problem.budget.whole_silo is not None and any(kind.schedule.fresh_blocks for kind in kinds)
    )
    return quick or round == plan.phases[phase - 1].rounds or round & (round - 1) == 0


def spent_so_far(plan: Plan, statistics: Plan | None, phase: int, round: int) -> dict[str, float]:
    """By name (`epsilon_accounted`, `epsilon_honest_sampling`, `epsilon_paper`, `epsilon_whole_silo` where that has a
    target) what the rounds up to this one cost.

    The largest of any silo, together with `statistics` released before, of which the paper's claim says nothing. What
    is infinite, or stated for the whole run only, is left out, and so is `epsilon_honest_sampling` where all silos take
    part in a round.
    """
    return _spent_so_far(_Plans(plan, statistics), phase, round)


class _Plans(NamedTuple):
    """Plans by their identity: cells of a sweep that differ in their seed share them, and ask for the same rounds."""

    plan: Plan
    statistics: Plan | None

    def __hash__(self) -> int:
        return hash((id(self.plan), id(self.statistics)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Plans) and self.plan is other.plan and self.statistics is other.statistics


@lru_cache(maxsize=4096)
def _spent_so_far(plans: _Plans, phase: int, round: int) -> dict[str, float]:
    plan, statistics = plans
    so_far = plan.until(phase, round)
    # Silos of one size have one calibration, and the accountant is asked once for all of them.
    alike = {silo.n: silo.name for silo in plan.problem.silos}
    values = {
        "epsilon_accounted": max(composed_epsilon(so_far, statistics, silo) for silo in alike.values()),
        "epsilon_paper": max(
            _by_the_paper(plan, so_far, index) for index, each in enumerate(so_far.phases) if not each.evaluates
        ),
    }
    if so_far.epsilon_whole_silo is not None:
        values["epsilon_whole_silo"] = so_far.epsilon_whole_silo
    drawn = largest_honest_sampling(so_far, statistics, tuple(alike.values()))
    if drawn is not None:
        values["epsilon_honest_sampling"] = drawn
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _by_the_paper(plan: Plan, so_far: Plan, index: int) -> float:
    """What the published formula claims for the rounds so far of a phase (with local steps: of the plan).

    A formula that is stated for the whole run claims nothing before its end, and the plan's value there.
    """
    whole, phase = plan.phases[index], so_far.phases[index]
    if not plan.problem.budget.private or not math.isfinite(whole.epsilon_paper):
        return math.inf
    # What does not come to the plan's value at all rounds is another method's formula: DIFF2's restarts, and the
    # records that DP-FCRN draws, look like minibatch SGD and like local steps.
    if math.isclose(_by_rounds(plan, whole), whole.epsilon_paper, rel_tol=1e-9):
        return _by_rounds(so_far, phase)
    return whole.epsilon_paper if phase.rounds == whole.rounds else math.inf


def _by_rounds(plan: Plan, phase: Phase) -> float:
    """By the formulas of minibatch SGD and of methods with local steps, which hold after any number of rounds."""
    if phase.parts:
        return math.inf
    if phase.schedule.answers > 1 or phase.schedule.sampling == "without-replacement":
        return max(claimed(plan.problem, phase, n, plan.training_rounds) for n in {share.n for share in phase.shares})
    schedule: Passes = "one-pass" if phase.schedule.fresh_blocks else "multi-pass"
    return max(
        paper_formula(schedule, phase.question.clip, share.batch, phase.rounds, share.delta, share.n).epsilon(
            share.sigma
        )
        for share in {(share.n, share.batch): share for share in phase.shares}.values()
    )
