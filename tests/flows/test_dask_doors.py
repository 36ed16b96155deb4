"""Listening ports during a plain run and `fedcore up`, and their answers to a stranger."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from fedcore.home import Home
from flows.services.leases import read_json
from flows.services.machine import down
from flows.services.supervisor import record_path
from flows.services.up_file import status
from tests.doors import issued, listening, spoken, stranger
from tests.flows.mistakes import SMALL, instead
from tests.patience import HANGS, SOON
from tests.ports import ports_to_oneself

pytestmark = [pytest.mark.slow, pytest.mark.minutes]

LONG = instead(instead(SMALL, "rounds: 4", "rounds: 100000"), "{backend: in-process}", "{workers: 2}")
PAGES = ("/info/main/workers.html", "/metrics", "/json/counts.json", "/")


def command(*words: str, home: Home) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-m", "flows.commands.app", *words]
    variables = {**os.environ, "FEDCORE_HOME": str(home.root), "FEDCORE_SERVER_IDLE": "3"}
    return subprocess.Popen(arguments, env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def doors(pids: Iterable[int]) -> set[tuple[str, int]]:
    return {door for pid in pids if psutil.pid_exists(pid) for door in listening(psutil.Process(pid))}


def check(found: set[tuple[str, int]], pages: Iterable[str], count: int, folder: Path) -> None:
    """Checks that all ports are on loopback, and that those of Dask accept TLS with the home's keys only."""
    assert {host for host, _ in found} == {"127.0.0.1"}, found
    dask = {door for door in found if door[1] not in {urlsplit(page).port for page in pages}}
    assert len(dask) == count, (found, dask)
    for door in dask:
        for page in PAGES:
            answer = spoken(door, f"GET {page} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert answer[:1] in (b"", b"\x15"), f"{page} at {door}: {answer[:60]!r}"
        assert spoken(door, b"hello", stranger()) == b""
        assert spoken(door, b"hello", stranger(issued(folder, "own", None))) == b""


def test_a_run_opens_no_door_of_dask_but_by_tls_on_loopback(tmp_path):
    home = Home(tmp_path / "home")
    (tmp_path / "long.yaml").write_text(LONG)
    run = command("run", str(tmp_path / "long.yaml"), home=home)
    try:
        until, count = time.monotonic() + HANGS, 1 + 2 * 2
        while len(found := doors([run.pid])) < count + 1 or not record_path(home).exists():
            assert run.poll() is None and time.monotonic() < until, (found, run.communicate())
            time.sleep(0.5)
        server = read_json(record_path(home)) or {}
        check(found, [server["url"]], count, tmp_path)
    finally:
        run.send_signal(signal.SIGINT)
        _, errors = run.communicate(timeout=SOON)
    assert "Traceback" not in errors and "handshake" not in errors, errors


def test_up_opens_no_door_of_dask_but_by_tls_on_loopback(tmp_path):
    home = Home(tmp_path / "home")
    try:
        with ports_to_oneself():
            started = command("up", "--workers", "2", home=home)
            out, err = started.communicate(timeout=HANGS)
        assert started.returncode == 0, (out, err)
        services = status(home)
        found = {name: doors([service["pid"]]) for name, service in services.items()}
        assert {host for each in found.values() for host, _ in each} == {"127.0.0.1"}, found
        every = {"prefect": 1, "mlflow": 1, "dask": 1, "dask-workers": 2 * 2, "deployments": 0}
        assert {name: len(each) for name, each in found.items()} == every, found
        check(found["dask"] | found["dask-workers"], [], 1 + 2 * 2, tmp_path)
        assert services["dask"]["address"].startswith("tls://127.0.0.1:")
        keys = home.cluster_keys
        assert keys.stat().st_mode & 0o777 == 0o600 and keys.parent.stat().st_mode & 0o777 == 0o700
        secret = keys.read_text().splitlines()[1]
        for path in home.services.glob("*.*"):
            assert path.is_dir() or secret.encode() not in path.read_bytes(), path
        for service in services.values():
            words = psutil.Process(service["pid"]).cmdline()
            assert not any(secret in word for word in words)

        # A run uses the cluster with the keys of its home.
        (tmp_path / "small.yaml").write_text(instead(SMALL, "{backend: in-process}", "{workers: 2}"))
        run = command("run", str(tmp_path / "small.yaml"), home=home)
        out, err = run.communicate(timeout=HANGS)
        assert run.returncode == 0, (out, err)
    finally:
        down(home)
