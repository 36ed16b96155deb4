"""What a whole sweep costs each silo: its cells ask the same records, so their costs add up.

The server sees every cell's transcript: showing only the best cell saves nothing towards it.

Cells that were in the sweep before its first answer are one plan, composed by its loss distribution, whatever became of
them: to stop early is to process what the whole plan shows, so a cell that failed, was stopped or is to come counts in
full. One that a silo refused before any answer, by charges alone, is left out. Cells that somebody or something chose
after a look (added to a finished sweep, tried by patience, fired by a schedule) are no plan: there mu^2 of those that
were begun add up, as caps by `gdp` have it. That would count samples as full batches; so, where cells sample, all that
patience may try are the plan. Which of the two holds is known before the first answer: never the smaller afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fedcore.accounting.composition import worst_mu_squared
from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.fixed_plan import COARSE, fixed_plan
from fedcore.accounting.gaussian import epsilon_of
from fedcore.accounting.loss_distributions.loss_distribution import TOLERANCE
from fedcore.data.dataset import is_seeded, records_of
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import make_plan
from fedcore.experiment.identity import run_id
from fedcore.experiment.result import RunResult, SiloResult
from fedcore.experiment.statistics import make_statistics_plan, statistics_id
from fedcore.home import Home
from fedcore.planning.plan import Plan
from fedcore.planning.problem import unit_of
from flows.recorded.charged_plans import charged_plan, charged_statistics
from flows.recorded.former_ids import RecordedRuns
from flows.reports.silo_totals import SiloTotal
from flows.runs import is_begun, is_refused, read_abandoned, read_result, read_run, statistics_path, store_path
from tasks.run_file import read_receipts

FEW = 8
"""Sizes of silos up to which a plan is composed in every way, and on the finest grid."""


@dataclass(frozen=True)
class _Charged:
    """What one cell, or a release that cells share, may have revealed of a silo of n records."""

    n: int
    events: tuple[GaussianRelease, ...]
    delta: float
    shared: bool = False
    in_full: bool = False

    @property
    def noised(self) -> bool:
        return math.isfinite(worst_mu_squared(self.events))


_Account = tuple[str, int | None, str]
"""The records, the seed that dealt them, and the silo."""


def sweep_totals(
    home: Home | None,
    cells: Iterable[ExperimentConfig],
    results: Iterable[RunResult] = (),
    runs: RecordedRuns | None = None,
) -> list[SiloTotal]:
    """The account of every silo over all cells that were begun, finished or not, at the smallest of their deltas: those
    of cells that were chosen over time.

    Statistics that cells share are counted once, and as soon as their release was begun. A cell that is not finished
    counts in full, like a plan that a silo has reserved; one that was abandoned is closed and counts with what it
    released, and one that a silo refused before any answer with nothing. `results`: those of finished cells that the
    caller has read; `runs`: which runs are those of the cells. Without a home, what all cells will cost that are yet
    to begin.

    Each run splits a silo's records anew, so the worst shards may share a record: mu^2 of the runs add
    (Dong, Roth and Su 2022, Corollary 3.3); answers about secret samples count as if they had been about all records,
    an upper bound. Generated silos are told apart by the seed that dealt their records; for
    `digits` and `mnist`, whose images are the same under every seed, an image's total is the sum over seeds.

    A run counts by the sizes that it was charged with, whatever its files hold now (`charged_plans`). Raises
    UnknownTotalError where these cannot be had.
    """
    charges, units, refused = _charges(home, cells, results, runs, planned=False)

    def epsilon(charged: Sequence[_Charged], delta: float) -> float:
        return epsilon_of(math.sqrt(math.fsum(worst_mu_squared(one.events) for one in charged)), delta)

    totals = [_total(account, charged, units, epsilon) for account, charged in charges.items()]
    return [replace(total, refused=refused) for total in totals]


def planned_totals(
    home: Home,
    cells: Iterable[ExperimentConfig],
    results: Iterable[RunResult] = (),
    chosen: bool = False,
    runs: RecordedRuns | None = None,
) -> list[SiloTotal]:
    """The account of every silo over all cells of a sweep that is one plan, at the smallest of their deltas; [] as long
    as none was begun.

    `chosen`: by losses of others, on which then depends what a cap has room for: cells that it refused count in full.

    An upper bound by `accounting.fixed_plan`; where silos have many sizes, on a coarser grid and without its envelope,
    or it would take minutes. `results`, `runs`, errors: as for `sweep_totals`.
    """
    charges, units, refused = _charges(home, cells, results, runs, planned=True, refusals=chosen)
    questions = {(one.n, one.delta) for charged in charges.values() for one in charged}
    few = len(questions) <= FEW

    def epsilon(charged: Sequence[_Charged], delta: float) -> float:
        return fixed_plan([one.events for one in charged], delta, TOLERANCE if few else COARSE, envelope=few)

    totals = [_total(account, charged, units, epsilon) for account, charged in charges.items()]
    return [replace(total, planned=True, refused=refused) for total in totals]


def _total(
    account: _Account,
    charged: Sequence[_Charged],
    units: Mapping[str, str],
    epsilon: Callable[[Sequence[_Charged], float], float],
) -> SiloTotal:
    (records, seed, silo), delta = account, min(one.delta for one in charged)
    noised, shared = [one for one in charged if one.noised], sum(one.shared for one in charged)
    return SiloTotal(
        seed,
        silo,
        charged[0].n,
        len(charged) - shared,
        len(charged) - len(noised),
        shared,
        epsilon(noised, delta),
        delta,
        units.get(records, "records"),
        in_full=sum(one.in_full for one in charged if one.noised),
    )


def _charges(
    home: Home | None,
    cells: Iterable[ExperimentConfig],
    results: Iterable[RunResult],
    runs: RecordedRuns | None,
    planned: bool,
    refusals: bool = False,
) -> tuple[dict[_Account, list[_Charged]], dict[str, str], int]:
    """What each account is charged for, the unit of each data set, and how many cells were refused before any answer.

    `planned`: all cells but those that were refused, if one was begun; else those that were begun. `refusals`: those
    that were refused, too.
    """
    charges: dict[_Account, list[_Charged]] = {}
    units: dict[str, str] = {}
    counted: set[str] = set()
    finished = {result.run: result for result in results}
    in_full: dict[int, tuple[Plan, dict[str, tuple[GaussianRelease, ...]]]] = {}
    refused, any_begun = 0, False
    if home is not None and runs is None:
        runs = RecordedRuns(home)
    for cell in cells:
        run, started = "", False
        result: RunResult | None = None
        silos: Sequence[SiloResult] | None = None
        ended: Sequence[SiloResult] | None = None
        if home is not None and runs is not None:
            run = runs.run(cell)
            result = finished[run] if run in finished else read_result(home, run)
            ended = silos = result.silos if result is not None else None
            if silos is None and (abandoned := read_abandoned(home, run)) is not None:
                ended = abandoned.silos
                silos = None if planned else ended
            # The release before a run of a former id has a former id, too, which only a result says.
            started = cell.released is not None and run != run_id(cell) and is_begun(home, run)
        statistics = result.statistics if result is not None and result.statistics else statistics_id(cell)
        before = make_statistics_plan(cell) if home is None else charged_statistics(home, statistics, cell)
        begun = home is None or statistics_path(home, statistics).exists() or started
        # Without noise it belongs to cells without noise, which are told of by themselves.
        if before is not None and (begun or planned) and statistics not in counted and before.problem.budget.private:
            counted.add(statistics)
            any_begun = any_begun or begun
            for facts in before.problem.silos:
                dealt = cell.seed if is_seeded(cell.data) else None
                events, delta = tuple(before.silo_events(facts.name)), before.problem.budget.delta(facts.n)
                account = (records_of(cell.data), dealt, facts.name)
                charges.setdefault(account, []).append(_Charged(facts.n, events, delta, shared=True))
        if home is not None:
            if silos is None and is_refused(home, run) and not refusals:
                refused += 1
                continue
            begun = silos is not None or read_run(home, run) is not None
            any_begun = any_begun or begun
            if not (begun or planned):
                continue
        plan = make_plan(cell) if home is None else charged_plan(home, run, cell, ended)
        seed = cell.seed if is_seeded(cell.data) else None
        units[records_of(cell.data)] = unit_of(cell.person)
        budget, sizes, records = plan.problem.budget, plan.problem.sizes, records_of(cell.data)
        if id(plan) not in in_full:  # cells that differ in their seed share a plan
            worst = {facts.name: tuple(plan.charged_events(facts.name)) for facts in plan.problem.silos}
            in_full[id(plan)] = plan, worst
        full = in_full[id(plan)][1]
        spent = full if home is None or (silos is None and planned) else _spent(home, plan, run, silos, full)
        for silo, events in spent.items():
            n = sizes[silo]
            one = _Charged(n, events, budget.delta(n), in_full=home is not None and silos is None)
            charges.setdefault((records, seed, silo), []).append(one)
    return ({} if planned and not any_begun else charges), units, refused


def _spent(
    home: Home,
    plan: Plan,
    run: str,
    silos: Sequence[SiloResult] | None,
    in_full: dict[str, tuple[GaussianRelease, ...]],
) -> dict[str, tuple[GaussianRelease, ...]]:
    """Per silo what a begun run released: by its receipts if it has ended (`silos`), else all that it may have
    (`in_full`)."""
    rounds = {silo.silo: silo.releases for silo in silos or ()}
    # A silo that answered in every round released what the plan has, whoever else was drawn.
    if all(count == plan.rounds for count in rounds.values()):
        return in_full
    by_silo: dict[str, list[GaussianRelease]] = {name: [] for name in in_full}
    for receipt in read_receipts(store_path(home, run)):
        if receipt.silo not in by_silo or not plan.has(receipt.phase, receipt.round):
            return in_full  # not this run's file, or not as it was written
        by_silo[receipt.silo].append(plan.phases[receipt.phase - 1].event(receipt.silo, receipt.round))
    # Fewer receipts than releases: the file is not whole, and a silo is taken to have answered in every round.
    return {
        name: tuple(events) if len(events) == rounds.get(name) else in_full[name] for name, events in by_silo.items()
    }
