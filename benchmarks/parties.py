"""A federation of silos on this machine: its folders, made without commands, and its processes.

A silo's records are drawn by its number, so that two federations of as many silos have the same records.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.workload import FEATURES, RECORDS
from fedcore.configfile.yaml_writer import yaml_text
from fedcore.data.federations.joined import CARDS, cards_in
from fedcore.data.silo_file import SiloSource
from fedcore.home import Home
from fedcore.process.import_path import safe_environment
from fedcore.process.open_files import make_room
from fedcore.remote.membership import Membership
from fedcore.silo.policies.policy_file import DEFAULT
from fedcore.silo.policies.policy_in_force import utc_now
from fedcore.silo.registration import register_silos
from flows.commands.federations.schema_draft import policy_text
from tasks.relay.federation import Federation

NAME, INVITATION, LABEL, REACH = "bench", "bench.invitation", "y", 4.0
COLUMNS = {f"x{index:02d}": {"range": [-REACH, REACH]} for index in range(FEATURES)}
LOG, COMMAND = "parties.log", ("-m", "flows.commands.entry")
HELD = 2
"""Files that registering a silo holds open until all are registered, at most."""
READY = 60.0
"""Seconds within which a relay listens."""


@dataclass(frozen=True)
class Parties:
    """A federation below `folder`. Its silos lie in one folder if `together`, else each in its own."""

    folder: Path
    silos: tuple[str, ...]
    together: bool
    port: int

    @classmethod
    def made(cls, folder: Path, silos: int, together: bool, records: int = RECORDS) -> Parties:
        """Makes keys, records, policies, accounts and cards of `silos` silos, and the coordinator's list of them."""
        found = cls(folder, tuple(f"silo-{index:04d}" for index in range(silos)), together, _free_port())
        federation = Federation.new(found.home, NAME, f"http://127.0.0.1:{found.port}")
        (folder / INVITATION).write_text(federation.invitation.text(federation.identity))
        groups = [found.silos] if together else [(name,) for name in found.silos]
        cards = [card for group in groups for card in found._joined(group, records)]
        for name, text in cards:
            (federation.folder / CARDS / f"{name}.card").write_text(text)
        # One list at the end: a list for each card would sign as many lists as there are silos.
        federation._store(2, cards_in(federation.folder))
        return found

    @property
    def home(self) -> Home:
        """The coordinator's home."""
        return Home(self.folder)

    def of(self, silo: str) -> Path:
        """The folder of a silo, with its home and its register."""
        return self.folder / "parties" / ("silos" if self.together else silo)

    def environment(self, silo: str) -> Mapping[str, str]:
        """The variables of a silo's processes."""
        own = {"FEDCORE_HOME": str(self.of(silo) / "home"), "FEDCORE_REGISTER": str(self.of(silo) / "register")}
        return {key: value for key, value in safe_environment(os.environ).items() if key != "FEDCORE_POLICIES"} | own

    def sources(self) -> tuple[SiloSource, ...]:
        """The silos' own sources, which only a process on their machine can open."""
        found = []
        for name in self.silos:
            with self._as(name) as home:
                found.append(Membership.of(home, name).source(home))
        return tuple(found)

    @contextlib.contextmanager
    def relay(self) -> Iterator[subprocess.Popen[bytes]]:
        """Process of the relay, which listens."""
        folder = self.folder / "parties" / "relay"
        folder.mkdir(parents=True, exist_ok=True)
        environment = {**safe_environment(os.environ), "FEDCORE_HOME": str(folder)}
        command = [*COMMAND, "relay", str(self.folder / INVITATION), *self._options()]
        with self._process(command, environment, folder) as process:
            until = time.monotonic() + READY
            while time.monotonic() < until and process.poll() is None:
                with socket.socket() as attempt:
                    if attempt.connect_ex(("127.0.0.1", self.port)) == 0:
                        yield process
                        return
                time.sleep(0.05)
            raise RuntimeError(f"the relay did not listen: {(folder / 'relay.log').read_text()[-2000:]}")

    @contextlib.contextmanager
    def services(self) -> Iterator[None]:
        """Processes of the silos' services, one for each."""
        with contextlib.ExitStack() as stack:
            for name in self.silos:
                command = [*COMMAND, "silo", "serve", name]
                stack.enter_context(self._process(command, self.environment(name), self.of(name)))
            yield

    @contextlib.contextmanager
    def players(self, processes: int) -> Iterator[None]:
        """Processes of `benchmarks.light_silos`, each of which plays a part of the silos."""
        with contextlib.ExitStack() as stack:
            for index in range(processes):
                bounds = [str(len(self.silos) * at // processes) for at in (index, index + 1)]
                command = ["-m", "benchmarks.light_silos", str(self.folder), str(self.port), str(len(self.silos))]
                environment = self.environment(self.silos[0])
                stack.enter_context(self._process([*command, *bounds], environment, self.of(self.silos[0])))
            yield

    def _options(self) -> tuple[str, ...]:
        coordinator = Federation.of(self.home, NAME).invitation.coordinator
        return "--fingerprint", coordinator.fingerprint, "--port", str(self.port)

    @contextlib.contextmanager
    def _process(
        self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path
    ) -> Iterator[subprocess.Popen[bytes]]:
        with open(folder / LOG, "ab") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _joined(self, group: Sequence[str], records: int) -> list[tuple[str, str]]:
        """Name and card of each silo of a folder."""
        found: list[tuple[Membership, Home]] = []
        with self._as(group[0]) as home:
            home.make().policies.mkdir(parents=True, exist_ok=True)
            (home.policies / f"{DEFAULT}.yaml").write_text(policy_text())
            for name in group:
                data = self.of(name) / f"{name}.csv"
                _write_records(data, self.silos.index(name), records)
                schema = {"features": COLUMNS, "label": LABEL, "classes": [0, 1], "bias": False}
                found.append((Membership.new(home, name, self.folder / INVITATION, data, yaml_text(schema)), home))
            sources = [each.source(home) for each, home in found]
            make_room(len(sources) * HELD)
            register_silos(sources, home.ledger_folders, True, lambda silo, version: False, utc_now)
            return [(each.name, each.card(home).text(each.identity)) for each, home in found]

    @contextlib.contextmanager
    def _as(self, silo: str) -> Iterator[Home]:
        """The silo's home, with this process's variables set to its own."""
        environment = self.environment(silo)
        before = {key: os.environ.get(key) for key in ("FEDCORE_HOME", "FEDCORE_REGISTER")}
        os.environ.update({key: environment[key] for key in before})
        try:
            yield Home(Path(environment["FEDCORE_HOME"]))
        finally:
            for key, value in before.items():
                if value is None:
                    os.environ.pop(key, None)
                else:
                    os.environ[key] = value


def _write_records(path: Path, number: int, records: int) -> None:
    """A table of records: normal features, and labels by a logistic model that all silos share."""
    rng = np.random.default_rng([7, number])
    X = np.clip(rng.standard_normal((records, FEATURES)), -REACH, REACH)
    w = np.random.default_rng(7).standard_normal(FEATURES)
    y = rng.random(records) < 1 / (1 + np.exp(-X @ w))
    head = ",".join([*COLUMNS, LABEL])
    np.savetxt(path, np.column_stack([X, y]), fmt=["%.6f"] * FEATURES + ["%d"], delimiter=",", header=head, comments="")


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
