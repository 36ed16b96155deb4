"""Whether the data of a run that was begun are those that are there now, as far as its checkpoint says."""

from __future__ import annotations

from typing import Literal

from fedcore.data.constants.scaling import PublicScaling
from fedcore.data.dataset import constants_digest
from fedcore.data.file_sources import file_sources
from fedcore.data.generated import public_data_set
from fedcore.data.tabular import FilesData
from fedcore.errors import InputError, SiloError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.experiment import make_plan
from fedcore.experiment.result import RunResult
from fedcore.home import Home
from flows.run_lock import store_path
from tasks.binding import named, other_files
from tasks.run_file import read_meta

Data = Literal["same", "other", "unknown"]


def data_of(home: Home, run: str, config: ExperimentConfig, result: RunResult | None) -> Data:
    """What the files that `config` names are to those of the run; `result`: of a finished one.

    Unknown where its checkpoint has no digests of them (guarded silos, older versions), unless sizes differ, and where
    files cannot be read.
    """
    meta = read_meta(store_path(home, run))
    try:
        if changed(meta, config) is not None:
            return "other"
        if "files" in meta or (not isinstance(config.data, FilesData) and "silos" in meta):
            return "same"
        if result is not None and {silo.silo: silo.n for silo in result.silos} != make_plan(config).problem.sizes:
            return "other"
    except (InputError, SiloError):
        pass
    return "unknown"


def changed(meta: dict[str, str], config: ExperimentConfig) -> str | None:
    """What of the data is other than a checkpoint says, in words; None: nothing that it knows of.

    Raises InputError, SiloError for files that cannot be read.
    """
    if not isinstance(config.data, FilesData):
        there = public_data_set(config.data, config.seed)
        return "what its public files hold" if there is not None and meta.get("silos", there) != there else None
    sources = file_sources(config.data, config.model)
    if silos := other_files(meta, sources) if "files" in meta else []:
        return f"the file of {named(silos)}"
    if isinstance(config.data.scaling, PublicScaling):
        constants = constants_digest(sources[0])
        return "the file of data.scaling" if meta.get("constants", constants) != constants else None
    return None


def data_note(home: Home, run: str, config: ExperimentConfig) -> str:
    """A warning, as the end of a sentence, if the data of a finished run are others now, where they still are."""
    try:
        what = changed(read_meta(store_path(home, run)), config)
    except (InputError, SiloError):
        return ""
    return "" if what is None else f"; {what} changed since then, and the result is of what was there before"
