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



@dataclass
class Aftermath:
    """Finds after all runs have ended: in memory, in what is on disk, in what commands printed."""

    memory: dict[str, Finds]
    files: dict[str, Finds]
    output: dict[str, Finds]
    said: dict[str, str]

    def places(self) -> dict[str, Finds]:
        return self.memory | self.files | self.output


@pytest.fixture(scope="module")
def failed(house, client, workers, halted) -> Aftermath:
    """Everything once more, after runs whose silos failed with errors that quote their records."""
    said = {}
    for name in FAILURES:
        config = house.config(name, ("north", "south"), 1)
        with house.switched(name):
            said[name] = house.call("run", str(config), code=2)
    # Once more: a worker that has sent an error of opening treats the next ones differently.
    config = house.config("again", ("north", "south"), 1)
    with house.switched("gradient"):
        said["again"] = house.call("run", str(config), code=2)
    for ending, damage in (("csv", b"x"), ("parquet", b"\xff")):
        config = house.config(f"cell-{ending}", ("north", "south"), 1)
        _damage(house.folder / "silos" / f"cell-{ending}-{'north' if ending == 'csv' else 'south'}.{ending}", damage)
        said[f"cell-{ending}"] = house.call("run", str(config), code=2)
    config = house.config("approval", ("north", "south"), 1)
    with house.switched("approval"):
        said["approval"] = house.call("run", str(config), code=2)
    memory = house.search_memory(house.processes({name: pid for name, (pid, _) in workers.items()}))
    return Aftermath(memory, house.search_files(house.home.root), house.search_output(), said)


def _damage(path: Path, with_: bytes) -> None:
    data = path.read_bytes()
    if path.suffix == ".csv":
        head, first, rest = data.split(b"\n", 2)
        path.write_bytes(b"\n".join([head, first.replace(b",", with_ + b",", 1), rest]))
    else:
        path.write_bytes(data[:20] + with_ * 40 + data[60:])


def test_try(house, halted, failed):
    for place, text in failed.said.items():
        print("SAID", place, text)
    for place, finds in failed.places().items():
        print(place, finds.scanned / 1e6, finds.streams, {k: v for k, v in finds.by_owner.items()})
