"""Search of a home for runs of former ids, without validating the parameters of every run."""

from __future__ import annotations

import json
import os

from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.identity import SCHEMA, placeless, run_id
from fedcore.home import Home
from flows.recorded.recorded_data import Data, data_of
from flows.run_lock import store_path
from flows.runs import RunRecord, read_run
from tasks.run_file import read_meta

_KNOWN: dict[str, dict[str, tuple[int, str | None]]] = {}
"""By home and run: inode of the folder, and digest of the parameters without paths (or None).

Parameters are read once per process, because they never change.
"""


class FormerRuns:
    """Runs of former ids by parameters, and the state of their data; each run is read once."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._by_name: dict[str, dict[str, list[str]]] = {}
        self._records: dict[str, tuple[RunRecord, str] | None] = {}
        self._data: dict[str, Data] = {}

    def of(self, config: ExperimentConfig) -> list[RunRecord]:
        """Records of readable runs under former ids whose present id is the config's."""
        if config.name not in self._by_name:
            self._by_name[config.name] = self._scanned(config.name)
        runs = self._by_name[config.name].get(placeless(config.model_dump(mode="json")), ())
        found, now = [self._read(run) for run in runs], run_id(config)
        return [each[0] for each in found if each is not None and each[1] == now != each[0].run]

    def data(self, config: ExperimentConfig, record: RunRecord) -> Data:
        """`data_of` for a run that `of` returned."""
        if record.run not in self._data:
            self._data[record.run] = data_of(self._home, record.run, config, record.result)
        return self._data[record.run]

    def _read(self, run: str) -> tuple[RunRecord, str] | None:
        """The record, and its present id; None for a damaged run."""
        if run not in self._records:
            try:
                record = read_run(self._home, run)
            except InputError:  # damaged
                record = None
            self._records[run] = None if record is None else (record, run_id(record.config))
        return self._records[run]

    def _scanned(self, name: str) -> dict[str, list[str]]:
        """Ids of all runs of a name, by their digests without paths. Raises InputError if the folder is unreadable."""
        known, found = _KNOWN.setdefault(str(self._home.runs), {}), dict[str, list[str]]()
        try:
            with os.scandir(self._home.runs) as folders:
                listed = sorted((each.name, each.inode()) for each in folders if _has_name(each.name, name))
        except (FileNotFoundError, NotADirectoryError):
            return found
        except OSError as error:
            raise InputError(f"{self._home.runs} cannot be read: {error.strerror}") from None
        for run, inode in listed:
            if run not in known or known[run][0] != inode:
                meta = read_meta(store_path(self._home, run))
                if "parameters" not in meta:
                    continue  # not begun yet
                known[run] = inode, _placeless(meta)
            if (digest := known[run][1]) is not None:
                found.setdefault(digest, []).append(run)
        return found


def _has_name(run: str, name: str) -> bool:
    return run.rpartition("-")[0] == name


def _placeless(meta: dict[str, str]) -> str | None:
    try:
        return placeless(json.loads(meta["parameters"])) if meta.get("schema") == str(SCHEMA) else None
    except ValueError:
        return None
