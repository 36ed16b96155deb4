"""Requests of web pages and of other accounts to fedcore's HTTP services, over real HTTP: all are refused."""

from __future__ import annotations

import http.client
import json
import os
import stat
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from fedcore.errors import InputError
from fedcore.home import Home
from flows.services.door import HOSTS, added_hosts, allowed_hosts
from flows.services.machine import down, up
from flows.services.prefect_server import start_prefect_server
from flows.services.secret import basic, secret, secret_path
from tests.patience import SOON
from tests.ports import ports_to_oneself

pytestmark = [pytest.mark.slow, pytest.mark.minutes]

MARKED = {"name": "planted-by-an-attack"}


def request(
    url: str, headers: dict[str, str | None], method: str = "POST", body: str | None = "{}"
) -> tuple[int, bytes]:
    """Status and body of the answer to exactly these headers: no client adds its own content type."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=SOON)
    try:
        connection.putrequest(method, parts.path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            if value is not None:
                connection.putheader(name, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(None if body is None else body.encode())
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def attacks(port: int, known: str) -> dict[str, dict[str, str | None]]:
    """Headers of requests that must be refused, by name. A browser sends the password that its visitor once typed."""
    right = {"Host": f"127.0.0.1:{port}", "Authorization": known, "Content-Type": "application/json"}
    foreign = f"http://evil.example:{port}"
    return {
        "rebound": {"Host": f"evil.example:{port}", "Origin": foreign, "Content-Type": "application/json"},
        "rebound, with the password": right | {"Host": f"evil.example:{port}"},
        "another site's page": right | {"Origin": foreign},
        "another port's page": right | {"Origin": f"http://127.0.0.1:{port + 1}"},
        "a page without origin": right | {"Origin": "null"},
        "another site's fetch": right | {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
        "another port's fetch": right | {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"},
        "no content type": right | {"Content-Type": None},
        "a form": right | {"Content-Type": "application/x-www-form-urlencoded"},
        "plain text": right | {"Content-Type": "text/plain;charset=UTF-8"},
        "a form with files": right | {"Content-Type": "multipart/form-data; boundary=x"},
        "no password": right | {"Authorization": None},
        "a wrong password": right | {"Authorization": basic("x" * 43)},
        "no host": right | {"Host": None},
        "a wildcard's host": right | {"Host": f"127.0.0.1.nip.example:{port}"},
    }


NAMES = tuple(attacks(1, ""))


class Services:
    def __init__(self, home: Home, prefect: str, mlflow: str, run: str, run_home: Home) -> None:
        self.urls = {
            "up": (f"{prefect}/flows/", home),
            "a run": (f"{run}/flows/", run_home),
            "mlflow": (f"{mlflow}/api/2.0/mlflow/experiments/create", home),
        }
        self.home, self.prefect, self.mlflow = home, prefect, mlflow


@pytest.fixture(scope="module")
def services(tmp_path_factory) -> Iterator[Services]:
    home, other = (Home(tmp_path_factory.mktemp(name) / "home") for name in ("up", "run"))
    with pytest.MonkeyPatch.context() as patch, ports_to_oneself():
        patch.setenv("PREFECT_RUNNER_POLL_FREQUENCY", "1")
        started = up(home, workers=1)
    server = start_prefect_server(other)
    yield Services(home, started.addresses["prefect"], started.addresses["mlflow"], server.wait(), other)
    server.release()
    down(other)
    down(home)


@pytest.mark.parametrize("attack", NAMES)
@pytest.mark.parametrize("service", ["up", "a run", "mlflow"])
def test_what_a_page_or_another_account_sends_makes_nothing(services, service, attack):
    url, home = services.urls[service]
    port = urlsplit(url).port
    assert port is not None
    status, answer = request(url, attacks(port, basic(secret(home)))[attack], body=json.dumps(MARKED))
    assert status in (400, 401, 403, 415), answer
    assert b"planted" not in answer


@pytest.mark.parametrize("service", ["up", "a run", "mlflow"])
def test_who_knows_the_password_gets_in(services, service):
    url, home = services.urls[service]
    parts = urlsplit(url)
    headers = {"Host": parts.netloc, "Authorization": basic(secret(home)), "Content-Type": "application/json"}
    status, answer = request(url, headers, body=json.dumps({"name": f"mine-{service.replace(' ', '-')}"}))
    assert status in (200, 201), answer
    named = {**headers, "Host": f"localhost:{parts.port}", "Origin": f"http://localhost:{parts.port}"}
    assert request(url, named, body=json.dumps({"name": f"too-{service.replace(' ', '-')}"}))[0] in (200, 201)


@pytest.mark.parametrize("path", ["/", "/api/health", "/api/ready", "/docs", "/api/openapi.json", "/ui-settings", "/x"])
def test_without_the_password_there_is_nothing_to_see(services, path):
    for url in (services.prefect, services.mlflow):
        address = urlsplit(url).netloc
        status, answer = request(f"http://{address}{path}", {"Host": address}, "GET", None)
        assert status == 401 and set(json.loads(answer)) == {"detail"}


@pytest.mark.parametrize("path", ["events/in", "events/out", "logs/out"])
@pytest.mark.parametrize("attack", ["rebound, with the password", "another site's page", "no password"])
def test_no_web_socket_opens_either(services, path, attack):
    parts = urlsplit(services.prefect)
    assert parts.port is not None
    shake = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Protocol": "prefect",
    }
    wrong = attacks(parts.port, basic(secret(services.home)))[attack]
    url = f"{services.prefect}/{path}"
    assert request(url, {**wrong, **shake, "Content-Type": None}, "GET", None)[0] == 403


def test_the_secret_is_in_no_argument_log_and_file_but_its_own(services):
    """Neither in plain text nor in base64, after services, drivers and their logs have used the secret."""
    words = [secret(services.home), basic(secret(services.home)).removeprefix("Basic ")]
    for process in psutil.process_iter():
        try:
            command_line = " ".join(process.cmdline())
        except psutil.Error:
            continue
        assert not any(word in command_line for word in words)
    for path in services.home.root.rglob("*"):
        if path.is_file() and path != secret_path(services.home):
            assert not any(word.encode() in path.read_bytes() for word in words), path


def test_the_secret_is_its_owners_only_and_one_that_others_can_read_is_refused(tmp_path):
    home = Home(tmp_path / "home")
    before = os.umask(0)
    try:
        made = secret(home)
    finally:
        os.umask(before)
    path = secret_path(home)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and len(made) == 43
    assert secret(home) == made and secret(Home(tmp_path / "another")) != made
    path.chmod(0o644)
    with pytest.raises(InputError, match=r"other accounts"):
        secret(home)
    path.chmod(0o600)
    path.write_text("guess")
    with pytest.raises(InputError, match=r"no secret"):
        secret(home)
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"cannot be read"):
        secret(home)


def test_an_operator_adds_names_and_no_wildcard(monkeypatch):
    monkeypatch.setenv(HOSTS, "gate.example, Other.example:8443")
    assert allowed_hosts(4200) == {
        "127.0.0.1:4200",
        "localhost:4200",
        "[::1]:4200",
        "gate.example",
        "gate.example:4200",
        "other.example:8443",
    }
    for wrong in ("*", "*.example", "http://gate.example", "gate.example/x"):
        monkeypatch.setenv(HOSTS, wrong)
        with pytest.raises(InputError, match=HOSTS):
            added_hosts()


def test_the_attack_of_the_issue_finds_no_way_in(services, tmp_path):
    """Lists deployments, patches one with a pull step that runs a command, starts it, and waits as long as it took."""
    parts, planted = urlsplit(services.prefect), tmp_path / "planted"
    page = {"Host": f"evil.example:{parts.port}", "Origin": f"http://evil.example:{parts.port}"}
    headers: dict[str, str | None] = {**page, "Content-Type": "application/json"}
    status, found = request(f"{services.prefect}/deployments/filter", headers)
    known: Any = json.loads(found) if status == 200 else []
    for deployment in known:
        step = {"prefect.deployments.steps.run_shell_script": {"script": f"touch {planted}"}}
        url = f"{services.prefect}/deployments/{deployment['id']}"
        request(url, headers, "PATCH", json.dumps({"pull_steps": [step], "enforce_parameter_schema": False}))
        request(f"{url}/create_flow_run", headers)
    until = time.monotonic() + 40.0 * bool(known)
    while time.monotonic() < until and not planted.exists():
        time.sleep(0.5)
    assert not planted.exists() and status == 403
