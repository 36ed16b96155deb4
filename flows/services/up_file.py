"""Reader of `services/up.json`, which names each process that `fedcore up` started, by service.

status(home)           state of each process
active_services(home)  addresses of the living services, None without any
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedcore.home import Home
from flows.services.leases import ProcessId, read_json
from flows.services.supervisor import up_path

REQUIRED = ("prefect", "mlflow", "dask", "dask-workers")


def status(home: Home) -> dict[str, dict[str, Any]]:
    """`address`, `pid`, `alive` and `log` of each service of `up`, by name; empty without one."""
    return {
        name: {
            "address": record.get("address"),
            "pid": record.get("pid"),
            "alive": process.alive(),
            "log": str(home.services / f"{name}.log"),
        }
        for name, record, process in records(home)
    }


def active_services(home: Home) -> dict[str, str] | None:
    """Addresses of living services, by `prefect` (API), `mlflow` and `dask`; None without one.

    Checks processes, not the network: a service that hangs is listed.
    """
    if (read_json(up_path(home)) or {}).get("state") != "up":
        return None
    alive = {name for name, _, process in records(home) if process.alive()}
    if "dask-workers" not in alive:
        alive.discard("dask")  # every call to a scheduler without workers would wait forever
    found = {name: url for name, url in addresses(home).items() if name in alive and name != "deployments"}
    return found or None


def records(home: Home) -> Iterator[tuple[str, dict[str, Any], ProcessId]]:
    services = (read_json(up_path(home)) or {}).get("services")
    for name, record in (services if isinstance(services, dict) else {}).items():
        process = ProcessId.read(record) if isinstance(record, dict) else None
        if process is not None:
            yield name, record, process


def addresses(home: Home) -> dict[str, str]:
    return {name: record["address"] for name, record, _ in records(home) if record.get("address")}


def complete(home: Home) -> bool:
    """True if an `up` has completed and all its processes are alive."""
    alive = {name: process.alive() for name, _, process in records(home)}
    finished = (read_json(up_path(home)) or {}).get("state") == "up"
    return finished and all(alive.values()) and set(REQUIRED) <= set(alive)


def browse(home: Home) -> tuple[dict[str, str], bool]:
    """Addresses of the pages of `prefect` and `mlflow`; true if `fedcore up` serves them now."""
    up = active_services(home) or {}
    pages = {
        "prefect": up.get("prefect", "http://127.0.0.1:4200").removesuffix("/api"),
        "mlflow": up.get("mlflow", "http://127.0.0.1:5000"),
    }
    return pages, "mlflow" in up
