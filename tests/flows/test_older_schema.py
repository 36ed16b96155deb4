"""Runs and sweeps of an older version: refused with a sentence by name, counted in lists."""

from __future__ import annotations

import json
from contextlib import closing

import pytest

from fedcore.errors import InputError
from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.identity import SCHEMA, check_schema, run_id
from fedcore.experiment.sweep import SweepConfig
from fedcore.home import Home
from flows.runs import all_runs, read_run, store_path
from flows.sweep_files import all_sweeps, load_saved, save_sweep, sweep_id
from tasks.run_store import RunStore

BASE = {"privacy": {"epsilon": 1.0}, "algorithm": {"name": "mbsgd"}}
CONFIG = ExperimentConfig.model_validate(BASE)


def keep(home: Home, run: str, **meta) -> None:
    """Writes a checkpoint of a run that was begun."""
    with closing(RunStore(store_path(home, run))) as store:
        store.set_meta(state="KILLED", parameters=CONFIG.model_dump_json(), rounds=40, **meta)


def test_a_run_is_read_under_its_own_schema_only(tmp_path):
    home = Home(tmp_path)
    keep(home, run_id(CONFIG), schema=SCHEMA)
    keep(home, "digits-0123456789ab")  # version 0.1 stored no number
    keep(home, "digits-ba9876543210", schema=SCHEMA + 1)
    records, older = all_runs(home)
    assert [record.run for record in records] == [run_id(CONFIG)]
    assert sorted(older) == ["digits-0123456789ab", "digits-ba9876543210"]
    for run, sentence in (("digits-0123456789ab", "an older version"), ("digits-ba9876543210", "another version")):
        with pytest.raises(InputError, match=f"run {run} was made by {sentence} of fedcore.*at a charge of its own"):
            read_run(home, run)


def test_a_sweep_is_read_under_its_own_schema_only(tmp_path):
    home = Home(tmp_path)
    config = SweepConfig.model_validate({"name": "epsilons", "base": BASE, "grid": {"privacy.epsilon": [1.0, 2.0]}})
    path = home.sweeps / sweep_id(config) / "sweep.json"
    path.parent.mkdir(parents=True)
    save_sweep(home, config)
    assert load_saved(home, sweep_id(config)) == config
    assert all_sweeps(home) == [(sweep_id(config), 0, 2, "cells finished")]
    path.write_text(json.dumps(json.loads(path.read_bytes())["sweep"]))  # as version 0.1 stored it
    with pytest.raises(InputError, match="was made by an older version of fedcore"):
        load_saved(home, sweep_id(config))
    assert all_sweeps(home) == []
    for damaged in ("", "[]", "{", json.dumps({"schema": SCHEMA}), json.dumps({"schema": SCHEMA, "sweep": 3})):
        path.write_text(damaged)
        with pytest.raises(InputError, match="is missing or damaged"):
            load_saved(home, sweep_id(config))


def test_a_run_of_schema_2_is_refused_with_its_version_and_the_ways_on(tmp_path):
    home = Home(tmp_path)
    keep(home, "digits-651bc62005ae", schema=2)
    sentence = (
        r"^run digits-651bc62005ae was made by another version of fedcore \(schema 2\); version \S+ reads schema 3 only"
        r"\. Finish it, or look at it, with the version that made it, or run its config again here, at a charge of its "
        r"own \(`fedcore budget close digits-651bc62005ae` ends one that was stopped\)$"
    )
    with pytest.raises(InputError, match=sentence):
        read_run(home, "digits-651bc62005ae")


def test_the_schema_is_compared_in_every_stored_form():
    check_schema("run a", SCHEMA)
    check_schema("run a", str(SCHEMA))
    for other in (None, "", "two", SCHEMA - 1, f"{SCHEMA}.0"):
        with pytest.raises(InputError):
            check_schema("run a", other)
