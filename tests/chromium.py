"""A headless Chromium, as a visitor of web pages has one: opened, driven by its DevTools, ended with all it started."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.patience import SOON

NAMES = ("chromium", "chromium-browser", "google-chrome")
PROGRAM = next(filter(None, map(shutil.which, NAMES)), None)
QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1400,1000",
)


class Tab:
    """A page that is open, and what is asked of it. `known`: user and password that its visitor types when asked."""

    def __init__(self, socket: ClientConnection, known: tuple[str, str] | None = None) -> None:
        self._socket, self._known, self._sent = socket, known, 0
        if known is not None:
            self.call("Fetch.enable", handleAuthRequests=True)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        mine = self._send(method, **parameters)
        while True:
            answer = json.loads(self._socket.recv(timeout=SOON))
            if answer.get("id") == mine:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self._hear(answer)

    def _send(self, method: str, **parameters: Any) -> int:
        self._sent += 1
        self._socket.send(json.dumps({"id": self._sent, "method": method, "params": parameters}))
        return self._sent

    def _hear(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Fetch.authRequired" and self._known is not None:
            typed = dict(zip(("username", "password"), self._known, strict=True))
            response = {"response": "ProvideCredentials", **typed}
            self._send("Fetch.continueWithAuth", requestId=event["params"]["requestId"], authChallengeResponse=response)
        elif event.get("method") == "Fetch.requestPaused":
            self._send("Fetch.continueRequest", requestId=event["params"]["requestId"])

    def value(self, expression: str) -> Any:
        """The value of an expression on the page; None if it raises, for instance while the page loads."""
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        return found["result"].get("value")

    def until(self, expression: str, seconds: float = SOON) -> Any:
        """The expression's value once it is true."""
        limit = time.monotonic() + seconds
        while not (found := self.value(expression)):
            assert time.monotonic() < limit, (expression, self.value("document.body?.innerText"))
            time.sleep(0.2)
        return found

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


class Browser:
    """A browser with one profile: a password entered in one tab serves the other tabs too."""

    def __init__(self, port: int) -> None:
        self._address = f"127.0.0.1:{port}"

    @contextlib.contextmanager
    def tab(self, url: str, known: tuple[str, str] | None = None) -> Iterator[Tab]:
        request = urllib.request.Request(f"http://{self._address}/json/new?about:blank", method="PUT")
        with urllib.request.urlopen(request, timeout=SOON) as answer:
            found = json.loads(answer.read())
        with connect(found["webSocketDebuggerUrl"], max_size=None, open_timeout=SOON) as socket:
            tab = Tab(socket, known)
            tab._send("Page.navigate", url=url)  # it answers once the page has, which may ask for a password first
            yield tab


@contextlib.contextmanager
def browser(folder: Path, *options: str) -> Iterator[Browser]:
    """A Chromium with a new profile in `folder`."""
    assert PROGRAM is not None
    profile = folder / "profile"
    command = [PROGRAM, *QUIET, f"--user-data-dir={profile}", "--remote-debugging-port=0", *options, "about:blank"]
    with open(folder / "chromium.log", "wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    try:
        active, limit = profile / "DevToolsActivePort", time.monotonic() + SOON
        while not (active.exists() and active.read_text().count("\n")):
            assert process.poll() is None and time.monotonic() < limit, (folder / "chromium.log").read_text()[-2000:]
            time.sleep(0.1)
        yield Browser(int(active.read_text().split()[0]))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
