"""Checks, as the parties themselves, that they are apart: who reaches whom, who listens, who reads whose folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fedcore.errors import InputError
from studies.federation_demo.network import Network
from studies.federation_demo.parties import Party

LISTENER = """
import socket, sys, time
held = [socket.create_server(("0.0.0.0", int(port)), backlog=64) for port in sys.argv[1:]]
print("listens", flush=True)
time.sleep(600)
"""
DIALLER = """
import concurrent.futures, json, socket, sys
def reaches(target):
    address, _, port = target.partition(":")
    try:
        socket.create_connection((address, int(port)), timeout=1.5).close()
    except OSError:
        return False
    return True
with concurrent.futures.ThreadPoolExecutor(32) as pool:
    print(json.dumps(dict(zip(sys.argv[1:], pool.map(reaches, sys.argv[1:])))))
"""
READER = """
import json, os, sys
def opens(path):
    try:
        os.listdir(path)
    except PermissionError:
        return False
    return True
print(json.dumps({path: opens(path) for path in sys.argv[1:]}))
"""
OTHER_PORT = 1
"""Ports that a hospital must not reach at the relay are this much above the relay's own."""
SECONDS = 30.0


class Reach:
    """Connections between the parties of a network, each of which has a listener while they are tried."""

    def __init__(self, network: Network, parties: Mapping[str, Party]) -> None:
        self._network, self._parties = network, parties
        self._ports = (network.port, network.port + OTHER_PORT)
        self._listeners: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Reach:
        ports = [str(port) for port in self._ports]
        for party in self._parties.values():
            self._listeners.append(party.start([sys.executable, "-c", LISTENER, *ports], "listener.log"))
        until = time.monotonic() + SECONDS
        for party in self._parties.values():
            while "listens" not in (party.folder / "listener.log").read_text():
                if time.monotonic() > until:
                    raise InputError(f"{party.name}: its listener does not listen after {SECONDS:g} s")
                time.sleep(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._listeners:
            process.terminate()
            process.wait()

    def pairs(self) -> dict[tuple[str, str, int], bool]:
        """Success of a connection, by dialling party, dialled party and port."""
        with ThreadPoolExecutor(len(self._parties)) as pool:
            found = list(pool.map(self._from, self._parties))
        return {key: each for part in found for key, each in part.items()}

    def _from(self, name: str) -> dict[tuple[str, str, int], bool]:
        targets = {
            f"{self._network.address(other)}:{port}": (name, other, port)
            for other in self._parties
            if other != name
            for port in self._ports
        }
        found = json.loads(self._parties[name].python(DIALLER, *targets))
        return {targets[target]: bool(reached) for target, reached in found.items()}


def check_reach(network: Network, parties: Mapping[str, Party]) -> list[str]:
    """Tries all connections: without rules, with those of the hospitals alone, and with all. Raises InputError.

    Without the first trial, a broken link would look like a rule that holds. Without the second, the rules of relay and
    driver could stand in for a hospital's own.
    """
    with Reach(network, parties) as reach:
        free = reach.pairs()
        network.guard(network.silos)
        own = reach.pairs()
        network.guard((network.relay, network.driver))
        all_rules = reach.pairs()
    _expect("without rules", free, set(free))
    allowed = {key for key in free if key[1:] == (network.relay, network.port)}
    others = {key for key in free if key[0] not in network.silos and key[1] not in network.silos}
    _expect("with the hospitals' rules", own, allowed | others)
    _expect("with all rules", all_rules, allowed)
    lines = [f"without rules: {len(free)} of {len(free)} connections between the parties are made"]
    for name in network.silos:
        kept = [other for other in parties if other not in (name, network.relay)]
        lines.append(
            f"{name}: reaches {network.relay} at port {network.port}, at no other port, and none of {', '.join(kept)}"
        )
    lines.append(f"{network.driver}: reaches {network.relay} alone; {network.relay} reaches none of the others")
    return lines


def _expect(when: str, found: Mapping[tuple[str, str, int], bool], allowed: set[tuple[str, str, int]]) -> None:
    """Raises InputError unless exactly the allowed connections were made."""
    for (dialling, dialled, port), reached in found.items():
        if reached != ((dialling, dialled, port) in allowed):
            verb = "reaches" if reached else "does not reach"
            raise InputError(f"network of the demo: {when}, {dialling} {verb} {dialled} at port {port}")


def check_folders(parties: Mapping[str, Party]) -> str:
    """Each party tries to open the folders of all. Raises InputError if it opens another's, or not its own."""

    def tried(party: Party) -> dict[str, bool]:
        folders = [str(each.folder) for each in parties.values()]
        return dict(json.loads(party.python(READER, *folders)))

    with ThreadPoolExecutor(len(parties)) as pool:
        for party, found in zip(parties.values(), pool.map(tried, parties.values()), strict=True):
            for other in parties.values():
                if found[str(other.folder)] != (other is party):
                    raise InputError(f"user of {party.name}: wrong access to the folder of {other.name}")
    return f"folders: each of the {len(parties)} users opens its own, and none of the other {len(parties) - 1}"


def check_silence(network: Network, silos: Sequence[str]) -> str:
    """Raises InputError if a socket listens in a hospital's namespace."""
    for name in silos:
        if found := network.listening(name):
            raise InputError(f"a socket listens in the namespace of {name}: {found.splitlines()[0]}")
    return f"nothing listens in the namespaces of {', '.join(silos)} (`ss -ltun`), while they serve"


def check_no_listener(services: Mapping[str, int]) -> str:
    """Raises InputError if one of these processes, by party, has a TCP socket that listens."""
    listening: set[str] = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        if table.exists():
            rows = [line.split() for line in table.read_text().splitlines()[1:]]
            listening |= {f"socket:[{row[9]}]" for row in rows if row[3] == "0A"}
    for name, number in services.items():
        opened = {os.readlink(each) for each in Path(f"/proc/{number}/fd").iterdir() if each.is_symlink()}
        if opened & listening:
            raise InputError(f"the service of {name} listens")
    return f"no service of {', '.join(services)} has a listening socket"
