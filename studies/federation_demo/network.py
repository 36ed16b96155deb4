"""Network namespaces of the parties: one switch in the relay's, and nftables rules in each.

No packet leaves the namespaces, and the machine's own network has no part in them. The switch alone would let all
parties reach each other, so it is the rules that keep them apart.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from fedcore.errors import InputError

TOOLS = ("ip", "nft", "ss")
NET = "10.77.0"
SWITCH = "switch"
PATIENCE = 20.0


@dataclass(frozen=True)
class Network:
    """Namespaces named by `tag` and party. `relay` is the party with the switch, `driver` the one with a loopback."""

    tag: str
    relay: str
    driver: str
    silos: Sequence[str]
    port: int = 8500

    @property
    def parties(self) -> tuple[str, ...]:
        return self.relay, self.driver, *self.silos

    @property
    def url(self) -> str:
        """Address of the relay for all parties."""
        return f"http://{self.address(self.relay)}:{self.port}"

    def namespace(self, party: str) -> str:
        return f"{self.tag}-{party}"

    def address(self, party: str) -> str:
        return f"{NET}.{self.parties.index(party) + 1}"

    def inside(self, party: str) -> list[str]:
        """Command that runs another one in a party's namespace, with mounts of its own."""
        return ["ip", "netns", "exec", self.namespace(party)]

    def make(self) -> None:
        """Makes namespaces, switch and links; only checks the rules. Raises InputError if the machine refuses."""
        if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
            raise InputError(f"{missing[0]} is not installed")
        for party in self.parties:
            _run("ip", "netns", "add", self.namespace(party))
        hub = self.namespace(self.relay)
        _run("ip", "-n", hub, "link", "add", SWITCH, "type", "bridge")
        _run("ip", "-n", hub, "addr", "add", f"{self.address(self.relay)}/24", "dev", SWITCH)
        _run("ip", "-n", hub, "link", "set", SWITCH, "up")
        for number, party in enumerate(self.parties[1:], 1):
            own, port = self.namespace(party), f"port{number}"
            _run("ip", "-n", hub, "link", "add", port, "type", "veth", "peer", "name", "relay", "netns", own)
            _run("ip", "-n", hub, "link", "set", port, "master", SWITCH, "up")
            _run("ip", "-n", own, "addr", "add", f"{self.address(party)}/24", "dev", "relay")
            _run("ip", "-n", own, "link", "set", "relay", "up")
        self._load(self.parties, "--check")
        # Prefect's server and its client, both of the driver, meet on loopback; hospitals and relay have none.
        _run("ip", "-n", self.namespace(self.driver), "link", "set", "lo", "up")

    def guard(self, parties: Sequence[str]) -> None:
        """Loads the rules of these parties. Raises InputError if the machine refuses."""
        self._load(parties)

    def _load(self, parties: Sequence[str], *options: str) -> None:
        for party in parties:
            _run(*self.inside(party), "nft", *options, "-f", "-", text=self.rules(party))

    def rules(self, party: str) -> str:
        """nftables rules of a party: the relay is dialled at one port, the others dial that port and nothing else."""
        relay = f"ip daddr {self.address(self.relay)} tcp dport {self.port} accept"
        back = "ct state established accept"
        incoming, outgoing = ([back, relay], [back]) if party == self.relay else ([back], [relay])
        if party == self.driver:
            incoming.append('iif "lo" accept')
            outgoing.append('oif "lo" accept')
        chains: tuple[tuple[str, list[str]], ...] = (("input", incoming), ("output", outgoing), ("forward", []))
        made = ["table inet fedcore {"]
        for name, rules in chains:
            made += [f"chain {name} {{", f"type filter hook {name} priority 0; policy drop;", *rules, "}"]
        return "\n".join([*made, "}", ""])

    def listening(self, party: str) -> str:
        """Sockets that listen in a party's namespace, TCP and UDP, a line each; empty without any."""
        return _run(*self.inside(party), "ss", "-H", "-l", "-n", "-t", "-u").strip()

    def processes(self) -> list[int]:
        """Numbers of all processes in the namespaces."""
        found = [_run("ip", "netns", "pids", name).split() for name in self.left()]
        return [int(number) for numbers in found for number in numbers]

    def left(self) -> list[str]:
        """Namespaces of this tag that exist, made by this process or by one that was killed."""
        if shutil.which("ip") is None:
            return []
        listed = [line.split()[0] for line in _run("ip", "netns", "list").splitlines() if line.strip()]
        return [name for name in listed if name.startswith(f"{self.tag}-")]

    def remove(self) -> None:
        """Removes the namespaces, and with them switch, links and rules. Their processes have ended before."""
        for name in self.left():
            _run("ip", "netns", "delete", name)


def _run(*command: str, text: str = "") -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode:
        complaint = (done.stderr.strip().splitlines() or ["no reason given"])[0]
        raise InputError(f"`{' '.join(command)}` failed: {complaint}")
    return done.stdout
