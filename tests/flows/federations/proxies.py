"""Proxies as processes, with the settings of docs/deployment: tinyproxy goes out, nginx and haproxy end TLS."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.flows.federations.parties import answers_at, free_port
from tests.patience import HANGS

RECIPES = Path(__file__).parents[3] / "docs" / "deployment"
FOLDERS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
TINYPROXY = """Port {port}
Listen 127.0.0.1
Timeout 600
MaxClients 100
Allow 127.0.0.1
BasicAuth hospital secret
LogFile "{folder}/tinyproxy.log"
LogLevel Connect
ConnectPort {relay}
"""
NGINX = """{user}
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/nginx-errors.log;
events {{}}
http {{
    access_log {folder}/nginx.log;
    {folders}
    {server}
}}
"""


@dataclass
class Proxy:
    """A proxy that runs in the foreground at `port` of 127.0.0.1."""

    command: list[str]
    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.folder.mkdir(exist_ok=True)
        with open(self.folder / "output.log", "ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        assert answers_at("127.0.0.1", self.port), (self.folder / "output.log").read_text()

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(timeout=HANGS)
            self.process = None


def program(name: str) -> str:
    """The path of a program; skips the test where it is not installed."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if found is None:
        pytest.skip(f"{name} is not installed here: `apt-get install {name}` brings it")
    return found


def tinyproxy(folder: Path, relay: int) -> Proxy:
    """A proxy to the outside that asks for a password, and lets TLS pass to the port `relay` only."""
    found, port = program("tinyproxy"), free_port()
    folder.mkdir()
    settings = folder / "tinyproxy.conf"
    settings.write_text(TINYPROXY.format(port=port, folder=folder, relay=relay))
    return Proxy([found, "-d", "-c", str(settings)], folder, port)


def nginx(folder: Path, relay: int, certificate: Path) -> Proxy:
    """nginx with the page's server block, in front of a relay at port `relay`."""
    found, port = program("nginx"), free_port()
    folder.mkdir()
    server = replaced(
        (RECIPES / "nginx.conf").read_text(),
        {
            "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
            "server_name fl.example.org": "server_name localhost",
            "/etc/ssl/fedcore/fl.pem": str(certificate),
            "/etc/ssl/fedcore/fl.key": str(certificate.with_suffix(".key")),
            "http://127.0.0.1:8500": f"http://127.0.0.1:{relay}",
        },
    )
    temporary = "".join(f"{name}_temp_path {folder}/{name};" for name in FOLDERS)
    settings = folder / "nginx.conf"
    user = "user root;" if os.geteuid() == 0 else ""  # else root's workers could not write what they buffer
    settings.write_text(NGINX.format(user=user, folder=folder, folders=temporary, server=server))
    return Proxy([found, "-p", str(folder), "-c", str(settings)], folder, port)


def haproxy(folder: Path, relay: int, certificate: Path) -> Proxy:
    """haproxy with the page's settings, in front of a relay at port `relay`."""
    found, port = program("haproxy"), free_port()
    folder.mkdir()
    both = folder / "both.pem"
    both.touch(0o600)
    both.write_bytes(certificate.read_bytes() + certificate.with_suffix(".key").read_bytes())
    settings = folder / "haproxy.cfg"
    settings.write_text(
        replaced(
            (RECIPES / "haproxy.cfg").read_text(),
            {
                "bind :443": f"bind 127.0.0.1:{port}",
                "/etc/ssl/fedcore/fl-with-key.pem": str(both),
                "server relay 127.0.0.1:8500": f"server relay 127.0.0.1:{relay}",
            },
        )
    )
    return Proxy([found, "-db", "-f", str(settings)], folder, port)


def replaced(text: str, values: dict[str, str]) -> str:
    """The recipe with the test's places, each of which it must name."""
    for old, new in values.items():
        assert old in text, old
        text = text.replace(old, new)
    return text
