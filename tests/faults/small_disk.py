"""One silo on a disk that fills up, as a process of its own: `python small_disk.py SCENARIO FOLDER`, JSON on stdout.

Two disks. `limited`: no file may grow beyond a size (RLIMIT_FSIZE; Python ignores the signal, so writes stop short or
fail with EFBIG). `tmpfs`: the folder is a small file system of its own, filled by a file beside the ledger.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from fedcore.accounting.calibration import Budget
from fedcore.accounting.filters import Charge
from fedcore.algorithms.mbsgd import Mbsgd
from fedcore.data.records import Records
from fedcore.errors import SiloError
from fedcore.ledger.anchor import GENESIS, Anchor, Mark, Totals
from fedcore.ledger.sqlite import SqliteLedger
from fedcore.ledger.storage.verify import faults
from fedcore.losses import Squared
from fedcore.messages import Query, Releases
from fedcore.planning.problem import SiloFacts
from fedcore.silo.agreement import Agreement
from fedcore.silo.keys import SecretKeys
from fedcore.silo.private_silo import PrivateSilo
from fedcore.silo.site import Site
from tests.problems import problem_of

ROUNDS, DIM, N = 60, 600, 12


class Tmpfs:
    """The file system of `folder`, which no other process uses."""

    def __init__(self, folder: Path) -> None:
        self._ballast = folder / "ballast"

    def fill(self, room: int = 0) -> None:
        """Leaves about `room` bytes, in whole pages."""
        with open(self._ballast, "ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        if room:
            os.truncate(self._ballast, max(0, self._ballast.stat().st_size - room))

    def free(self) -> None:
        self._ballast.unlink()


class Limited:
    """No file of this process grows beyond the largest write-ahead file in `folder` now, and `room`.

    All that a ledger writes goes there first; the ledger itself is made in one shard, and may be larger by then.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def fill(self, room: int = 0) -> None:
        largest = max((path.stat().st_size for path in self._folder.rglob("*-wal")), default=0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest + room, resource.RLIM_INFINITY))

    def free(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def ledger_at(folder: Path) -> SqliteLedger:
    return SqliteLedger("ash", folder / "ledgers" / "ash.sqlite", folder / "anchors" / "ash.anchor")


def site_at(folder: Path) -> tuple[Site, Agreement, SqliteLedger]:
    rng = np.random.default_rng(3)
    budget = Budget(2.0, 1e-5)
    problem = problem_of(
        silos=(SiloFacts("ash", N),), dim=DIM, clip=1.0, smoothness=1.0, diameter=10.0, participants=1, budget=budget
    )
    method = Mbsgd(rounds=ROUNDS)
    ledger = ledger_at(folder)
    silo = PrivateSilo(
        "ash", Records(rng.standard_normal((N, DIM)), rng.standard_normal(N)), SecretKeys(b"k" * 32), ledger
    )
    return Site([silo]), Agreement("run", problem, method, Squared(), method.plan(problem).digest), ledger


def ask(site: Site, agreement: Agreement, round: int) -> str:
    query = Query("run", agreement.plan, 1, round, ("ash",), {"w": np.full(DIM, 0.001 * round)})
    (release,) = Releases.from_bytes(site.answer(query.to_bytes()), DIM)
    return release.payload.tobytes().hex()


def refusal_of(act: Callable[[], object]) -> str:
    """The sentence of a refusal, the kind of any other error, or nothing if there was none."""
    try:
        act()
        return ""
    except SiloError as error:
        return f"{error.code}: {error.sentence}"
    except Exception as error:
        return f"NOT A SENTENCE: {type(error).__name__}: {error}"


def answers(folder: Path, disk: Tmpfs | Limited) -> dict:
    """Rounds until the disk is full; once more while it is; then to the end, when there is room again."""
    site, agreement, ledger = site_at(folder)
    site.approve(agreement.to_bytes())
    sent = {1: ask(site, agreement, 1)}
    disk.fill(room=20_000)
    refusals: list[str] = []
    for round in range(2, ROUNDS + 1):
        refusals = [refusal_of(lambda r=round: sent.update({r: ask(site, agreement, r)})) for _ in range(3)]
        if any(refusals):
            break
    disk.free()
    full_at, rows = round, len(ledger.rows("run"))
    again = {r: ask(site, agreement, r) for r in sent}
    for round in range(full_at, ROUNDS + 1):
        again[round] = ask(site, agreement, round)
    site.close_run("run")
    site.close()
    whole = faults("ash", folder / "ledgers" / "ash.sqlite", folder / "anchors" / "ash.anchor")
    return {
        "refusals": refusals,
        "full_at": full_at,
        "rows": rows,
        "sent": list(sent.values()),
        "again": list(again.values()),
        "faults": whole,
    }


def undisturbed(folder: Path, disk: Tmpfs | Limited) -> dict:
    site, agreement, _ = site_at(folder)
    site.approve(agreement.to_bytes())
    return {"sent": [ask(site, agreement, round) for round in range(1, ROUNDS + 1)]}


def approval(folder: Path, disk: Tmpfs | Limited) -> dict:
    """A run is approved while the disk is full, and when there is room again."""
    site, agreement, ledger = site_at(folder)
    disk.fill()
    refusal = refusal_of(lambda: site.approve(agreement.to_bytes()))
    unapproved = refusal_of(lambda: ask(site, agreement, 1))
    disk.free()
    before = len(ledger.charges())
    later = refusal_of(lambda: site.approve(agreement.to_bytes())) + refusal_of(lambda: ask(site, agreement, 1))
    return {
        "refusal": refusal,
        "unapproved": unapproved,
        "before": before,
        "later": later,
        "charges": len(ledger.charges()),
    }


def first(folder: Path, disk: Tmpfs | Limited) -> dict:
    """Ledgers that are opened for the first time with more and more room, and again when there is enough."""
    found = []
    for number, room in enumerate([0, 1, 16, 31, 4096, 8192, 20_000, 40_000, 100_000]):
        place = folder / str(number)
        (place / "ledgers").mkdir(parents=True)
        (place / "anchors").mkdir()
        disk.fill(room=room)
        refusal = refusal_of(lambda p=place: ledger_at(p).close())
        disk.free()
        later = refusal_of(lambda p=place: ledger_at(p).close())
        key = (place / "anchors" / "ash.key").read_bytes()
        whole = faults("ash", place / "ledgers" / "ash.sqlite", place / "anchors" / "ash.anchor")
        found.append({"room": room, "refusal": refusal, "later": later, "key": len(key), "faults": whole})
    return {"found": found}


def anchors(folder: Path, disk: Tmpfs | Limited) -> dict:
    """As `first`, where only the anchors' disk is full. The ledgers lie beside the small file system."""
    found = []
    for number, room in enumerate([0, 4096, 8192]):
        paths = folder.parent / "other disk" / str(number) / "ash.sqlite", folder / str(number) / "ash.anchor"
        paths[1].parent.mkdir()
        disk.fill(room=room)
        refusal = refusal_of(lambda p=paths: SqliteLedger("ash", *p).close())
        disk.free()
        later = refusal_of(lambda p=paths: SqliteLedger("ash", *p).close())
        key = len(paths[1].with_suffix(".key").read_bytes())
        found.append({"refusal": refusal, "later": later, "key": key, "faults": faults("ash", *paths)})
    return {"found": found}


def closing(folder: Path, disk: Tmpfs | Limited) -> dict:
    """A run is closed while the disk is full: with no room at all, and with room for the entry alone."""
    found = []
    for number, room in enumerate([0, 4096, 8192, 16_384, 32_768]):
        place = folder / str(number)
        key = bytes([65 + number]) * 32
        ledger = ledger_at(place)
        ledger.open_run("run", "plan", key, Charge(1.0, 1.0, 1e-6), None)
        disk.fill(room=room)
        refusal = refusal_of(lambda led=ledger: led.close_run("run", 0.5))
        disk.free()
        later = refusal_of(lambda led=ledger: led.close_run("run", 0.5))
        charge = ledger.charges()["run"].mu_squared
        ledger.close()
        left = any(key in path.read_bytes() for path in place.rglob("*") if path.is_file())
        whole = faults("ash", place / "ledgers" / "ash.sqlite", place / "anchors" / "ash.anchor")
        found.append({"refusal": refusal, "later": later, "charge": charge, "key_left": left, "faults": whole})
    return {"found": found}


def anchor(folder: Path, disk: Tmpfs | Limited) -> dict:
    """Marks and keys that are cut in their middle. Limits are bytes of a file, so this needs `limited`."""
    made = Anchor(folder / "ash.anchor")
    made.make()
    totals = Totals(1.0, 2.0, 1e-6)
    made.write(Mark(2, GENESIS, totals, 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (512 + 40, resource.RLIM_INFINITY))
    cut = [_os_error(lambda: made.write(Mark(3, GENESIS, totals, 1)))]
    mark = Anchor(folder / "ash.anchor").mark
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, resource.RLIM_INFINITY))
    other = Anchor(folder / "birch.anchor")
    cut.append(_os_error(other.make))
    disk.free()
    return {"cut": cut, "sequence": mark and mark.sequence, "key": Anchor(folder / "birch.anchor").key is None}


def _os_error(act: Callable[[], object]) -> bool:
    try:
        act()
        return False
    except OSError:
        return True


if __name__ == "__main__":
    scenario, disk_name, where = sys.argv[1:]
    disks = {"tmpfs": Tmpfs, "limited": Limited}
    print(json.dumps(globals()[scenario](Path(where), disks[disk_name](Path(where)))))
