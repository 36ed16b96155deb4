"""Clients of Prefect's API, even with the password, cannot make deployments run an order that home has not recorded."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

import pytest

from fedcore.home import Home
from flows.schedules.orders import FREE
from flows.services.machine import down, up
from flows.services.secret import basic, secret
from tests.flows.test_deployments import KNOWN, call, wait_until_over
from tests.flows.test_orders import EVERY, EXAMPLE, is_the_same, other, put
from tests.patience import HANGS
from tests.ports import ports_to_oneself

pytestmark = [pytest.mark.slow, pytest.mark.minutes, pytest.mark.faults]


@pytest.fixture(scope="module")
def services(tmp_path_factory) -> Iterator[tuple[Path, str, str]]:
    home = Home(tmp_path_factory.mktemp("patched") / "home")
    with pytest.MonkeyPatch.context() as patch, ports_to_oneself():
        patch.setenv("PREFECT_RUNNER_POLL_FREQUENCY", "1")
        api = up(home, workers=1).addresses["prefect"]
    KNOWN[urlsplit(api).netloc] = basic(secret(home))
    deployment = f"{api}/deployments/{call(f'{api}/deployments/name/run/run')['id']}"
    call(deployment, {"enforce_parameter_schema": False}, "PATCH")
    yield home.root, api, deployment
    down(home)


def test_every_field_that_is_patched_ends_failed_with_its_name(services):
    home, api, deployment = services
    names: dict[str, str] = {}
    for name in EVERY:
        value = next((each for each in other(name) if not is_the_same(put(EXAMPLE, name, each))), None)
        if value is None or (tuple(name.split(".")) in FREE):
            continue
        parameters = put(EXAMPLE, name, value)
        try:
            names[call(f"{deployment}/create_flow_run", {"parameters": parameters})["id"]] = name
        except HTTPError as refused:  # by the server itself
            assert refused.code in (409, 422)
    assert len(names) > 40 and {"cluster.address", "shuffler.address", "data.folder"} <= set(names.values())
    for flow_run, name in names.items():
        over = wait_until_over(f"{api}/flow_runs/{flow_run}")
        assert over["state"]["type"] == "FAILED", (name, over["state"])
        message = over["state"]["message"]
        assert message.startswith("refused: ") and name.split(".")[0] in message and "\n" not in message
        assert over["run_count"] == 0
    assert not (home / "runs").exists() and not (home / "silos").exists()


def test_pull_steps_entrypoint_and_infrastructure_of_the_server_are_not_obeyed(services, tmp_path):
    """The attack of the issue, with the password: the flow run carries out the example, with this home's own code."""
    home, api, deployment = services
    planted, module = tmp_path / "planted", tmp_path / "planted.py"
    module.write_text(f"from pathlib import Path\nPath({str(planted)!r}).touch()\ndef run(**values): ...\n")
    step = {"prefect.deployments.steps.run_shell_script": {"script": f"touch {planted}"}}
    patch = {
        "pull_steps": [step],
        "path": str(tmp_path),
        "entrypoint": f"{module}:run",
        "enforce_parameter_schema": False,
        "job_variables": {"command": f"touch {planted}", "env": {"PYTHONPATH": str(tmp_path)}},
    }
    call(deployment, patch, "PATCH")
    patched = call(deployment)
    assert patched["pull_steps"] == [step] and patched["entrypoint"] == f"{module}:run", "the server takes it all"
    body = {"parameters": {"seed": 3}, "job_variables": patch["job_variables"]}
    made: dict[str, Any] = call(f"{deployment}/create_flow_run", body)
    over = wait_until_over(f"{api}/flow_runs/{made['id']}")
    assert over["state"]["type"] == "COMPLETED", over["state"]
    assert not planted.exists()
    (result,) = [json.loads(path.read_text()) for path in (home / "runs").glob("*/result.json")]
    assert result["run"].startswith(EXAMPLE["name"])


def test_a_flow_run_that_is_patched_before_it_is_due_is_refused(services):
    home, api, deployment = services
    due = time.strftime("%FT%TZ", time.gmtime(time.time() + 20))
    later = {"type": "SCHEDULED", "state_details": {"scheduled_time": due}}
    made = call(f"{deployment}/create_flow_run", {"parameters": {"seed": 4}, "state": later})
    before = set((home / "runs").glob("*")) if (home / "runs").exists() else set()
    hostile = put(EXAMPLE, "cluster.address", "tcp://evil.example:1")
    call(f"{api}/flow_runs/{made['id']}", {"parameters": hostile}, "PATCH")
    until = time.monotonic() + HANGS
    while (over := call(f"{api}/flow_runs/{made['id']}"))["state"]["type"] != "FAILED":
        assert time.monotonic() < until and over["state"]["type"] != "COMPLETED"
        time.sleep(0.5)
    assert "cluster.address" in over["state"]["message"]
    assert (set((home / "runs").glob("*")) if (home / "runs").exists() else set()) == before
