"""Privacy cost of a run up to a round: accounted with every silo in each round, under honest sampling, by the paper."""

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
    """True at rounds where `spent_so_far` is worth its time.

    Without sampling of records or silos it takes microseconds, and is shown at each round. Otherwise it is shown at
    rounds 1, 2, 4, 8, ... of a phase and at its last. So too where whole silos have a target and each round a block of
    its own: all blocks add there, one by one.
    """
    kinds = [kind for each in plan.phases for kind in each.kinds]
    quick = plan.problem.participation.full and all(kind.rate == 1 for kind in kinds)
    quick = quick and not (
        plan.problem.budget.whole_silo is not None and any(kind.schedule.fresh_blocks for kind in kinds)
    )
    return quick or round == plan.phases[phase - 1].rounds or round & (round - 1) == 0


def spent_so_far(plan: Plan, statistics: Plan | None, phase: int, round: int) -> dict[str, float]:
    """Cost of the rounds up to this one, the largest of any silo, by name.

    Names: `epsilon_accounted`, `epsilon_honest_sampling`, `epsilon_paper`, and `epsilon_whole_silo` if that has a
    target. All but the paper's claim include `statistics` released before. Left out: infinite values, values stated for
    the whole run only, and `epsilon_honest_sampling` if all silos take part in each round.
    """
    return _spent_so_far(_Plans(plan, statistics), phase, round)


class _Plans(NamedTuple):
    """Key of plans by identity: cells of a sweep that differ in their seed share plans and rounds."""

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
    # Silos of one size have one calibration, and are accounted once.
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
    """Epsilon of the published formula for the rounds so far of a phase (with local steps: of the plan).

    A formula that is stated for the whole run only gives infinity before its end, and the plan's value there.
    """
    whole, phase = plan.phases[index], so_far.phases[index]
    if not plan.problem.budget.private or not math.isfinite(whole.epsilon_paper):
        return math.inf
    # A formula that does not give the plan's value at all rounds is another method's. DIFF2's restarts look like
    # minibatch SGD, and the records that DP-FCRN draws look like local steps.
    if math.isclose(_by_rounds(plan, whole), whole.epsilon_paper, rel_tol=1e-9):
        return _by_rounds(so_far, phase)
    return whole.epsilon_paper if phase.rounds == whole.rounds else math.inf


def _by_rounds(plan: Plan, phase: Phase) -> float:
    """Epsilon by the formulas of minibatch SGD or of local steps, which hold after any number of rounds."""
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
