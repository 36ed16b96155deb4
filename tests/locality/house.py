"""Silos in files with canaries among their records, the services of `fedcore up`, and searches."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import os
import pickle
import socket
import sqlite3
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch
from urllib.parse import urlsplit

import httpx
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet
import yaml
from distributed.protocol import serialize_bytes

from fedcore.experiment.identity import run_id
from fedcore.experiment.loading import load_experiment
from fedcore.home import Home
from flows.services.secret import basic, secret
from flows.services.up_file import status
from tests.locality.canaries import DIVIDE_BY, canary_rows, needles, prepared
from tests.locality.scanner import Finds, Scanner
from tests.patience import HANGS
from tests.policies import write_policy

FEATURES = ("age", "dose", "mass", "rate")
RECORDS = 40
ENVIRONMENT = "environment"  # owner of the canary that every process of `up` has on its stack


@dataclass
class House:
    """A folder with a home in it, everything that ever runs there, and all canaries that were handed out."""

    folder: Path
    seed: int
    values: dict[str, np.ndarray] = field(default_factory=dict)
    printed: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.home = Home(self.folder / "home")
        self.switches = self.folder / "switches"
        self.switches.mkdir(parents=True)
        self._rng = np.random.default_rng(self.seed)
        self.environment = {
            **os.environ,
            "FEDCORE_HOME": str(self.home.root),
            "FEDCORE_REGISTER": str(self.folder / "register"),
            "FEDCORE_POLICIES": str(write_policy(self.folder / "policies").parent),
            "LOCALITY_FOLDER": str(self.switches),
            "DASK_DISTRIBUTED__WORKER__PRELOAD": repr([str(Path(__file__).with_name("preload.py"))]),
            "PREFECT_RUNNER_POLL_FREQUENCY": "1",  # the deployments look for work every 10 s otherwise
            "LOCALITY_CANARY": repr(float(self.canary(ENVIRONMENT)[0])),
        }

    def canary(self, owner: str) -> np.ndarray:
        """A row of canaries that belongs to a place or a silo; searches look for it from now on."""
        row = canary_rows(self._rng, 1, len(FEATURES))[0]
        self.values[owner] = np.append(self.values.get(owner, ()), row)
        return row

    def silo(self, owner: str, ending: str, canaries: int) -> Path:
        """A silo's file: canary rows among other records; searches look for them raw and prepared."""
        rows = canary_rows(self._rng, canaries, len(FEATURES))
        self.values[owner] = np.concatenate([rows.ravel(), prepared(rows).ravel()])
        X = self._rng.uniform(-1, 1, (RECORDS, len(FEATURES)))
        X[:: RECORDS // canaries] = rows
        path = self.folder / "silos" / f"{owner.replace(' ', '-')}.{ending}"
        path.parent.mkdir(exist_ok=True)
        self._write(path, X)
        return path

    def _write(self, path: Path, X: np.ndarray) -> None:
        y = (X.sum(axis=1) > 0).astype(int)
        if path.suffix == ".csv":
            lines = [",".join(map(repr, [*row, label])) for row, label in zip(X.tolist(), y.tolist(), strict=True)]
            path.write_text("\n".join([",".join([*FEATURES, "y"]), *lines]) + "\n")
        else:
            pa.parquet.write_table(pa.table({**dict(zip(FEATURES, X.T, strict=True)), "y": y}), path)

    def config(self, name: str, silos: Sequence[str], rounds: int, canaries: int) -> Path:
        """An experiment on new silos, CSV and Parquet in turn, with guarded noise and durable ledgers."""
        test = self.folder / "public.csv"
        if not test.exists():
            self._write(test, self._rng.uniform(-1, 1, (60, len(FEATURES))))
        owners = [f"{name} {silo}" for silo in silos]
        files = [self.silo(owner, ("csv", "parquet")[i % 2], canaries) for i, owner in enumerate(owners)]
        values = {
            "name": name,
            "data": {
                "source": "files",
                "features": list(FEATURES),
                "label": "y",
                "divide_by": DIVIDE_BY,
                "test": str(test),
                "silos": [{"name": silo, "path": str(file)} for silo, file in zip(silos, files, strict=True)],
            },
            "privacy": {"epsilon": 4, "ledger": "sqlite", "noise": "guarded"},
            "algorithm": {"name": "mbsgd", "rounds": rounds},
            "cluster": {"deadline": 2 * HANGS},  # all memory is searched while a round waits
        }
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(values))
        self.call("budget", "register", "--new", str(path))
        return path

    def scanner(self) -> Scanner:
        return Scanner(needle for owner, values in self.values.items() for needle in needles(owner, values))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "flows.commands.app", *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def call(self, *arguments: str, code: int = 0) -> str:
        """Output of a command, which is also recorded for the search."""
        return self.end(self.start(*arguments), " ".join(arguments), code)

    def end(self, process: subprocess.Popen[str], name: str, code: int = 0) -> str:
        out, err = process.communicate(timeout=HANGS)
        assert process.returncode == code, (process.returncode, out, err)
        self.printed[name] = out + err
        return self.printed[name]

    def state(self, config: Path) -> str:
        # An id does not name places in the home, so it depends on which home it is.
        with patch.dict(os.environ, {"FEDCORE_HOME": str(self.home.root)}):
            run = run_id(load_experiment(config))
        return next(found["state"] for found in json.loads(self.call("runs", "--json")) if found["run"] == run)

    @contextlib.contextmanager
    def switched(self, name: str, text: str = "") -> Iterator[None]:
        """Activates a fault of tests/locality/preload.py by its name for the time of the block."""
        (self.switches / name).write_text(text)
        try:
            yield
        finally:
            (self.switches / name).unlink()

    def wait_for_halt(self, process: subprocess.Popen[str], workers: int) -> None:
        until = time.monotonic() + HANGS
        while len(list(self.switches.glob("halted-*"))) < workers:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until, "the run never came to its halt"
            time.sleep(0.05)

    def processes(self, workers: dict[str, int]) -> dict[str, list[int]]:
        """Process numbers by place: those that `up` started, with children."""
        named = {name: int(service["pid"]) for name, service in status(self.home).items()}
        places = {"nanny": [named["dask-workers"]], "scheduler": [named["dask"]], "deployments": [named["deployments"]]}
        places |= {name: [pid] for name, pid in workers.items()}
        for name in ("prefect", "mlflow"):
            places[f"{name} server"] = [named[name], *(c.pid for c in psutil.Process(named[name]).children(True))]
        return places

    def search_memory(self, places: dict[str, list[int]]) -> dict[str, Finds]:
        return self.scanner().memories(places, self.folder)

    def search_files(self, root: Path) -> dict[str, Finds]:
        """Finds below a home (or a copy), by place: the first folder, or the database, or a kind of log."""
        scanner = self.scanner()
        found: dict[str, Finds] = {}
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            parts = path.relative_to(root).parts
            place = parts[0].removesuffix("-wal").removesuffix("-shm")
            if place == "services" and path.name.endswith((".log", ".log.1")):
                place = f"log of {path.name.partition('.')[0]}"
            if place == "prefect":
                place = "prefect database" if path.name.startswith("prefect.db") else "prefect folder"
            found.setdefault(place, Finds()).add(scanner.file(path))
        return found

    def search_output(self) -> dict[str, Finds]:
        scanner = self.scanner()
        return {f"output of {name}": scanner.data(text.encode()) for name, text in self.printed.items()}


@contextlib.contextmanager
def half_a_request(url: str, header: bytes) -> Iterator[None]:
    """A request that does not end: its server holds the received part in memory."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Planted: " + header)
        until = time.monotonic() + HANGS
        while not _was_read(connection):
            assert time.monotonic() < until, f"{url} reads nothing"
            time.sleep(0.05)
        time.sleep(0.3)
        yield


def _was_read(connection: socket.socket) -> bool:
    """True if the server has read all bytes from its end of the connection, by the kernel's table."""
    there, here = connection.getpeername()[1], connection.getsockname()[1]
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, queues, *_ = line.split()
        ends = int(local.rpartition(":")[2], 16), int(remote.rpartition(":")[2], 16)
        if ends == (there, here) and state == "01":
            return int(queues.partition(":")[2], 16) == 0
    return False


def leak_into_services(house: House, prefect: str, mlflow: str) -> None:
    """Stores records in Prefect and MLflow as careless code would: a log, result, parameter, metric."""
    row = house.canary("planted in prefect database")
    log = {"name": "x", "level": 20, "message": f"record {row.tolist()}", "timestamp": "2026-01-01T00:00:00Z"}
    known = {"Authorization": basic(secret(house.home))}
    httpx.post(f"{prefect}/logs/", json=[log], headers=known).raise_for_status()
    from prefect.serializers import PickleSerializer

    result = house.home.prefect / "storage" / "planted"
    result.parent.mkdir(exist_ok=True)
    result.write_bytes(PickleSerializer().dumps(house.canary("planted in prefect folder")))
    row, api = house.canary("planted in mlflow.db"), f"{mlflow}/api/2.0/mlflow/runs"
    begun = httpx.post(f"{api}/create", json={"experiment_id": "0", "start_time": 1}, headers=known).raise_for_status()
    run = begun.json()["run"]["info"]["run_id"]
    fields = {"run_id": run, "key": "x", "timestamp": 1, "step": 1}
    metric = house.canary("planted as a metric in mlflow.db")
    httpx.post(f"{api}/log-metric", json={**fields, "value": metric[0]}, headers=known).raise_for_status()
    parameter = {"run_id": run, "key": "p", "value": repr(row[0])}
    httpx.post(f"{api}/log-parameter", json=parameter, headers=known).raise_for_status()
    np.save(house.home.mlflow_artifacts / "planted.npy", house.canary("planted in mlflow-artifacts"))


def leak_into_files(house: House, root: Path) -> None:
    """Writes records below a copy of a home, in ledgers and checkpoints."""
    for place, form in (("runs", np.ndarray.tobytes), ("ledgers", lambda row: zlib.compress(pickle.dumps(row)))):
        path = next(path for path in sorted((root / place).rglob("*.sqlite")))
        with contextlib.closing(sqlite3.connect(path)) as database, database:
            database.execute("CREATE TABLE planted (value)")
            database.execute("INSERT INTO planted VALUES (?)", (form(house.canary(f"planted in {place}")),))
    anchor = next((root / "anchors").rglob("*.anchor"))
    row = house.canary("planted in anchors").astype("f4")
    anchor.write_bytes(anchor.read_bytes() + base64.b64encode(row.tobytes()))
    for log in sorted((root / "services").glob("*.log")):
        with open(log, "a") as lines:
            lines.write(f"\nINFO records {house.canary(f'planted in log of {log.stem}')!r}\n")
    spilled = root / "services" / "dask" / "spilled"
    spilled.write_bytes(serialize_bytes(house.canary("planted in services")))
    (root / "silos" / "cache.gz").write_bytes(gzip.compress(house.canary("planted in silos").tobytes()))
