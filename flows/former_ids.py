"""Runs whose ids are of paths as they were typed, as fedcore made ids before it named places.

Such a run is found again by its parameters: a finished one is shown, as the same parameters are the same run. A stopped
one cannot go on: noise follows from the id.
"""

from __future__ import annotations

from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.identity import run_id
from fedcore.experiment.kept.binding import ways_on
from fedcore.home import Home
from fedcore.paths import path_keys
from flows.runs import RunRecord, read_run


def former_run(home: Home, config: ExperimentConfig) -> RunRecord | None:
    """The run of these parameters under another id than it would get now; a finished one before others."""
    run, found = run_id(config), list[RunRecord]()
    if not home.runs.is_dir() or not _has_paths(config):
        return None
    for folder in sorted(home.runs.glob(f"{config.name}-*")):
        try:
            record = None if folder.name == run else read_run(home, folder.name)
        except InputError:  # of another schema, or damaged
            continue
        if record is not None and run_id(record.config) == run:
            found.append(record)
    return next((record for record in found if record.result is not None), next(iter(found), None))


def refuse_former(record: RunRecord) -> None:
    """Raises InputError for a run that would go on under another id than its own."""
    if (now := run_id(record.config)) == record.run:
        return
    ways = ways_on(record.run, record.config.repetition, record.config.privacy.ledger == "sqlite")
    raise InputError(
        f"run {record.run} cannot go on: its id is of other paths than those of its data now, which make it {now} "
        f"(paths as they were typed, as ids had them before, or data that were moved); {ways}"
    )


def _has_paths(config: ExperimentConfig) -> bool:
    data = {key.split(".")[1] for key in path_keys(ExperimentConfig) if key.startswith("data.")}
    return any(getattr(config.data, key, None) is not None for key in data & type(config.data).model_fields.keys())
