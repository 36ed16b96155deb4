"""Charges of a schedule's firings to the accounts of silos, and firings that a cap admits.

Answers may decide whether there is another firing, so firings are no fixed plan: mu^2 of runs add up.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from fedcore.accounting.filters import Cap, Charge
from fedcore.accounting.gaussian import epsilon_of, mu_of
from fedcore.directed_rounding import in_full, shown_up
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import make_plan
from fedcore.planning.plan import Plan
from flows.reports.silo_totals import SiloTotal
from flows.sweep_budget import sweep_totals

MOST_COUNTED = 1_000
"""Largest number of firings for which caps are checked."""


def firing_adds(cells: Sequence[ExperimentConfig], repeats: bool) -> list[str]:
    """Sentences on the cost of one firing. `repeats`: each firing is a new repetition of its cells."""
    totals = sweep_totals(None, cells)
    count = f"{len(cells)} run{'s' * (len(cells) != 1)}"
    if repeats:
        sentences = [f"each firing is a new repetition of {count} and adds {_largest(totals)}{_ten(totals)}"]
    else:
        sentences = [
            f"a firing does what is not finished of {count}: nothing once all are; together they add {_largest(totals)}"
        ]
    if any(total.statistics for total in totals):
        sentences[0] += "; the statistics in it are released once for all firings"
    caps = {cell.privacy.cap for cell in cells}
    if all(cell.privacy.ledger == "memory" for cell in cells):
        sentences.append("ledgers in memory keep no account over runs, and no cap ends it: it is a simulation")
    elif repeats and caps != {None}:
        many = _counted(capped_firings(cells), "firing")
        sentences.append(f"caps take {many} of a silo without earlier runs; then it is paused")
    else:
        sentences.append("it is paused once a silo's cap or policy refuses a run")
    return sentences


def capped_firings(cells: Sequence[ExperimentConfig]) -> int:
    """Number of firings that all caps admit at silos without earlier runs, at most `MOST_COUNTED`.

    The first cell's cap sets the order of rule rdp, as at a silo.
    """
    charges = defaultdict[str, list[Charge]](list)
    sizes = dict[str, int]()
    for cell in cells:
        plan = make_plan(cell)
        sizes |= plan.problem.sizes
        for silo in plan.problem.sizes:
            charges[silo].append(plan.charge(silo))
    caps = list(dict.fromkeys(cell.privacy.cap for cell in cells if cell.privacy.cap is not None))
    return min((_fit([cap.of(sizes[silo]) for cap in caps], one) for silo, one in charges.items()), default=0)


def admission_lines(config: ExperimentConfig, plan: Plan) -> list[str]:
    """Line on the number of runs that the plan's cap admits at new silos; [] without a cap."""
    if config.privacy.cap is None:
        return []
    rule = config.privacy.cap.rule
    of_silos = [(config.privacy.cap.of(n), plan.charge(silo)) for silo, n in plan.problem.sizes.items()]
    fit = min(_fit([cap], [charge]) for cap, charge in of_silos)
    text = f"cap: epsilon {in_full(config.privacy.cap.epsilon)} over all runs of a silo ({rule}) takes "
    text += f"{_counted(fit, 'run')} of this plan where there was none before"
    if rule == "gdp" and any(charge.pieces for _, charge in of_silos):
        by_rdp = min(_fit([replace(cap, rule="rdp")], [charge]) for cap, charge in of_silos)
        text += f"; gdp counts a sample as all records, rule rdp counts it as a sample and takes {by_rdp}"
    return [f"{text}."]


def _fit(caps: Sequence[Cap], charges: Sequence[Charge]) -> int:
    """Times that all caps admit these charges in a new account, at most `MOST_COUNTED`."""
    order = caps[0].order if caps else None
    charged = [charge.at(order) for charge in charges]

    def refused(times: int) -> bool:
        return not all(cap.admits(charged * times, order) for cap in caps)

    return bisect_left(range(1, MOST_COUNTED + 1), True, key=refused)


def _largest(totals: Sequence[SiloTotal]) -> str:
    noised = [total for total in totals if math.isfinite(total.epsilon_private)]
    bare = sum(total.without_noise for total in totals)
    if not any(total.cells > total.without_noise for total in noised):
        return "no noise: NO PRIVACY"
    worst = max(noised, key=lambda total: total.epsilon_private)
    text = (
        f"epsilon {shown_up(worst.epsilon_private)} at delta {shown_up(worst.delta, 3)} to the account of silo "
        f"{worst.silo}, the largest of {len(totals)}, by the sum of mu^2, as caps by gdp count runs over time"
    )
    return f"{text}; runs without noise protect nothing" if bare else text


def _ten(totals: Sequence[SiloTotal]) -> str:
    """Text with epsilon after ten firings, whose mu^2 add up; empty if no cell has noise."""
    noised = [total for total in totals if 0 < total.epsilon_private < math.inf]
    if not noised:
        return ""
    worst = max(noised, key=lambda total: total.epsilon_private)
    ten = epsilon_of(math.sqrt(10) * mu_of(worst.epsilon_private, worst.delta), worst.delta)
    return f" (ten firings: {shown_up(ten)})"


def _counted(many: int, unit: str) -> str:
    if many >= MOST_COUNTED:
        return f"more than {MOST_COUNTED:,} {unit}s"
    return f"{many} {unit}{'s' * (many != 1)}"
