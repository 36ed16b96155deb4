"""Records stay in the process of the worker that holds their silo, whatever runs and whatever fails.

One federation of four silos is run by the real command line on the services of `fedcore up`, halted in its last round
and searched; then runs fail in every way that could quote a record, and all is searched again. Every place first has to
show a canary that was planted there.
"""

from __future__ import annotations

import pickle
import shutil
import sys
import traceback
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from house import ENVIRONMENT, House, half_a_request, leak_into_database
from scanner import Finds

pytestmark = [pytest.mark.faults, pytest.mark.slow]

HELD = {"site-0": {"quiet north", "quiet east"}, "site-1": {"quiet south", "quiet west"}}
ROUNDS = 3
MEMORY = ("scheduler", "site-0", "site-1", "nanny", "prefect server", "mlflow server", "deployments")
FAILURES = {
    "gradient": "it could not answer; see the log at the silo",
    "opening": "cannot be read (ArrowInvalid)",
    "cleaning": "cannot be read (ValueError)",
}


@pytest.fixture(scope="module")
def house(tmp_path_factory) -> Any:
    house = House(tmp_path_factory.mktemp("locality"), seed=11)
    house.call("up", "--workers", "2")
    try:
        yield house
    finally:
        house.call("down")


@pytest.fixture(scope="module")
def client(house) -> Any:
    from distributed import Client

    from flows.services import active_services

    with Client((active_services(house.home) or {})["dask"], timeout=10, direct_to_workers=True) as client:
        yield client


@pytest.fixture(scope="module")
def workers(client) -> dict[str, tuple[int, str]]:
    """Process number and address of each worker, by name."""
    found = client.run(lambda dask_worker: (dask_worker.name, __import__("os").getpid()))
    return {name: (pid, address) for address, (name, pid) in found.items()}


@pytest.fixture(scope="module")
def halted(house, client, workers) -> dict[str, Finds]:
    """Finds in memory while the last round of an undisturbed run is computed, after planting in every place."""
    places = {place: house.canary(f"planted in {place}") for place in MEMORY}
    kept = [
        client.scatter(places[name], workers=[address], direct=True, hash=False, broadcast=False)
        for name, (_, address) in workers.items()
    ]
    client.run_on_scheduler(_keep, values=places["scheduler"])
    client.run(_keep_in_nanny, values=places["nanny"], nanny=True)
    addresses = {name: _address(house, name) for name in ("prefect", "mlflow")}
    config = house.config("quiet", ("north", "east", "south", "west"), ROUNDS)
    with house.switched("halt", f"1.{ROUNDS}"):
        process = house.start("run", str(config))
        house.wait_for_halt(process, 2)
        with (
            half_a_request(addresses["prefect"], repr(places["prefect server"].tolist()).encode()),
            half_a_request(addresses["mlflow"], repr(places["mlflow server"].tolist()).encode()),
        ):
            pids = house.processes({name: pid for name, (pid, _) in workers.items()})
            found = house.search_memory(pids | {"command line": [process.pid]})
    house.end(process, "run")
    assert house.state(config) == "FINISHED"
    del kept
    return found


def _keep(dask_scheduler, values):
    dask_scheduler.planted = values


def _keep_in_nanny(dask_worker, values):
    dask_worker.planted = values


def _address(house: House, name: str) -> str:
    from flows.services import active_services

    return (active_services(house.home) or {})[name]


def test_try(house, halted):
    for place, finds in halted.items():
        print(place, finds.scanned / 1e6, finds.streams, {k: v for k, v in finds.by_owner.items()})
    for place, finds in house.search_files(house.home.root).items():
        print(place, finds.scanned / 1e6, finds.streams, {k: v for k, v in finds.by_owner.items()})
    for place, finds in house.search_output().items():
        print(place, finds.scanned / 1e6, finds.streams, {k: v for k, v in finds.by_owner.items()})
