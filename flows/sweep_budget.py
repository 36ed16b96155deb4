"""What a whole sweep costs each silo: its cells ask the same records, so their costs add up.

The server sees every cell's transcript: showing only the best cell saves nothing towards it. A cell that was begun and
is not finished counts in full, like a plan that a silo has reserved: what its driver had not written down yet may
have been released. One that was abandoned is closed and counts with what it released.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fedcore.accounting.composition import worst_mu_squared
from fedcore.accounting.events import GaussianRelease
from fedcore.accounting.gaussian import epsilon_of
from fedcore.data.dataset import is_seeded, records_of
from fedcore.directed_rounding import shown_up
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import make_plan
from fedcore.experiment.identity import run_id
from fedcore.experiment.result import RunResult, SiloResult
from fedcore.experiment.statistics import make_statistics_plan, statistics_id
from fedcore.home import Home
from fedcore.planning.plan import Plan
from fedcore.planning.problem import unit_of
from flows.runs import read_abandoned, read_result, read_run, statistics_path, store_path
from tasks.run_file import read_receipts


@dataclass(frozen=True)
class SiloTotal:
    """One silo's account over the cells that asked its records. `epsilon` is infinite if one cell had no noise.

    `statistics`: releases of moments for the cells' constants, each counted once however many cells use it.
    """

    seed: int | None
    silo: str
    n: int
    cells: int
    without_noise: int
    statistics: int
    epsilon_private: float
    delta: float
    unit: str = "records"
    """What epsilon is for; cells with another unit have accounts of their own."""

    @property
    def epsilon(self) -> float:
        return math.inf if self.without_noise else self.epsilon_private


def sweep_totals(
    home: Home | None, cells: Iterable[ExperimentConfig], results: Iterable[RunResult] = ()
) -> list[SiloTotal]:
    """The account of every silo over all cells that were begun, finished or not, at the smallest of their deltas.

    Statistics that cells share are counted once, and as soon as their release was begun. `results`: those of finished
    cells that the caller has read. Without a home, what all cells will cost that are yet to begin.

    Each run splits a silo's records anew, so the worst pieces may share a record: mu^2 of the runs add
    (Dong, Roth and Su 2022, Corollary 3.3); answers about secret samples count as if they had been about all records,
    an upper bound. Generated silos are told apart by the seed that dealt their records; for
    `digits` and `mnist`, whose images are the same under every seed, an image's total is the sum over seeds.
    """
    charges: dict[tuple[str, int | None, str], list[tuple[int, float, float]]] = {}
    shared: dict[tuple[str, int | None, str], int] = {}
    units: dict[str, str] = {}
    counted: set[str] = set()
    finished = {result.run: result for result in results}
    in_full: dict[int, tuple[Plan, dict[str, float]]] = {}
    for cell in cells:
        before, statistics = make_statistics_plan(cell), statistics_id(cell)
        begun = statistics not in counted and (home is None or statistics_path(home, statistics).exists())
        # Without noise it belongs to cells without noise, which are told of by themselves.
        if before is not None and begun and before.problem.budget.private:
            counted.add(statistics)
            for facts in before.problem.silos:
                dealt = cell.seed if is_seeded(cell.data) else None
                key: tuple[str, int | None, str] = (records_of(cell.data), dealt, facts.name)
                mu_squared = worst_mu_squared(before.silo_events(facts.name))
                charges.setdefault(key, []).append((facts.n, mu_squared, before.problem.budget.delta(facts.n)))
                shared[key] = shared.get(key, 0) + 1
        run, silos = run_id(cell), None
        if home is not None:
            result = finished[run] if run in finished else read_result(home, run)
            silos = result.silos if result is not None else None
            if silos is None and (abandoned := read_abandoned(home, run)) is not None:
                silos = abandoned.silos
            if silos is None and read_run(home, run) is None:
                continue
        plan, seed = make_plan(cell), cell.seed if is_seeded(cell.data) else None
        units[records_of(cell.data)] = unit_of(cell.person)
        budget, sizes, records = plan.problem.budget, plan.problem.sizes, records_of(cell.data)
        if id(plan) not in in_full:  # cells that differ in their seed share a plan
            worst = {facts.name: worst_mu_squared(plan.silo_events(facts.name)) for facts in plan.problem.silos}
            in_full[id(plan)] = plan, worst
        full = in_full[id(plan)][1]
        spent = full if home is None else _spent(home, plan, run, silos, full)
        for silo, mu_squared in spent.items():
            n = sizes[silo]
            charges.setdefault((records, seed, silo), []).append((n, mu_squared, budget.delta(n)))
    totals = []
    for (records, seed, silo), charged in charges.items():
        before_cells = shared.get((records, seed, silo), 0)
        noised = [mu_squared for _, mu_squared, _ in charged if math.isfinite(mu_squared)]
        delta = min(delta for _, _, delta in charged)
        epsilon = epsilon_of(math.sqrt(math.fsum(noised)), delta)
        asked, bare = len(charged) - before_cells, len(charged) - len(noised)
        totals.append(SiloTotal(seed, silo, charged[0][0], asked, bare, before_cells, epsilon, delta,
                                units.get(records, "records")))  # fmt: skip
    return totals


def totals_as_json(totals: Sequence[SiloTotal]) -> list[dict[str, Any]]:
    """The totals as plain values; an infinite epsilon as null."""
    return [
        {
            "seed": total.seed, "silo": total.silo, "n": total.n, "cells": total.cells,
            "cells_without_noise": total.without_noise, "statistics": total.statistics, "delta": total.delta,
            "unit": total.unit,
            "epsilon": total.epsilon if math.isfinite(total.epsilon) else None,
            "epsilon_of_noised_cells": total.epsilon_private,
        }
        for total in totals
    ]  # fmt: skip


def totals_sentence(totals: Sequence[SiloTotal]) -> str:
    """The largest account in a sentence, for the terminal."""
    if not totals:
        return "No silo was asked."
    worst = max(totals, key=lambda total: total.epsilon_private)
    noised = worst.cells - worst.without_noise
    shared = f" and {worst.statistics} release(s) of moments that they share" if worst.statistics else ""
    text = (
        f"All cells together, since they ask the same records: the {noised} noised cells{shared} spend epsilon "
        f"{shown_up(worst.epsilon_private)} at delta {shown_up(worst.delta, 3)} at silo {worst.silo}, the largest "
        f"of {len(totals)} accounts{'' if worst.unit == 'records' else f', for {worst.unit}'}"
    )
    if worst.without_noise:
        text += f"; {worst.without_noise} more without noise protect nothing"
    seeds = {total.seed for total in totals}
    if len(seeds) > 1:
        text += f". Each of the {len(seeds)} seeds deals its records anew and is counted by itself"
    return text + "."


def _spent(
    home: Home, plan: Plan, run: str, silos: Sequence[SiloResult] | None, in_full: dict[str, float]
) -> dict[str, float]:
    """Per silo mu^2 of what a begun run released: by its receipts if it has ended (`silos`), else all that it may have
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
        name: worst_mu_squared(events) if len(events) == rounds.get(name) else in_full[name]
        for name, events in by_silo.items()
    }
