"""The demo from its first process to its last: parties are set apart, join, train, and are compared."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fedcore.errors import InputError
from fedcore.home import caches
from studies.federation_demo.comparison import Compared, compared
from studies.federation_demo.hospital_files import CONFIG, FEDERATION, TEST, HospitalFiles
from studies.federation_demo.isolation import Degree, Isolation, isolate, network_of
from studies.federation_demo.parties import Party, fingerprint
from studies.federation_demo.proofs import check_folders, check_no_listener, check_reach, check_silence
from studies.federation_demo.workplace import Workplace

RELAY, DRIVER = "relay", "driver"
COPIES, AFTER = "copies", "after"
INVITATION = f"{FEDERATION}.invitation"
SERVES = 120.0
"""Seconds within which the relay and all silos have to serve."""

Say = Callable[[str], None]
T = TypeVar("T")


@dataclass(frozen=True)
class Outcome:
    """Result of a demo. `table`: lines of the sweep's output. `seconds`: by step. `home`: the driver's, to browse."""

    table: list[str]
    pages: list[str]
    compared: list[Compared]
    seconds: dict[str, float]
    home: Path

    @property
    def equal(self) -> bool:
        """True if all models have the same bits apart and together."""
        return all(each.equal for each in self.compared)


def show(folder: Path, wanted: Degree, epsilons: Sequence[float], say: Say) -> Outcome:
    """Runs the demo in `folder`, of which the driver's home stays. Raises InputError, SiloError or BusyError."""
    files = HospitalFiles(epsilons)
    network = network_of(folder, RELAY, DRIVER, files.names)
    workplace = Workplace(folder, network, folder / DRIVER / "home")
    with workplace.open():
        isolation = isolate(network, wanted)
        for reason in isolation.reasons:
            say(reason)
        demo = _Demo(workplace, isolation, files, say)
        table, pages = demo.trained()
        found = demo.compared()
        workplace.finished = True
    return Outcome(table, pages, found, demo.seconds, folder / DRIVER / "home")


class _Demo:
    """The steps of one demo, each with its seconds of wall clock."""

    def __init__(self, workplace: Workplace, isolation: Isolation, files: HospitalFiles, say: Say) -> None:
        self._isolation, self._files, self._say = isolation, files, say
        self._folder, self._processes = workplace.folder, workplace.processes
        names = (RELAY, DRIVER, *files.names)
        self._parties = {name: Party(name, self._folder / name, isolation, self._processes) for name in names}
        self._relay, self._driver = self._parties[RELAY], self._parties[DRIVER]
        self._silos = [self._parties[name] for name in files.names]
        self.seconds: dict[str, float] = {}

    def trained(self) -> tuple[list[str], list[str]]:
        """Output of the sweep, and addresses of its pages."""
        steps = (self._set_apart, self._join, self._copy, self._serve)
        for name, step in zip(("parties set apart", "silos joined", "folders copied", "services"), steps, strict=True):
            self._timed(name, step)
        printed = self._timed("sweep", lambda: self._driver.fedcore("sweep", CONFIG))
        if self._isolation.network is not None:
            self._say(check_silence(self._isolation.network, self._files.names))
        self._processes.end()
        lines = printed.rstrip().splitlines()
        shown = [line.rstrip() for line in lines if not re.match(r"browse |plot: |cells: ", line)]
        return shown, re.findall(r"https?://\S+", "\n".join(line for line in lines if line.startswith("browse ")))

    def compared(self) -> list[Compared]:
        """The models of the sweep beside those of the same runs in this process, from the copies."""
        return self._timed("runs in one process", self._compared)

    def _timed(self, name: str, step: Callable[[], T]) -> T:
        began = time.monotonic()
        found = step()
        self.seconds[name] = time.monotonic() - began
        return found

    def _set_apart(self) -> None:
        users = "" if not self._isolation.users else f", users {sorted(self._isolation.users.values())}"
        self._say(f"{len(self._parties)} parties as {self._isolation.degree}{users}: {', '.join(self._parties)}")
        for party in self._parties.values():
            party.make()
        self._lend_templates()
        if self._isolation.network is not None:
            for line in check_reach(self._isolation.network, self._parties):
                self._say(line)
        if self._isolation.users:
            self._say(check_folders(self._parties))

    def _lend_templates(self) -> None:
        """Copies this machine's empty databases of Prefect and MLflow for the driver, which take 10 s to make."""
        cache = self._driver.folder / ".cache"
        (cache / "fedcore").mkdir(parents=True, mode=0o700)
        for path in caches().glob("*.db"):
            shutil.copyfile(path, cache / "fedcore" / path.name)
        self._isolation.give(cache, DRIVER)

    def _join(self) -> None:
        said = self._driver.fedcore("federation", "init", FEDERATION, "--relay", self._isolation.url)
        confirmed = ("--fingerprint", fingerprint(said))
        invitation = self._driver.folder / INVITATION
        address, port = self._isolation.url.removeprefix("http://").split(":")
        self._relay.put(INVITATION, invitation)
        relay = self._relay.serve("relay", INVITATION, *confirmed, "--host", address, "--port", port)

        def joined(silo: Party) -> str:
            silo.put(INVITATION, invitation)
            silo.put("schema.yaml", self._files.schema)
            self._files.write_records(silo.folder / "records.csv", silo.name)
            self._isolation.give(silo.folder / "records.csv", silo.name)
            files = ("--invitation", INVITATION, "--data", "records.csv", "--schema", "schema.yaml")
            silo.fedcore("silo", "init", silo.name, *files, *confirmed)
            silo.put(f"home/policies/{silo.name}.yaml", self._files.policy)
            return fingerprint(silo.fedcore("silo", "card"))

        with ThreadPoolExecutor(len(self._silos)) as pool:
            own = list(pool.map(joined, self._silos))
        self._await({self._relay: relay}, "relay of")
        for silo, theirs in zip(self._silos, own, strict=True):
            card = self._driver.put(f"{silo.name}.card", silo.folder / f"{silo.name}.card")
            self._driver.fedcore("federation", "add", str(card), "--fingerprint", theirs)
        test = self._driver.folder / TEST
        self._files.write_test(test)
        self._isolation.give(test, DRIVER)
        self._driver.put(CONFIG, self._files.sweep(test))

    def _copy(self) -> None:
        for party in (self._driver, *self._silos):
            shutil.copytree(party.folder, self._folder / COPIES / party.name)

    def _serve(self) -> None:
        services = {silo: silo.serve("silo", "serve") for silo in self._silos}
        self._await(services, "answers for")
        if self._isolation.network is None and Path("/proc/net/tcp").exists():
            self._say(check_no_listener({silo.name: process.pid for silo, process in services.items()}))

    def _await(self, services: Mapping[Party, subprocess.Popen[str]], announced: str) -> None:
        """Returns when the services of these parties have printed this. Raises InputError for one that does not."""
        until = time.monotonic() + SERVES
        for party, process in services.items():
            while announced not in party.served:
                if time.monotonic() > until or process.poll() is not None:
                    last = (party.served.strip().splitlines() or ["it printed nothing"])[-1]
                    raise InputError(f"{party.name} does not serve: {last}")
                time.sleep(0.05)

    def _compared(self) -> list[Compared]:
        """Copies take the places of the originals: an account counts with its ledger at one path only."""
        after = self._folder / AFTER
        after.mkdir()
        for party in (self._driver, *self._silos):
            party.folder.rename(after / party.name)
            (self._folder / COPIES / party.name).rename(party.folder)
        places = {silo.name: silo.places for silo in self._silos}
        models = after / DRIVER / "home" / "runs"
        found = compared(self._driver.folder / CONFIG, self._driver.places, places, models)
        self._driver.folder.rename(self._folder / COPIES / DRIVER)
        (after / DRIVER).rename(self._driver.folder)  # whose home a person browses
        return found
