"""Degree to which the machine keeps the parties apart, and the command that starts a process of one of them."""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from fedcore.errors import InputError
from studies.federation_demo.code_view import installation, mounts
from studies.federation_demo.network import Network

Degree = Literal["namespaces", "users", "processes"]
DEGREES: tuple[Degree, ...] = ("namespaces", "users", "processes")
USERS = range(60600, 61000)
"""User ids that distributions give to no account: each party has one of them, and none is entered anywhere."""
STASH = Path("/run")
TRIAL = "import flows.commands.app"


@dataclass(frozen=True)
class Isolation:
    """The degree, the parties' users (none without root), and their network (none without namespaces).

    `view`: shell script of the mounts through which the users read this installation; None: they can anyway.
    `reasons`: why stronger degrees are out of reach here.
    """

    degree: Degree
    url: str
    users: dict[str, int] = field(default_factory=dict)
    network: Network | None = None
    view: str | None = None
    stash: Path | None = None
    reasons: tuple[str, ...] = ()

    def command(self, party: str, program: Sequence[str]) -> list[str]:
        """Command line by which the demo starts a program of a party."""
        if self.degree == "processes":
            return list(program)
        enter = [] if self.network is None else self.network.inside(party)
        if self.view is not None:
            if self.network is None:
                enter = ["unshare", "--mount"]
            enter += ["sh", "-c", f'{self.view}\ncd "$PWD"\nexec "$@"', "sh"]
        user = self.users[party]
        ids = [f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        return [*enter, "setpriv", *ids, "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all", *program]

    def give(self, path: Path, party: str) -> None:
        """Gives a file or folder, and all in it, to a party's user."""
        if party in self.users:
            for each in (path, *path.rglob("*")):
                os.chown(each, self.users[party], self.users[party], follow_symlinks=False)

    def remove(self) -> None:
        """Removes namespaces and the stash. Safe to call again."""
        if self.network is not None:
            self.network.remove()
        if self.stash is not None and self.stash.exists():
            self.stash.rmdir()


def network_of(folder: Path, relay: str, driver: str, silos: Sequence[str]) -> Network:
    """The network of the demo in this folder; another folder has namespaces of other names."""
    tag = hashlib.sha256(str(folder).encode()).hexdigest()[:6]
    return Network(f"fedcore-demo-{tag}", relay, driver, silos)


def isolate(network: Network, wanted: Degree) -> Isolation:
    """The strongest degree that this machine allows, at most `wanted`; namespaces are made, and have no rules yet."""
    refused: dict[str, list[str]] = {}
    for degree in DEGREES[DEGREES.index(wanted) :]:
        try:
            made = _isolated(network, degree)
        except (InputError, OSError, subprocess.SubprocessError) as error:
            refused.setdefault(str(error), []).append(degree)
        else:
            reasons = [f"no {' and no '.join(degrees)}: {why}" for why, degrees in refused.items()]
            return replace(made, reasons=tuple(reasons))
    raise InputError("; ".join(refused))


def _isolated(network: Network, degree: Degree) -> Isolation:
    """Raises InputError if this degree is out of reach."""
    if degree == "processes":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            return Isolation(degree, f"http://127.0.0.1:{free.getsockname()[1]}")
    if sys.platform != "linux" or os.geteuid() != 0:
        raise InputError("needs root on Linux (`sudo make demo`)")
    if shutil.which("setpriv") is None:
        raise InputError("setpriv is not installed")
    stash = STASH / network.tag
    stash.mkdir(exist_ok=True)
    url, apart = network.url, network if degree == "namespaces" else None
    if apart is None:
        url = _isolated(network, "processes").url
    users = dict(zip(network.parties, _free_users(), strict=False))
    made = Isolation(degree, url, users, apart, mounts(installation(), stash), stash)
    try:
        if apart is not None:
            apart.make()
        for party in network.parties[:2]:
            done = subprocess.run(
                made.command(party, [sys.executable, "-c", TRIAL]), cwd="/", capture_output=True, text=True, timeout=60
            )
            if done.returncode:
                complaint = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
                raise InputError(f"another user cannot run fedcore from {sys.prefix}: {complaint}")
    except BaseException:
        made.remove()
        raise
    return made


def _free_users() -> list[int]:
    """User ids without an account."""
    known = {entry.pw_uid for entry in pwd.getpwall()}
    return [user for user in USERS if user not in known]
