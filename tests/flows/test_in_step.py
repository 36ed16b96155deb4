"""Cells in step on Dask, stopped half-way and resumed beside others, end with the bits of each cell alone."""

from __future__ import annotations

import json

import pytest

from fedcore.experiment.config import ExperimentConfig
from fedcore.experiment.identity import run_id
from fedcore.home import Home
from flows.driver.session import Session
from flows.runs import store_path
from flows.training import train_calls
from tasks.calls import in_step
from tasks.run_file import read_done
from tests.selection import some_in_make_test

ALGORITHMS = (
    {"name": "mbsgd", "rounds": 7},
    {"name": "localized-mbsgd", "step": 1, "lam": 0.01, "rounds": [4, 2, 1]},
    {"name": "scaffold", "rounds": 3, "local_steps": 3, "sampling_rate": 0.5, "step": 0.3},
    {"name": "one-pass-mbsgd", "rounds": 2},
)


def cell(backend: str, workers: int, **changed: object) -> ExperimentConfig:
    values = {
        "name": "cell",
        "data": {"source": "synthetic", "silos": 5, "records": 60, "features": 4, "test_records": 10},
        "privacy": {"epsilon": 2.0},
        "cluster": {"backend": backend} | ({"workers": workers} if backend == "dask" else {}),
        "tracking": {"mlflow": False},
        **changed,
    }
    return ExperimentConfig.model_validate(values)


def cells(backend: str, workers: int = 2) -> list[ExperimentConfig]:
    grid = [(algorithm, seed) for algorithm in ALGORITHMS for seed in (0, 1, 2)]
    return [cell(backend, workers, algorithm=algorithm, seed=seed) for algorithm, seed in grid]


def carry_out(home: Home, configs: list[ExperimentConfig], width: int, stop_after: int | None = None) -> None:
    """Carries out all runs in step, to their ends or until a total number of rounds."""
    done = 0

    def took(run: str, phase: int, round: int) -> None:
        nonlocal done
        done += 1
        if done == stop_after:
            raise KeyboardInterrupt

    def all_rounds(training):
        while training.phase is not None:
            yield from training.round_calls()

    with Session.of_driver(home, took) as session:
        runs = ((run_id(config), train_calls(config, session, all_rounds)) for config in configs)
        for _, made in in_step(runs, width):
            if isinstance(made, Exception):
                raise made


def weights(home: Home, config: ExperimentConfig) -> str:
    return json.loads((home.runs / run_id(config) / "model.json").read_text())["w"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict[str, str]:
    """Model of each run by itself, in one process, by run."""
    home, configs = Home(tmp_path_factory.mktemp("alone")).make(), cells("in-process")
    for config in configs:
        carry_out(home, [config], 1)
    return {run_id(config): weights(home, config) for config in configs}


CHANGES = [((4, 64), (2, 1)), ((64, 3), (1, 2))]
"""Cells in step and workers, before a stop and after it."""


@pytest.mark.slow
@pytest.mark.parametrize("widths, workers", some_in_make_test(CHANGES, CHANGES[:1]))
def test_runs_stopped_half_way_go_on_in_other_company_to_the_same_bits(tmp_path, alone, widths, workers):
    home = Home(tmp_path / "home").make()
    with pytest.raises(KeyboardInterrupt):
        carry_out(home, cells("dask", workers[0]), widths[0], stop_after=20)
    begun = [read_done(store_path(home, run_id(config))) for config in cells("dask")]
    assert 0 < sum(begun) <= 20 and any(0 < rounds < 7 for rounds in begun)
    configs = cells("dask", workers[1])
    carry_out(home, configs[::-1], widths[1])
    assert {run_id(config): weights(home, config) for config in configs} == alone
