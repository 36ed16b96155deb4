"""Account of each silo over a whole sweep: its cells use the same records, so their costs add up.

The server sees every cell's transcript, so showing only the best cell saves no budget.

One plan: cells that were in the sweep before its first answer are composed by their loss distribution. To stop early is
to post-process the whole plan's transcript: a cell that failed, was stopped or is still to come counts in full. A cell
that a silo refused before any answer, by charges alone, is not counted.

No plan: cells that were chosen after a look, by a person, by patience or by a schedule. Then mu^2 of the begun cells
add up, as for caps by `gdp`. That rule counts samples as full batches. If cells sample, all values that patience may
try are therefore the plan. The rule is fixed before the first answer; the smaller total is never chosen afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

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
"""Most sizes of silos for which a plan is composed in every way, and on the finest grid."""


@dataclass(frozen=True, eq=False)
class _Events:
    """Releases of a run at one silo, an object that all cells and silos with these releases share."""

    listed: tuple[GaussianRelease, ...]

    @cached_property
    def mu_squared(self) -> float:
        return worst_mu_squared(self.listed)


@dataclass(frozen=True)
class _Charged:
    """Releases of a silo of n records in one cell, or in statistics that cells share (`shared`).

    `in_full`: the cell has not ended, and counts in full.
    """

    n: int
    events: _Events
    delta: float
    shared: bool = False
    in_full: bool = False

    @property
    def noised(self) -> bool:
        return math.isfinite(self.events.mu_squared)


_Account = tuple[str, int | None, str]
"""Key of an account: the records, the seed that dealt them, and the silo."""


def sweep_totals(
    home: Home | None,
    cells: Iterable[ExperimentConfig],
    results: Iterable[RunResult] = (),
    runs: RecordedRuns | None = None,
) -> list[SiloTotal]:
    """Accounts of all silos over begun cells that are chosen over time, at their smallest delta.

    Without a home, all cells count as if they were still to begin. `results`: of finished cells, if the caller has read
    them; `runs`: lookup of the cells' runs.

    An unfinished cell counts in full, like a plan that a silo has reserved. An abandoned one is closed and counts with
    its releases. One that a silo refused before any answer counts with nothing. Shared statistics count once, as soon
    as their release was begun.

    Each run splits a silo's records anew, so the worst shards may share a record. Therefore mu^2 of the runs add (Dong,
    Roth and Su 2022, Corollary 3.3). Answers about secret samples count as answers about all records, an upper bound.
    Generated silos have an account per seed that dealt their records. The images of `digits` and `mnist` are the same
    under every seed: an image's total is the sum over seeds.

    A run counts by the sizes that it was charged with (`charged_plans`). Raises UnknownTotalError if they are unknown.
    """
    charges, units, refused = _charges(home, cells, results, runs, planned=False)

    def epsilon(charged: Sequence[_Charged], delta: float) -> float:
        return epsilon_of(math.sqrt(math.fsum(one.events.mu_squared for one in charged)), delta)

    totals = [_total(account, charged, units, epsilon) for account, charged in charges.items()]
    return [replace(total, refused=refused) for total in totals]


def planned_totals(
    home: Home,
    cells: Iterable[ExperimentConfig],
    results: Iterable[RunResult] = (),
    chosen: bool = False,
    runs: RecordedRuns | None = None,
) -> list[SiloTotal]:
    """Accounts of all silos over a sweep that is one plan, at the smallest delta of its cells.

    An upper bound by `accounting.fixed_plan`. If silos have many sizes, it uses a coarser grid and no envelope, to save
    minutes. [] before the first cell has begun. `chosen`: cells are chosen by losses of others. A cap's refusal then
    depends on losses, so refused cells count in full. `results`, `runs`, errors: as for `sweep_totals`.
    """
    charges, units, refused = _charges(home, cells, results, runs, planned=True, refusals=chosen)
    questions = {(one.n, one.delta) for charged in charges.values() for one in charged}
    few = len(questions) <= FEW
    composed: dict[tuple[float, tuple[_Events, ...]], float] = {}  # the accounts of most seeds and silos are alike

    def epsilon(charged: Sequence[_Charged], delta: float) -> float:
        key = delta, tuple(one.events for one in charged)
        if key not in composed:
            runs = [events.listed for events in key[1]]
            composed[key] = fixed_plan(runs, delta, TOLERANCE if few else COARSE, envelope=few)
        return composed[key]

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
    """Charges by account, units by data set, and the number of cells refused before any answer.

    `planned`: charges all cells except refused ones, once one was begun; else only those that were begun. `refusals`:
    charges refused cells too.
    """
    charges: dict[_Account, list[_Charged]] = {}
    units: dict[str, str] = {}
    counted: set[str] = set()
    finished = {result.run: result for result in results}
    in_full: dict[int, tuple[Plan, dict[str, _Events]]] = {}
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
            # The release before a run of a former id has a former id too, which only a result names.
            started = cell.released is not None and run != run_id(cell) and is_begun(home, run)
        statistics = result.statistics if result is not None and result.statistics else statistics_id(cell)
        before = make_statistics_plan(cell) if home is None else charged_statistics(home, statistics, cell)
        begun = home is None or statistics_path(home, statistics).exists() or started
        # A release without noise belongs to cells without noise, which are counted separately.
        if before is not None and (begun or planned) and statistics not in counted and before.problem.budget.private:
            counted.add(statistics)
            any_begun = any_begun or begun
            for facts in before.problem.silos:
                dealt = cell.seed if is_seeded(cell.data) else None
                events, delta = _Events(tuple(before.silo_events(facts.name))), before.problem.budget.delta(facts.n)
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
            in_full[id(plan)] = plan, _in_full(plan)
        full = in_full[id(plan)][1]
        spent = full if home is None or (silos is None and planned) else _spent(home, plan, run, silos, full)
        for silo, events in spent.items():
            n = sizes[silo]
            one = _Charged(n, events, budget.delta(n), in_full=home is not None and silos is None)
            charges.setdefault((records, seed, silo), []).append(one)
    return ({} if planned and not any_begun else charges), units, refused


def _in_full(plan: Plan) -> dict[str, _Events]:
    """All releases of the plan by silo; silos of one kind share them."""
    kinds = {plan.kind_of(name): name for name in plan.problem.sizes}
    of_kind = {kind: _Events(tuple(plan.charged_events(name))) for kind, name in kinds.items()}
    return {name: of_kind[plan.kind_of(name)] for name in plan.problem.sizes}


def _spent(
    home: Home,
    plan: Plan,
    run: str,
    silos: Sequence[SiloResult] | None,
    in_full: dict[str, _Events],
) -> dict[str, _Events]:
    """Releases of a begun run by silo: its receipts if it has ended (`silos`), else `in_full`."""
    rounds = {silo.silo: silo.releases for silo in silos or ()}
    # A silo that answered in every round released all of the plan.
    if all(count == plan.rounds for count in rounds.values()):
        return in_full
    by_silo: dict[str, list[GaussianRelease]] = {name: [] for name in in_full}
    for receipt in read_receipts(store_path(home, run)):
        if receipt.silo not in by_silo or not plan.has(receipt.phase, receipt.round):
            return in_full  # not this run's file, or a damaged one
        by_silo[receipt.silo].append(plan.phases[receipt.phase - 1].event(receipt.silo, receipt.round))
    # Fewer receipts than releases: the file is incomplete, and the silo counts as if it answered in every round.
    return {
        name: _Events(tuple(events)) if len(events) == rounds.get(name) else in_full[name]
        for name, events in by_silo.items()
    }
