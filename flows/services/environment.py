"""Environments of a driver, of its Prefect server and of other services of a home.

Functions import prefect only when they are called, because the settings must be in the environment first.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedcore.bounded_file import read_within
from fedcore.errors import InputError
from fedcore.home import Home
from fedcore.process.import_path import safe_environment
from flows.services.listener import held
from flows.services.page_files import page_environment
from flows.services.secret import auth_string
from tasks.proxies import with_usable_proxies


def prefect_environment(home: Home) -> dict[str, str]:
    """Variables that must be in `os.environ` before the first `import prefect` in a driver.

    With them Prefect writes inside the home only, sends nothing to its makers and keeps the console quiet. It starts no
    temporary server of its own, which would outlive a killed parent. No proxy stands between a driver and its own
    machine. Raises InputError if files of the working folder contain settings of Prefect.
    """
    _refuse_settings_of_the_folder()
    return {
        "PREFECT_HOME": str(home.prefect),
        "PREFECT_PROFILES_PATH": str(home.prefect / "profiles.toml"),
        "PREFECT_LOGGING_LEVEL": "WARNING",
        "PREFECT_LOGGING_LOGGERS_PREFECT_FLOW_RUNS_LEVEL": "INFO",  # a line for each phase, on the flow run's page
        "PREFECT_SERVER_EPHEMERAL_ENABLED": "false",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    } | _no_proxy()


def _refuse_settings_of_the_folder() -> None:
    """Raises InputError for a file with settings of Prefect in the working folder, or unreadable.

    Prefect 3.8 reads such settings, and its logging runs code that they name.
    """
    files = {"prefect.toml": b"", ".env": rb"(?i)\bPREFECT_", "pyproject.toml": rb"\btool\b.*prefect"}
    for path, holds in ((Path(name).absolute(), holds) for name, holds in files.items()):
        if not os.path.exists(path) or path.is_dir():
            continue
        try:
            # Prefect would wait for a pipe, and read an endless file without a bound.
            found = read_within(path) if path.is_file() else None
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error.strerror}), and {_ELSEWHERE}") from None
        if found is None:
            raise InputError(f"{path} is no file, and {_ELSEWHERE}")
        if re.search(holds, found):
            raise InputError(f"{path} holds settings of Prefect, and {_ELSEWHERE}")


_ELSEWHERE = "Prefect's settings can name code to run; call this in another folder, with an absolute path of the config"


def _no_proxy() -> dict[str, str]:
    """`no_proxy` with the user's names and this machine's own addresses."""
    known = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    names = [name for name in known.split(",") if name]
    value = ",".join([*names, *(own for own in ("127.0.0.1", "localhost") if own not in names)])
    return {"no_proxy": value, "NO_PROXY": value}


def server_environment(home: Home, event_feed: bool) -> dict[str, str]:
    """Environment of a Prefect server: the user's own without Prefect's settings, plus fedcore's.

    `event_feed`: stores events for the page's event feed, which raises the cost of a task run from 5 to 12 ms. Runs,
    tasks, states and logs are stored in any case.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    services = "PREFECT_SERVER_SERVICES_"
    return (
        child_environment(home, inherited)
        | prefect_environment(home)
        | page_environment(home)
        | {
            "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home.prefect / 'prefect.db'}",
            "PREFECT_SERVER_UI_ENABLED": "true",
            # Relative, so that the page's calls go to its own origin, with the password, under any host name.
            "PREFECT_SERVER_UI_API_URL": "/api",
            # Prefect lets pages of any site call its API by default. The server's own page needs no permission; an
            # empty list would allow all sites.
            "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": "http://127.0.0.1:0",
            "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
            # Prefect's default, a transaction per event, costs 26 ms per task run.
            f"{services}TASK_RUN_RECORDER_BATCH_SIZE": "200",
            f"{services}TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",  # truncated to whole seconds: at least 1
            f"{services}EVENT_PERSISTER_ENABLED": str(event_feed).lower(),
            f"{services}EVENT_PERSISTER_BATCH_SIZE": "500",
            f"{services}EVENT_PERSISTER_FLUSH_INTERVAL": "2",
            f"{services}TRIGGERS_ENABLED": "false",
            # The event stream stays on: it carries Cancel from the page to a served deployment, at no cost without a
            # subscriber. The services below are for work pools, which fedcore does not use.
            f"{services}FOREMAN_ENABLED": "false",
            f"{services}REPOSSESSOR_ENABLED": "false",
            f"{services}CLEANUP_RECONCILER_ENABLED": "false",
            # Block types serve Prefect's integrations; registering them would take seconds of a first start.
            "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "false",
            "PREFECT_SERVER_MEMOIZE_BLOCK_AUTO_REGISTRATION": "false",
        }
    )


def child_environment(home: Home, inherited: dict[str, str] | None = None) -> dict[str, str]:
    """Environment of any service: the inherited one, the home, no working folder to import from."""
    environment = with_usable_proxies(safe_environment(os.environ if inherited is None else inherited))
    return environment | {"FEDCORE_HOME": str(home.root)} | _no_proxy()


@contextlib.contextmanager
def prefect_settings(home: Home, url: str) -> Iterator[None]:
    """Sets the home's Prefect server for the calling thread and its children, within the block.

    The home's secret passes through settings only, never through an environment that a child inherits. The server's
    port is held, so that no other account can take it if the server dies. Raises InputError.
    """
    import prefect.settings as settings

    _load_no_results()
    password = auth_string(home, url)
    with (
        held(url),
        settings.temporary_settings(
            {
                settings.PREFECT_API_URL: url,
                settings.PREFECT_API_AUTH_STRING: password,
                settings.PREFECT_SERVER_ANALYTICS_ENABLED: False,
                settings.PREFECT_SERVER_ALLOW_EPHEMERAL_MODE: False,
                settings.PREFECT_LOGGING_LEVEL: "WARNING",
                # No part of fedcore reads heartbeats, and each flow would wait for its heartbeat thread at its end.
                settings.PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,
            }
        ),
    ):
        yield


def _load_no_results() -> None:
    """Disables loading of results in Prefect's engine: a state can name any pickle, which is code.

    fedcore stores no results with Prefect, and every client of the server can set a state.
    """
    from prefect.results import ResultStore

    ResultStore._read, ResultStore._aread = _refused, _refused_later  # type: ignore[method-assign]


def _refused(*_: Any, **__: Any) -> Any:
    raise InputError("refused: the server names a stored result, which no process here stores or loads")


async def _refused_later(*_: Any, **__: Any) -> Any:
    _refused()
