"""Plan by which a run's releases were charged: by the run's sizes of silos, not by today's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import ValidationError

from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import make_plan
from fedcore.experiment.result import SiloResult, StatisticsResult
from fedcore.experiment.statistics import make_statistics_plan
from fedcore.home import Home
from fedcore.planning.plan import Plan
from flows.recorded.former_ids import has_paths
from flows.recorded.recorded_data import changed
from flows.runs import statistics_path, store_path
from tasks.run_file import read_meta


class UnknownTotalError(InputError):
    """A sweep's total is unknown: a run was charged by a plan that cannot be made again here."""


def charged_plan(home: Home, run: str, config: ExperimentConfig, silos: Sequence[SiloResult] | None) -> Plan:
    """The plan by which the run was charged, or would be if it was not begun. `silos`: of its result, if it has ended.

    Raises UnknownTotalError if its checkpoint is bound to another plan; InputError as `make_plan`.
    """
    plan = make_plan(config, _sizes(silos) if silos is not None and has_paths(config) else None)
    if not has_paths(config):
        return plan  # sizes follow from the config
    meta = read_meta(store_path(home, run))
    if config.released_curvature is None:
        other = meta.get("plan", plan.digest) != plan.digest
    else:  # its plan has a smoothness that silos released; charges do not depend on it
        other = silos is None and "plan" in meta and changed(meta, config) is not None
    if other:
        raise _unknown_total(f"run {run}")
    return plan


def charged_statistics(home: Home, statistics: str, config: ExperimentConfig) -> Plan | None:
    """The plan by which a shared release of statistics was or would be charged; None without one.

    Raises as `charged_plan`.
    """
    if config.released is None:
        return None
    meta = read_meta(statistics_path(home, statistics))
    sizes = None
    if has_paths(config) and "result" in meta:
        try:
            sizes = _sizes(StatisticsResult.model_validate_json(meta["result"]).silos)
        except ValidationError:
            raise _unknown_total(statistics) from None
    plan = make_statistics_plan(config, sizes)
    if plan is not None and has_paths(config) and meta.get("plan", plan.digest) != plan.digest:
        raise _unknown_total(statistics)
    return plan


def _sizes(silos: Sequence[SiloResult]) -> Mapping[str, int]:
    return {silo.silo: silo.n for silo in silos}


def _unknown_total(name: str) -> UnknownTotalError:
    return UnknownTotalError(
        f"The total of all cells is unknown here: {name} was charged by another plan than its config makes now, since "
        "sizes of silos or the version changed; the silos' ledgers have its charges."
    )
