"""The driver's side of Prefect: its environment and settings, and a server for the time of a run.

Nothing here imports prefect before it is asked to: the settings must be in the environment first.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from fedcore.errors import InputError
from fedcore.home import Home
from flows.services.leases import Lease, ProcessId, read_json, spawn, write_json
from flows.services.supervisor import lease_folder, record_path, server_lock

START_DEADLINE = 90.0  # seconds; a first start on a slow disk with all of Prefect's migrations takes about 30


class ServiceError(InputError):
    """A service that did not start or died; the message names its log and that log's last line."""


def prefect_environment(home: Home) -> dict[str, str]:
    """The variables that must be in `os.environ` before the first `import prefect` in a driver.

    They keep everything that Prefect writes inside the home, send nothing to its makers, keep the console
    quiet, forbid Prefect's own temporary server (it outlives a killed parent), and let no proxy stand between
    a driver and its own machine.
    """
    return {
        "PREFECT_HOME": str(home.prefect),
        "PREFECT_PROFILES_PATH": str(home.prefect / "profiles.toml"),
        "PREFECT_LOGGING_LEVEL": "WARNING",
        "PREFECT_SERVER_EPHEMERAL_ENABLED": "false",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    } | _no_proxy()


def _no_proxy() -> dict[str, str]:
    """`no_proxy` with this machine's own addresses added to what the user has in it."""
    known = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    names = [name for name in known.split(",") if name]
    value = ",".join([*names, *(own for own in ("127.0.0.1", "localhost") if own not in names)])
    return {"no_proxy": value, "NO_PROXY": value}


def server_environment(home: Home, url: str, event_feed: bool) -> dict[str, str]:
    """The whole environment of a Prefect server at `url`: the user's own, without their Prefect settings.

    `event_feed`: whether events are stored for the page's event feed. Runs, tasks, states and logs are
    stored either way; the feed more than doubles the price of a task run (5 against 12 ms).
    """
    page = urlsplit(url)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    services = "PREFECT_SERVER_SERVICES_"
    return (
        child_environment(home, inherited)
        | prefect_environment(home)
        | {
            "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home.prefect / 'prefect.db'}",
            "PREFECT_SERVER_UI_ENABLED": "true",
            "PREFECT_SERVER_UI_API_URL": url,
            # Prefect lets the pages of any web site call its API; ours is called by its own page only.
            "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"http://{page.netloc},http://localhost:{page.port}",
            "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
            # One transaction per event is Prefect's default and costs 26 ms per task run.
            f"{services}TASK_RUN_RECORDER_BATCH_SIZE": "200",
            f"{services}TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",  # cut to whole seconds: never below 1
            f"{services}EVENT_PERSISTER_ENABLED": str(event_feed).lower(),
            f"{services}EVENT_PERSISTER_BATCH_SIZE": "500",
            f"{services}EVENT_PERSISTER_FLUSH_INTERVAL": "2",
            f"{services}TRIGGERS_ENABLED": "false",
            # The event stream stays on: through it a served deployment hears of Cancel on the page. It costs
            # nothing while nobody listens. The rest is for work pools, which this project does not use.
            f"{services}FOREMAN_ENABLED": "false",
            f"{services}REPOSSESSOR_ENABLED": "false",
            f"{services}CLEANUP_RECONCILER_ENABLED": "false",
            # Block types are for Prefect's integrations; registering them takes seconds of a first start.
            "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "false",
            "PREFECT_SERVER_MEMOIZE_BLOCK_AUTO_REGISTRATION": "false",
        }
    )


def child_environment(home: Home, inherited: dict[str, str] | None = None) -> dict[str, str]:
    """The environment of any service: the inherited one, the home, and this project on the import path."""
    environment = dict(os.environ if inherited is None else inherited)
    project = str(Path(__file__).resolve().parents[2])
    paths = [project, *environment.get("PYTHONPATH", "").split(os.pathsep)]
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path for path in paths if path))
    environment["FEDCORE_HOME"] = str(home.root)
    return environment | _no_proxy()


@contextlib.contextmanager
def prefect_settings(url: str) -> Iterator[None]:
    """Makes `url` the Prefect server of the calling thread and of what it starts, inside the `with` block."""
    import prefect.settings as settings

    with settings.temporary_settings(
        {
            settings.PREFECT_API_URL: url,
            settings.PREFECT_SERVER_ANALYTICS_ENABLED: False,
            settings.PREFECT_SERVER_ALLOW_EPHEMERAL_MODE: False,
            settings.PREFECT_LOGGING_LEVEL: "WARNING",
            # Nobody listens to heartbeats here, and each flow would wait for its heartbeat thread at its end.
            settings.PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,
        }
    ):
        yield


def complaint(log: Path) -> str:
    """The last exception that the end of a log shows, else its last line; a word for an empty log."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - 20_000))
            text = file.read().decode(errors="replace")
    except OSError:
        return "no log"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    exceptions = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt)\b", line)]
    return [*(exceptions or lines or ["empty log"])][-1]


def answers(url: str, timeout: float) -> bool:
    """Whether a GET of `url` is answered with 200 within `timeout` seconds; asks no proxy."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
    try:
        connection.request("GET", parts.path, headers={"Connection": "close"})
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def listen(preferred: int | None, tries: int = 20) -> socket.socket:
    """A socket that listens on 127.0.0.1, at the preferred port or one of the next, else at any free one."""
    for port in [*(range(preferred, preferred + tries) if preferred else ()), 0]:
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        # A port may still be cooling down from its last owner; its connections must have had the option too.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
            listening.listen(512)
        except OSError:
            listening.close()
            continue
        return listening
    raise ServiceError("127.0.0.1: no port is free for the Prefect server")


@dataclass(frozen=True)
class PrefectServer:
    """A driver's hold on its home's Prefect server. `url` is known at once; `wait` before it is used."""

    url: str  # of the API; the page is at the same address without the path
    process: ProcessId
    log: Path
    lease: Lease
    shared: bool  # True if another driver or `fedcore up` had started it

    def wait(self, seconds: float = START_DEADLINE) -> str:
        """The API address, once the server answers. Raises ServiceError if it dies or takes too long."""
        limit = time.monotonic() + seconds
        while not answers(f"{self.url}/health", timeout=2.0):
            if not self.process.alive():
                raise ServiceError(
                    f"Prefect server: ended while it was starting; see {self.log} ({complaint(self.log)})"
                )
            if time.monotonic() > limit:
                raise ServiceError(
                    f"Prefect server: process {self.process.pid} gave no answer at {self.url} within "
                    f"{seconds:.0f} s; see {self.log} ({complaint(self.log)})"
                )
            time.sleep(0.05)
        return self.url

    def release(self) -> None:
        """Gives the server up; the last driver's release ends it within 10 s. Safe to call again."""
        self.lease.release()


def start_prefect_server(home: Home, port: int | None = None, event_feed: bool = False) -> PrefectServer:
    """A hold on the home's Prefect server, which is started if none lives; returns without waiting for it.

    The server lives for as long as any driver that holds it, or until `fedcore down` if `fedcore up` made it.
    `port` and `event_feed` (see `server_environment`) are wishes: a server that lives is taken as it is.
    Raises InputError if the home cannot be written, BusyError if another start hangs.
    """
    home.make()
    lease = None
    try:
        lease = Lease.take(lease_folder(home))
        with server_lock(home):
            found = living_server(home)
            url, process = found or start_server(home, port, event_feed)
    except BaseException as error:
        if lease is not None:
            lease.release()
        if isinstance(error, OSError):
            raise ServiceError(
                f"{home.services}: the Prefect server cannot be started there ({error}); "
                "free some space, change its permissions, or set FEDCORE_HOME to another folder"
            ) from error
        raise
    return PrefectServer(url, process, home.services / "prefect.log", lease, shared=found is not None)


def living_server(home: Home) -> tuple[str, ProcessId] | None:
    """Address and process of the server that the home's record names, if it lives. Call with the lock."""
    record = read_json(record_path(home)) or {}
    process, url = ProcessId.read(record), record.get("url")
    return (url, process) if process is not None and isinstance(url, str) and process.alive() else None


def start_server(home: Home, port: int | None, event_feed: bool = False) -> tuple[str, ProcessId]:
    """Starts a server and writes its record. Call with the lock."""
    home.prefect.mkdir(exist_ok=True)
    # The socket is made here and handed over: the address is known at once, nobody can take the port in
    # between, and whoever connects too early waits in its queue and is answered first.
    with listen(port) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/api"
        process = spawn(
            [sys.executable, "-P", "-m", "flows.services.supervisor", str(home.root), str(listening.fileno())],
            log=home.services / "prefect.log",
            environment=server_environment(home, url, event_feed),
            pass_fds=[listening.fileno()],
        )
    write_json(record_path(home), asdict(process) | {"url": url})
    return url, process


@contextlib.contextmanager
def prefect_server(home: Home) -> Iterator[str]:
    """The API address of the home's Prefect server, started if need be and held inside the `with` block."""
    server = start_prefect_server(home)
    try:
        yield server.wait()
    finally:
        server.release()
