"""What Prefect is told by the environment: a driver's, its server's, and that of any service of a home.

Nothing here imports prefect before it is asked to: the settings must be in the environment first.
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
from flows.services.secret import auth_string
from tasks.shuffling.proxies import with_usable_proxies


def prefect_environment(home: Home) -> dict[str, str]:
    """The variables that must be in `os.environ` before the first `import prefect` in a driver.

    They keep everything that Prefect writes inside the home, send nothing to its makers, keep the console
    quiet, forbid Prefect's own temporary server (it outlives a killed parent), and let no proxy stand between
    a driver and its own machine. Raises InputError where files of the working folder would say more to Prefect.
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
    """Prefect 3.8 reads settings in the working folder, and its logging calls what they name: code of whoever wrote it.

    Raises InputError naming the file, also for one that cannot be read to its end.
    """
    files = {"prefect.toml": b"", ".env": rb"(?i)\bPREFECT_", "pyproject.toml": rb"\btool\b.*prefect"}
    for path, holds in ((Path(name).absolute(), holds) for name, holds in files.items()):
        if not os.path.exists(path) or path.is_dir():
            continue
        try:
            # Prefect would wait for what a pipe says, and read all of what has no end.
            found = read_within(path) if path.is_file() else None
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error.strerror}), and {_ELSEWHERE}") from None
        if found is None:
            raise InputError(f"{path} is no file, and {_ELSEWHERE}")
        if re.search(holds, found):
            raise InputError(f"{path} holds settings of Prefect, and {_ELSEWHERE}")


_ELSEWHERE = "Prefect's settings can name code to run; call this in another folder, with an absolute path of the config"


def _no_proxy() -> dict[str, str]:
    """`no_proxy` with this machine's own addresses added to what the user has in it."""
    known = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    names = [name for name in known.split(",") if name]
    value = ",".join([*names, *(own for own in ("127.0.0.1", "localhost") if own not in names)])
    return {"no_proxy": value, "NO_PROXY": value}


def server_environment(home: Home, event_feed: bool) -> dict[str, str]:
    """The whole environment of a Prefect server: the user's own, without their Prefect settings.

    `event_feed`: whether events are stored for the page's event feed. Runs, tasks, states and logs are
    stored either way; the feed more than doubles the price of a task run (5 against 12 ms).
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    services = "PREFECT_SERVER_SERVICES_"
    return (
        child_environment(home, inherited)
        | prefect_environment(home)
        | {
            "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home.prefect / 'prefect.db'}",
            "PREFECT_SERVER_UI_ENABLED": "true",
            # By whatever name a browser calls the page: its calls then go to the same origin, with the password.
            "PREFECT_SERVER_UI_API_URL": "/api",
            # Prefect lets the pages of any web site call its API; ours is called by its own page only, which needs
            # no permission (an empty list would mean all).
            "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": "http://127.0.0.1:0",
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
    """The environment of any service: the inherited one, the home, and this project on the import path, on which the
    working folder never is."""
    environment = with_usable_proxies(safe_environment(os.environ if inherited is None else inherited))
    return environment | {"FEDCORE_HOME": str(home.root)} | _no_proxy()


@contextlib.contextmanager
def prefect_settings(home: Home, url: str) -> Iterator[None]:
    """Makes `url`, a server of the home, that of the calling thread and of what it starts, inside the `with` block.

    The home's secret goes no other way: it is in no environment that a child would inherit. The server's port is held
    meanwhile: if it dies, no other account takes its place. Raises InputError.
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
                # Nobody listens to heartbeats here, and each flow would wait for its heartbeat thread at its end.
                settings.PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,
            }
        ),
    ):
        yield


def _load_no_results() -> None:
    """Keeps Prefect's engine from loading what a state names as its result: a pickle at any path, which is code.

    Nothing here stores a result with Prefect, and whoever reaches the server can set a state.
    """
    from prefect.results import ResultStore

    ResultStore._read, ResultStore._aread = _refused, _refused_later  # type: ignore[method-assign]


def _refused(*_: Any, **__: Any) -> Any:
    raise InputError("refused: the server names a stored result, which no process here stores or loads")


async def _refused_later(*_: Any, **__: Any) -> Any:
    _refused()
