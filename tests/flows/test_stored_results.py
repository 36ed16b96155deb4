"""A state of the server can name a pickle as its result: no process of fedcore loads one."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.filesystems import LocalFileSystem
from prefect.flow_engine import run_flow
from prefect.results import ResultStore
from prefect.states import Pending

from fedcore.errors import InputError
from fedcore.home import Home
from flows.services.environment import prefect_settings
from flows.services.machine import down
from flows.services.prefect_server import start_prefect_server
from flows.services.secret import basic, secret
from flows.sweep import sweep_flow as flow
from tests.patience import SOON

pytestmark = [pytest.mark.slow, pytest.mark.minutes]


class Hostile:
    """A pickle that runs a function when it is loaded."""

    def __init__(self, call: Callable[[Any], Any], argument: Any) -> None:
        self._call, self._argument = call, argument

    def __reduce__(self) -> tuple[Callable[[Any], Any], tuple[Any]]:
        return self._call, (self._argument,)


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[tuple[Home, str]]:
    home = Home(tmp_path_factory.mktemp("results") / "home")
    started = start_prefect_server(home)
    yield home, started.wait()
    started.release()
    down(home)


def planted(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The marker that loading makes, and state data that name the pickle in a storage known to the server."""
    marker, storage = folder / "marker", LocalFileSystem(basepath=str(folder))
    storage.save(folder.name.replace("_", "-").lower(), _sync=True)
    record = ResultStore(result_storage=storage).create_result_record(Hostile(Path.touch, marker), key="pickle")
    (folder / "pickle").write_bytes(record.serialize())
    return marker, json.loads(record.metadata.model_dump_json())


def test_the_result_of_a_completed_flow_run_is_not_loaded(server, tmp_path):
    """Its state changes after it was due and before its engine starts.

    Prefect's engine starts a failed or crashed flow run anew, and loads no result.
    """
    home, url = server
    with prefect_settings(home, url), get_client(sync_client=True) as client:
        marker, data = planted(tmp_path)
        named = {"name": "ended"}
        made = client.create_flow_run(flow, parameters=named, state=Pending())
        state = {"state": {"type": "COMPLETED", "data": data}, "force": True}
        headers = {"content-type": "application/json", "authorization": basic(secret(home))}
        request = urllib.request.Request(f"{url}/flow_runs/{made.id}/set_state", json.dumps(state).encode(), headers)
        with urllib.request.urlopen(request, timeout=SOON) as answer:
            assert json.loads(answer.read())["status"] == "ACCEPT"
        with pytest.raises(InputError, match="stored result"):
            run_flow(flow, flow_run=client.read_flow_run(made.id), parameters=named)
    assert not marker.exists()


def test_neither_way_of_reading_loads_one(server, tmp_path):
    home, url = server
    store = ResultStore(result_storage=LocalFileSystem(basepath=str(tmp_path)))
    with prefect_settings(home, url):
        marker, _ = planted(tmp_path)
        with pytest.raises(InputError, match="stored result"):
            store.read("pickle")
        with pytest.raises(InputError, match="stored result"):
            asyncio.run(store.aread("pickle"))
    assert not marker.exists()
