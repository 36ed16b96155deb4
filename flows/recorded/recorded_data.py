"""Comparison of a run's data, as its checkpoint recorded them, with the data that are there now."""

from __future__ import annotations

from typing import Literal

from fedcore.data.constants.scaling import PublicScaling
from fedcore.data.dataset import constants_digest
from fedcore.data.federations.federation_data import FederationData
from fedcore.data.federations.joined import joined, name_of
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
    """Compares the files that `config` names with the data of the run. `result`: of a finished run.

    "unknown" if files cannot be read. Also if the checkpoint has no digests of them (guarded silos, older versions) and
    the result's sizes do not differ.
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
    """Part of the data that differs from the checkpoint, in words; None without a difference.

    Raises InputError, SiloError for files that cannot be read.
    """
    if isinstance(config.data, FederationData):
        name = name_of(joined(config.data, config.model))
        return "the silos of its federation, or their data" if meta.get("silos", name) != name else None
    if not isinstance(config.data, FilesData):
        digest = public_data_set(config.data, config.seed)
        return "what its public files hold" if digest is not None and meta.get("silos", digest) != digest else None
    sources = file_sources(config.data, config.model)
    if silos := other_files(meta, sources) if "files" in meta else []:
        return f"the file of {named(silos)}"
    if isinstance(config.data.scaling, PublicScaling):
        constants = constants_digest(sources[0])
        return "the file of data.scaling" if meta.get("constants", constants) != constants else None
    return None


def data_note(home: Home, run: str, config: ExperimentConfig) -> str:
    """End of a sentence, a warning if the data of a finished run have changed; empty if unreadable."""
    try:
        part = changed(read_meta(store_path(home, run)), config)
    except (InputError, SiloError):
        return ""
    return "" if part is None else f"; {part} changed since then, and the result is of what was there before"
