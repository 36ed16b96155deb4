"""MLflow's pages disable telemetry in the browser, whatever the user's environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request

import pytest

from fedcore.home import Home
from flows.services.environment import child_environment
from flows.services.prefect_server import listen
from flows.services.secret import authorization
from tests.patience import HANGS

pytestmark = pytest.mark.slow

CODE = """
import sys
import mlflow.telemetry.utils as utils
utils._IS_IN_CI_ENV_OR_TESTING = utils._IS_MLFLOW_DEV_VERSION = False  # as on a user's machine
from flows.services.mlflow_page import main
import mlflow.server.handlers as handlers
def asked(*_, **__):
    return {"disable_telemetry": False, "disable_ui_telemetry": False, "ui_rollout_percentage": 100}
handlers.fetch_ui_telemetry_config = asked  # what its makers' server says
main(*sys.argv[1:])
"""


@pytest.mark.minutes
def test_telemetry_of_the_browser_is_disabled(tmp_path):
    home = Home(tmp_path / "home").make()
    home.mlflow_artifacts.mkdir(exist_ok=True)
    asks = {"MLFLOW_DISABLE_TELEMETRY": "false", "DO_NOT_TRACK": "false"}
    with listen(None) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        page = subprocess.Popen(
            [sys.executable, "-P", "-c", CODE, str(home.root), str(listening.fileno())],
            env=child_environment(home, {**os.environ, **asks}),
            pass_fds=[listening.fileno()],
        )
    try:
        known = {"Authorization": authorization(home, url)}
        request = urllib.request.Request(f"{url}/ajax-api/3.0/mlflow/ui-telemetry", headers=known)
        with urllib.request.urlopen(request, timeout=HANGS) as answer:
            assert json.load(answer)["disable_ui_telemetry"] is True
    finally:
        page.terminate()
        page.wait(timeout=HANGS)
