"""Services with real processes: starting and sharing a server, and no process left behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import prefect.server.database
import psutil
import pytest

from fedcore.errors import InputError
from fedcore.home import Home
from flows.services.database import make_database, template_path
from flows.services.environment import prefect_environment
from flows.services.leases import ProcessId, read_json, write_json
from flows.services.machine import down, drivers, up
from flows.services.prefect_server import ServiceError, answers, complaint, start_prefect_server
from flows.services.server_keeper import ServerKeeper
from flows.services.start import MARK
from flows.services.supervisor import GRACE, IDLE, lease_folder, record_path, up_path
from flows.services.up_file import active_services, status
from tests.patience import HANGS, SOON
from tests.ports import ports_to_oneself

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).resolve().parents[2]

# A driver: holds the home's server, prints its address, then runs the test's code.
DRIVER = """
import json, os, sys, time
from pathlib import Path
from fedcore.errors import InputError
from fedcore.home import Home
from flows.services.prefect_server import start_prefect_server
server = start_prefect_server(Home(Path(sys.argv[1])))
if "wait" in sys.argv:
    server.wait()
server_values = dict(pid=server.process.pid, start=server.process.start, url=server.url, shared=server.shared)
print(json.dumps(server_values), flush=True)
if "stay" in sys.argv:
    time.sleep(600)
"""


def eventually(true: Callable[[], bool], seconds: float) -> bool:
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if true():
            return True
        time.sleep(0.05)
    return true()


def gone(process: ProcessId) -> bool:
    """True if the process ends: within 10 s on an idle machine."""
    return eventually(lambda: not process.alive(), SOON)


@contextlib.contextmanager
def driver(home: Home, *words: str) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(home.root), *words], stdout=subprocess.PIPE, text=True, cwd=PROJECT
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def announced(child: subprocess.Popen[str]) -> dict[str, Any]:
    assert child.stdout is not None
    value: dict[str, Any] = json.loads(child.stdout.readline())
    return value


def identity(record: dict[str, Any]) -> ProcessId:
    process = ProcessId.read(record)
    assert process is not None
    return process


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("services") / "a home with spaces").make()


@pytest.fixture
def bystander() -> Iterator[ProcessId]:
    """A process that is unrelated to all services."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        yield ProcessId.of(child.pid)
    finally:
        child.kill()
        child.wait()


def test_importing_the_layer_imports_no_engine() -> None:
    code = "import sys, flows.services.machine; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, stdout=subprocess.PIPE, check=True)
    assert not {"prefect", "mlflow", "distributed", "dask"} & set(found.stdout.decode().split())


@pytest.mark.minutes
def test_drivers_that_start_together_share_one_server_until_the_last_is_killed(home: Home) -> None:
    with driver(home, "wait", "stay") as first, driver(home, "wait", "stay") as second:
        one, other = announced(first), announced(second)
        server = identity(one)
        assert (one["pid"], one["url"]) == (other["pid"], other["url"])
        assert sorted([one["shared"], other["shared"]]) == [False, True]
        assert answers(one["url"] + "/health", home, timeout=SOON)
        assert set(drivers(home)) == {first.pid, second.pid}
        first.kill()
        time.sleep(GRACE + 2)
        assert server.alive(), "a server must not leave a living driver"
        second.kill()
        assert gone(server), "a server must not outlive its last driver"
    assert not record_path(home).exists()


def test_the_pipe_of_a_caller_ends_with_the_driver(home: Home) -> None:
    with driver(home) as child:
        output, _ = child.communicate(timeout=HANGS)
        # The server lives for GRACE seconds more: a pipe that it held would have ended with it.
        alive = identity(json.loads(output)).alive()
    assert alive, "the pipe ended with the server, or nothing is shown"
    assert gone(identity(json.loads(output)))


@pytest.mark.minutes
def test_a_record_or_a_lease_with_a_reused_number_does_not_count(home: Home, bystander: ProcessId) -> None:
    stale = {"pid": bystander.pid, "start": "1@another", "url": "http://127.0.0.1:9/api"}
    write_json(record_path(home), stale)
    write_json(lease_folder(home) / f"{bystander.pid}-0.json", stale)
    write_json(up_path(home), {"state": "up", "services": {"prefect": stale | {"address": stale["url"]}}})
    try:
        assert active_services(home) is None
        server = start_prefect_server(home)
        assert not server.shared
        assert server.wait().startswith("http://127.0.0.1:")
        again = start_prefect_server(home)
        assert again.shared and again.url == server.url
        again.release()
        server.release()
        assert gone(server.process), "neither the stale lease nor the stale up.json may keep it"
        assert down(home) == []
        assert bystander.alive()
    finally:
        up_path(home).unlink(missing_ok=True)


@pytest.mark.minutes
def test_nobody_is_handed_a_dying_server(home: Home) -> None:
    first = start_prefect_server(home)
    first.wait()
    first.release()
    time.sleep(GRACE + 0.2)  # the server is about to end
    second = start_prefect_server(home)
    try:
        assert answers(second.wait() + "/health", home, timeout=SOON)
        time.sleep(1)
        assert second.process.alive()
        assert second.process == first.process or gone(first.process)
    finally:
        second.release()
    assert gone(second.process)


@pytest.mark.minutes
def test_a_server_waits_for_the_next_driver_until_down_ends_it(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(IDLE, "600")
    first = start_prefect_server(home)
    first.wait()
    first.release()
    time.sleep(GRACE + 2)
    second = start_prefect_server(home)
    assert second.shared and second.process == first.process
    assert down(home) == [] and second.process.alive(), "a driver has it"
    second.release()
    assert down(home) == ["prefect"]
    assert gone(first.process) and not record_path(home).exists()


def test_a_waiting_server_of_another_version_is_ended_and_replaced(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(IDLE, "600")
    first = start_prefect_server(home)
    first.release()
    write_json(record_path(home), (read_json(record_path(home)) or {}) | {"version": "another"})
    second = start_prefect_server(home)
    try:
        assert not second.shared and second.process != first.process
        assert gone(first.process)
    finally:
        second.release()
        assert down(home) == ["prefect"]


@pytest.mark.parametrize("value", ["soon", "-1", "inf", "nan"])
def test_a_waiting_time_that_is_none_is_named(home: Home, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(IDLE, value)
    with pytest.raises(InputError, match=f"{IDLE} = '{value}' is not a number of seconds"):
        start_prefect_server(home)


@pytest.mark.minutes
def test_why_a_killed_server_was_not_started_again_is_in_its_log(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise InputError("no room")

    server = start_prefect_server(home)
    try:
        server.wait()
        monkeypatch.setattr("flows.services.server_keeper.start_server", fail)
        with ServerKeeper(home, server) as keeper:
            os.kill(server.process.pid, signal.SIGKILL)
            until = time.monotonic() + SOON
            while "no room" not in complaint(server.log):
                assert time.monotonic() < until, "nothing is said"
                time.sleep(0.1)
        assert complaint(server.log) == "InputError: the server was not started again: no room"
        assert keeper.revived == 0
    finally:
        server.release()


@pytest.mark.minutes
def test_a_killed_server_is_started_again_at_its_address(home: Home) -> None:
    server = start_prefect_server(home)
    try:
        server.wait()
        address = urlsplit(server.url)
        # An open connection: its address stays in TIME_WAIT once the server is gone.
        with ServerKeeper(home, server) as keeper, socket.create_connection((address.hostname, address.port)):
            os.kill(server.process.pid, signal.SIGKILL)
            assert gone(server.process)
            until = time.monotonic() + SOON
            while not answers(f"{server.url}/health", home, timeout=1.0):
                assert time.monotonic() < until, "nobody answers at the old address"
                time.sleep(0.1)
        assert keeper.revived == 1
        again = start_prefect_server(home)
        assert again.shared and again.url == server.url and again.process != server.process
        again.release()
    finally:
        server.release()
    assert gone(again.process)


@pytest.mark.minutes
def test_what_a_driver_sent_is_stored_before_its_server_ends(home: Home) -> None:
    tasks = 300
    code = f"""
import json, os
from pathlib import Path
from fedcore.errors import InputError
from fedcore.home import Home
from flows.launch import drain_events
from flows.services.leases import read_json
from flows.services.environment import prefect_environment, prefect_settings
from flows.services.prefect_server import prefect_server
from flows.services.supervisor import record_path
home = Home(Path({str(home.root)!r}))
os.environ.update(prefect_environment(home))
with prefect_server(home) as url, prefect_settings(home, url):
    from prefect import flow, task
    @task
    def nothing(i): return None
    @flow(name="stored")
    def many():
        for i in range({tasks}): nothing(i)
    many()
    drain_events()  # as a driver does before it lets go of its server
    print(json.dumps(read_json(record_path(home))))  # both may be gone before this driver is
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment["HOME"] = str(home.root / "user")  # Prefect must write no file there
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, env=environment, check=True, timeout=HANGS, stdout=subprocess.PIPE
    )
    (record,) = (line for line in done.stdout.splitlines() if line.startswith(b"{"))
    assert gone(identity(json.loads(record)))
    with contextlib.closing(sqlite3.connect(home.prefect / "prefect.db")) as database:
        count = database.execute("SELECT count(*) FROM task_run WHERE state_type = 'COMPLETED'").fetchone()
        flows = database.execute("SELECT state_type FROM flow_run").fetchall()
    assert count == (tasks,)
    assert flows == [("COMPLETED",)]
    assert not (home.root / "user" / ".prefect").exists()


@pytest.mark.minutes
def test_a_server_ends_when_its_home_vanishes(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    server = start_prefect_server(home)
    server.wait()
    shutil.rmtree(home.root)
    assert gone(server.process)


@pytest.mark.minutes
def test_a_server_that_dies_early_names_its_log(tmp_path: Path) -> None:
    home = Home(tmp_path / "home").make()
    home.prefect.mkdir()
    (home.prefect / "prefect.db").write_text("no database " * 1000)
    server = start_prefect_server(home)
    try:
        with pytest.raises(ServiceError, match=r"prefect\.log \(.*not a database"):
            server.wait()
    finally:
        server.release()


@pytest.mark.minutes
def test_a_new_home_begins_with_a_copy_of_what_the_migrations_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    homes = [Home(tmp_path / name).make() for name in ("one", "two")]
    for home in homes:
        home.prefect.mkdir()
    make_database(homes[0])  # migrates
    made = template_path().stat().st_mtime_ns
    make_database(homes[1])
    assert template_path().stat().st_mtime_ns == made
    assert [path.name for path in homes[1].prefect.iterdir()] == ["prefect.db"]

    migrations = Path(prefect.server.database.__file__).parent / "_migrations" / "versions" / "sqlite"
    texts = [path.read_text() for path in migrations.glob("*.py")]
    named = [re.findall(r"""^(?:down_)?revision = ["'](\w+)["']""", text, re.MULTILINE) for text in texts]
    (latest,) = {pair[0] for pair in named} - {before for pair in named for before in pair[1:]}
    with contextlib.closing(sqlite3.connect(homes[1].prefect / "prefect.db")) as database:
        assert database.execute("SELECT version_num FROM alembic_version").fetchall() == [(latest,)]
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.minutes
def test_without_a_template_nothing_is_made_and_prefect_migrates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "caches").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    home = Home(tmp_path / "home").make()
    home.prefect.mkdir()
    make_database(home)
    assert not list(home.prefect.iterdir())
    server = start_prefect_server(home)
    try:
        server.wait()
        assert (home.prefect / "prefect.db").exists()
    finally:
        server.release()


def marked(mark: str) -> list[int]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == mark and ProcessId.of(process.pid).alive():
                found.append(process.pid)
    return found


@pytest.mark.minutes
def test_up_status_down(home: Home) -> None:
    assert status(home) == {} and active_services(home) is None and down(home) == []
    with ports_to_oneself():
        started = up(home, workers=2)
    try:
        mark = (read_json(up_path(home)) or {})["mark"]
        assert not started.already
        assert active_services(home) == started.addresses
        assert set(started.addresses) == {"prefect", "mlflow", "dask"}
        again = up(home)
        assert again.already and again.addresses == started.addresses
        assert answers(started.addresses["mlflow"] + "/health", home, timeout=SOON)
        assert {"prefect", "mlflow", "dask", "dask-workers"} <= set(status(home))
        assert all(service["alive"] for service in status(home).values())

        from distributed import Client  # here, because its import takes a second

        from tasks.workers.credentials import read
        from tasks.workers.nodes import security

        with Client(started.addresses["dask"], timeout=SOON, security=security(read(home.cluster_keys))) as client:
            workers = client.sync(client.scheduler.identity, n_workers=-1)["workers"].values()
            assert {worker["name"] for worker in workers} == {"site-0", "site-1"}
            assert {worker["nthreads"] for worker in workers} == {1}
            threads = client.run(lambda: os.environ["OMP_NUM_THREADS"])
            assert set(threads.values()) == {"1"}

        with driver(home, "wait") as child:
            shared = json.loads(child.communicate(timeout=HANGS)[0])
        assert shared["shared"] and shared["url"] == started.addresses["prefect"]
        time.sleep(GRACE + 2)
        assert identity(shared).alive(), "with `up`, the server needs no driver"

        os.kill(status(home)["dask-workers"]["pid"], signal.SIGKILL)
        assert eventually(lambda: not status(home)["dask-workers"]["alive"], SOON)
        assert set(active_services(home) or {}) == {"prefect", "mlflow"}
    finally:
        everyone = [ProcessId.of(service["pid"]) for service in status(home).values() if service["alive"]]
        down(home)
    assert not any(process.alive() for process in everyone)
    assert marked(mark) == []
    assert status(home) == {} and not up_path(home).exists() and not record_path(home).exists()


@pytest.mark.minutes
def test_an_up_that_fails_names_the_log_and_leaves_nothing(tmp_path: Path) -> None:
    home = Home(tmp_path / "home").make()
    home.mlflow_database.write_text("no database " * 1000)
    with ports_to_oneself(), pytest.raises(ServiceError, match=r"mlflow: .*mlflow\.log \(.*not a database"):
        up(home, workers=1)
    assert status(home) == {} and not up_path(home).exists()
    left = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get("FEDCORE_HOME") == str(home.root) and ProcessId.of(process.pid).alive():
                left.append(process.cmdline())
    assert left == []


def test_the_environment_keeps_prefect_in_the_home(home: Home) -> None:
    environment = prefect_environment(home)
    assert environment["PREFECT_HOME"] == str(home.prefect)
    assert "127.0.0.1" in environment["no_proxy"].split(",")
